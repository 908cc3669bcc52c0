"""One optimiser step: gradients over micro-batches and processes, SAM, clipping. It knows no method."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from vitling.models.layers import statistics_kept_finite
from vitling.models.shards import is_shard
from vitling.optim import Schedule, clip_gradients
from vitling.training.course import Course
from vitling.training.random_state import seed_everything
from vitling.training.setup import Setup

MicroBatches = list[dict[str, Tensor]]


class Stepper:
    """Takes steps with a setup. `schedule` and `course` are None while only the speed is measured."""

    def __init__(self, setup: Setup, schedule: Schedule | None = None, course: Course | None = None):
        self.setup, self.schedule, self.course = setup, schedule, course

    def take(
        self,
        step: int,
        micro_batches: MicroBatches,
        *,
        before_update: Callable[[], None] | None = None,
        unscaled: bool = False,
    ) -> dict:
        """Step number `step`, counted from 0: its losses. `before_update` is called when the gradients are final."""
        setup = self.setup
        if self.schedule and self.course:
            self.schedule.set(self.course.position(step))
        losses = self.gradients(step, micro_batches)
        if setup.sam and setup.sam.climb():
            setup.optimizer.zero_grad()
            with statistics_kept_finite(setup.method):
                self.gradients(step, micro_batches)
            setup.sam.descend()
        self._clip(unscaled)
        if before_update:
            before_update()
        setup.optimizer.step()
        setup.optimizer.zero_grad()
        return losses

    def gradients(self, step: int, micro_batches: MicroBatches) -> dict[str, Tensor]:
        """Gradients of the mean loss over the micro-batches; processes exchange them once, at the last one."""
        setup, accelerator = self.setup, self.setup.accelerator
        self._seed(step)
        progress = self.course.progress(step) if self.course else 0.0
        parts = len(micro_batches)
        total: dict[str, Tensor] = {}
        for number, batch in enumerate(micro_batches, start=1):
            # Shards add up their parts of the gradients: whole ones, kept for the last micro-batch, are what has no room.
            waits = number < parts and not setup.sharded
            with accelerator.no_sync(setup.prepared) if waits else nullcontext():
                losses = setup.prepared(batch, progress)
                accelerator.backward(losses["loss"] / parts)
            for name, value in losses.items():
                total[name] = total.get(name, 0) + value.detach() / parts
        if setup.sharded:
            self._average_whole()
        return total | setup.method.finish_gradients(self._average)

    def _average_whole(self) -> None:
        """What lies around the blocks is no shard: its gradients are those of this process's rows so far."""
        whole = [p.grad for p in self.setup.method.parameters() if p.grad is not None and not is_shard(p)]
        for gradient, mean in zip(whole, self._average(whole), strict=True):
            gradient.copy_(mean)

    def _seed(self, step: int) -> None:
        """Draws for the whole batch are those of one process alone; what each process draws for its own rows is its own."""
        setup, own = self.setup, 0
        if setup.partners:
            setup.partners.begin_step(setup.recipe.seed, "step", step, 0)
            own = 1 + setup.accelerator.process_index
        seed_everything(setup.recipe.seed, "step", step, own)

    def _average(self, tensors: list[Tensor]) -> list[Tensor]:
        """Means over the processes, in one message."""
        if self.setup.accelerator.num_processes == 1:
            return tensors
        flat = self.setup.accelerator.reduce(torch.cat([tensor.flatten() for tensor in tensors]), "mean")
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def _clip(self, unscaled: bool) -> None:
        limits = [limit for limit in self.setup.method.clip_limits(self.setup.recipe.optim.clip_grad) if limit[1]]
        if limits or unscaled:
            self.setup.accelerator.unscale_gradients()  # once, however many networks are clipped
        for parameters, norm in limits:
            clip_gradients(parameters, norm)
