"""The only training loop: epochs of steps, validations between them, checkpoints on the way.

It knows no method: a method turns a batch into losses and, where it must, losses into gradients. Everything random in a
step is a function of (seed, step), so a checkpoint holds no generator states and a resumed run repeats the uninterrupted one.
"""

import math
import time

import torch
from accelerate.utils import broadcast
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.evaluation.loop import predict_logits
from vitling.evaluation.predictions import Predictions
from vitling.models.inspect import layer_gradient_norms
from vitling.models.shards import gather
from vitling.optim import Schedule, peak_lr
from vitling.reports.sheet import draw_sheet
from vitling.runs.run import COMPANIONS, Run
from vitling.training.budget import MEASURED_STEPS, Timekeeper
from vitling.training.settings import Settings
from vitling.training.setup import Setup, saved_config
from vitling.training.signals import Interrupted, StopRequest
from vitling.training.state import State
from vitling.training.step import Stepper
from vitling.training.validation import NEIGHBOURS_EVERY, Neighbourhood, measure, pictures

COMPILE_WORTH_SECONDS = 900  # compile=auto compiles when more eager training than this is left
TOLD_CHANGE = 0.2  # of its epochs: a budget that moves the end by more is worth a line


class Loop:
    """A run in progress: epochs of steps, validations between them, checkpoints on the way."""

    def __init__(
        self,
        setup: Setup,
        state: State,
        schedule: Schedule,
        run: Run,
        settings: Settings,
        callback: Callback,
        stop: StopRequest,
        timekeeper: Timekeeper | None = None,
    ):
        self.setup, self.state, self.run = setup, state, run
        self.settings, self.callback, self.stop = settings, callback, stop
        self.timekeeper = timekeeper
        self.accelerator = setup.accelerator
        self.stepper = Stepper(setup, schedule, state.course)
        self.saved_at = self.began_here = time.monotonic()
        self.first_step = state.step
        self.last_loss = self.images_per_second = 0.0
        self.best_logits: Tensor | None = None  # of the best weights so far, on the validation split
        self.neighbourhood = Neighbourhood(setup, settings.reading)

    @property
    def epochs(self) -> float:
        """Of the whole run, as it stands: a budget may end it within an epoch."""
        return self.state.course.end / self.setup.steps_per_epoch

    def run_to_end(self) -> None:
        recipe, state = self.setup.recipe, self.state
        self.callback.on_start(self._facts())
        self.began_here, told = time.monotonic(), self.epochs
        stopped = ""
        while state.step < state.course.end:
            epoch = state.step // self.setup.steps_per_epoch
            self.train_epoch(epoch)
            state.average_epoch(self.setup)
            if state.step == state.course.end or (epoch + 1) % recipe.validate_every == 0:
                self.validate(epoch)
                if recipe.patience_epochs and epoch + 1 - state.best_epoch >= recipe.patience_epochs:
                    stopped = f"no better validation {self.setup.method.target.score.name} for {recipe.patience_epochs} epochs"
                    break
            if abs(self.epochs - told) > TOLD_CHANGE * told:
                told = self.epochs
                self.callback.log(f"at the speed of the last steps the budget ends after {told:.3g} epochs")
        self._finish(stopped or f"all {self.epochs:.4g} epochs are done")
        if number := self._stop_signal():  # came in the last validation: whoever called must not go on
            raise Interrupted(f"{self.run.path} is finished; the same command goes on from there", number)

    def train_epoch(self, epoch: int) -> None:
        """To the end of the epoch or of the run."""
        state, per_epoch = self.state, self.setup.steps_per_epoch
        self.training_mode()
        clock, seen = time.monotonic(), 0
        for micro_batches in self.setup.loader.epoch(epoch, state.step - epoch * per_epoch):
            # Before the step, when the last validation is done too: what is saved here is a whole number of steps.
            self._stop_if_requested()
            saving = self._is_time_to_save()
            if saving:
                self._write_checkpoint()
            self._look_at_clock()
            self.take_step(micro_batches)
            if saving and self.accelerator.is_main_process:
                self.run.confirm_checkpoint()  # its weights have given a finite loss
            seen += self.setup.recipe.batch_size
            rate = seen / (time.monotonic() - clock)
            self.callback.on_step(epoch, state.step - epoch * per_epoch, per_epoch, self.last_loss, rate)
            self._decide_compile()
            if state.step == state.course.end:
                break
        self.images_per_second = seen / max(time.monotonic() - clock, 1e-9)

    def _look_at_clock(self) -> None:
        """Move the end of the run to where its budget will be used up, now and then; every process moves it alike."""
        keeper, step = self.timekeeper, self.state.step
        if keeper is None or not keeper.is_due(step):
            return
        seconds = self._seconds() - self.state.part_began
        if not self._is_alone:
            measured = torch.tensor([seconds, keeper.validating], device=self.accelerator.device)
            seconds, keeper.validating = self.accelerator.reduce(measured, "mean").tolist()
        look = keeper.look(step, seconds)
        if look and self.accelerator.is_main_process:
            self.run.append("budget.jsonl", look)
        self.callback.on_length(self.epochs)

    def take_step(self, micro_batches: list[dict[str, Tensor]]) -> None:
        """One step, and its losses added to the epoch's sums."""
        state = self.state
        logged = self._is_last_before_validation()
        losses = self.stepper.take(
            state.step, micro_batches, before_update=self._log_gradients if logged else None, unscaled=logged
        )
        state.average_step(self.setup)
        state.step += 1
        self._account(losses)

    @property
    def _is_alone(self) -> bool:
        return self.accelerator.num_processes == 1

    def _is_last_before_validation(self) -> bool:
        after = self.state.step + 1
        return (
            after % (self.setup.steps_per_epoch * self.setup.recipe.validate_every) == 0
            or after == self.state.course.end
        )

    def _log_gradients(self) -> None:
        """Log one step's gradient norms per layer, as the optimiser sees them: too cheap to be an option."""
        main = self.accelerator.is_main_process
        if main or self.setup.sharded:
            norms = layer_gradient_norms(self.setup.model)
        if main:
            self.run.append("gradients.jsonl", {"step": self.state.step + 1, "norms": norms})

    def _account(self, losses: dict[str, Tensor]) -> None:
        """Add a step's losses to the epoch's sums; stop where one is not finite."""
        names, sums = list(losses), self.state.sums
        values = self.accelerator.reduce(torch.stack([losses[name].float() for name in names]), "mean").tolist()
        if not all(map(math.isfinite, values)):
            terms = ", ".join(f"{name}={value:.4g}" for name, value in zip(names, values, strict=True))
            self._refuse_loss(values[0], terms)
        for name, value in zip(names, values, strict=True):
            sums[name] = sums.get(name, 0.0) + value
        self.state.summed_steps += 1
        self.last_loss = values[0]

    def _refuse_loss(self, loss: float, terms: str) -> None:
        what = f"loss became {loss} at step {self.state.step} ({terms})"
        if self.accelerator.is_main_process:  # a diagnosis asks why it ended
            self.run.update(stopped=what, wall_seconds=round(self._seconds(), 3))
        raise UserError(
            f"{what}; last good checkpoint: {self.run.last_checkpoint() or 'none yet'}. "
            "Try a lower optim.lr, a longer optim.warmup_epochs or optim.clip_grad=1."
        )

    def validate(self, epoch: int) -> None:
        setup, state = self.setup, self.state
        model = state.validated_model(setup)
        began = time.monotonic()
        # Of a whole split, and as loaded weights give them again: neither a process's part of it, nor in a GPU's half precision.
        whole = self.accelerator.mixed_precision == "no" or self.accelerator.device.type == "cpu"
        kept: list[Tensor] | None = [] if self._is_alone and whole else None
        val = measure(setup, model, keep=kept)
        if not math.isfinite(val["loss"]):
            self._refuse_loss(val["loss"], f"val_loss={val['loss']}")
        others = {
            f"val_{name}_top1": measure(setup, network)["top1"] for name, network in setup.method.evaluated().items()
        }
        of_features = 0.0
        if self._is_time_for_features(epoch):
            asked = time.monotonic()
            if self.neighbourhood.measurable:
                others["val_neighbours_top1"] = self.neighbourhood.accuracy(model)
            self._draw_pictures(model)
            of_features = time.monotonic() - asked
        score = setup.method.target.score
        reached = {f"val_{key}": val[key] for key in (score.key, *score.beside) if key in val}
        record = {
            **({"part": state.part} if state.part > 1 else {}),
            "epoch": epoch + 1,
            "step": state.step,
            "lr": max(group["lr"] for group in setup.optimizer.param_groups),
            **{f"train_{name}": value / state.summed_steps for name, value in state.sums.items()},
            **reached,
            "val_loss": val["loss"],
            **others,
        }
        state.sums, state.summed_steps = {}, 0
        accepted = state.accept(
            val.get(score.key, 0.0),  # without labels the last weights are kept, whatever it is
            val["loss"],
            epoch + 1,
            images=val["images"],
            keep=setup.recipe.keep,
            error=val.get("error"),
        )
        if accepted:
            self.best_logits = torch.cat(kept) if kept else None
        assert state.best is not None  # the first validation is accepted
        if accepted:
            self._save_model("best", model)
            self._save_companions()
        taken = time.monotonic() - began
        if self.timekeeper:
            self.timekeeper.on_validation(taken, of_features, NEIGHBOURS_EVERY)
        timing = {
            "epoch": epoch + 1,
            "seconds": round(self._seconds(), 3),
            "images_per_second": round(self.images_per_second, 1),
            "validation_seconds": round(taken, 3),
        }
        if self.accelerator.is_main_process:
            self.run.append("metrics.jsonl", record)
            self.run.append("timing.jsonl", timing)
        if self.settings.trackers:
            self.accelerator.log({k: v for k, v in record.items() if k != "epoch"}, step=state.step)
        best = {score.best: state.best[0], "best_epoch": state.best_epoch} if reached else {}
        self.callback.on_validation({**record, **best}, timing)

    def _is_time_for_features(self, epoch: int) -> bool:
        """Now and then, and at the end, it is shown what was learnt without labels."""
        due = (epoch + 1) // self.setup.recipe.validate_every % NEIGHBOURS_EVERY == 0
        due = due or self.state.step == self.state.course.end
        return due and self.accelerator.is_main_process and self.setup.method.unlabelled

    def _draw_pictures(self, model: nn.Module) -> None:
        """What the method paints, or neighbours; of images that can be asked for again."""
        if any(split.shards is not None for split in self.setup.data.images.values()):
            return
        name, columns, rows = pictures(self.setup, self.neighbourhood, model)
        self.run.save_picture(name, draw_sheet(columns, rows))

    def _hand_on(self) -> None:
        """Give the run its best weights' predictions on the validation images, for the page and the calibration."""
        if not self.accelerator.is_main_process or self.setup.method.unlabelled:
            return
        data, logits = self.setup.data, self.best_logits
        if logits is None:  # found by an earlier process, in half precision or in parts
            logits = predict_logits(self.run.load_model("best"), data.val, data.preprocessing, callback=self.callback)
        self.run.validation = Predictions(
            logits, data.val, data.preprocessing, data.images["val"].names, data.images["val"].groups
        )

    def _finish(self, stopped: str) -> None:
        state = self.state
        assert state.best is not None  # the last epoch is always validated
        self._save_model("last", state.validated_model(self.setup))
        self.save_checkpoint()
        method = self.setup.method
        reached = {} if method.unlabelled else {method.target.score.recorded: state.best[0], **self._beside_best()}
        if self.accelerator.is_main_process:
            self.run.update(
                status="finished",
                stopped=stopped,
                wall_seconds=round(self._seconds(), 3),
                best={**reached, "val_loss": -state.best[1], "epoch": state.best_epoch},
                epochs_trained=whole(round(state.step / self.setup.steps_per_epoch, 3)),
                steps_trained=state.step,
            )
        self._hand_on()
        self.accelerator.wait_for_everyone()

    def _beside_best(self) -> dict[str, float]:
        """What was recorded beside the best score."""
        score, state = self.setup.method.target.score, self.state
        if not score.beside or not self.accelerator.is_main_process:
            return {}
        assert state.best is not None  # the last epoch is always validated
        of_best = (
            state.best_epoch,
            state.best[0],
        )  # a part that was trained further may have an epoch of that number, too
        records = [r for r in self.run.metrics() if (r["epoch"], r[score.recorded]) == of_best]
        return {f"val_{key}": records[-1][f"val_{key}"] for key in score.beside}

    # -- saving ----------------------------------------------------------------------------------------------------

    def _save_model(self, which: str, model: nn.Module) -> None:
        self._save_network(which, model, self.setup.recipe.model_args)

    def _save_network(self, where: str, network: nn.Module, args: dict) -> None:
        """The main process writes; the others give it their parts of a sharded network."""
        main = self.accelerator.is_main_process
        state = gather(network.state_dict(), main) if self.setup.sharded else None
        if main:
            names = [] if self.setup.method.unlabelled else self.setup.data.class_names
            self.run.save_model(where, network, names, self._build_args(network, args), state)

    def _save_companions(self) -> None:
        """Keep the networks beside the model as they are when it is best: their test accuracy is then measured with its."""
        for name, (network, args) in self.setup.method.kept().items():
            network.pretrained_cfg = {
                **network.pretrained_cfg,
                **saved_config(self.setup.data, self.setup.method.num_classes),
            }
            self._save_network(f"{COMPANIONS}/{name}", network, args)

    def _build_args(self, network: nn.Module, args: dict) -> dict:
        """What timm builds the network with, besides its number of classes."""
        seen = self.setup.data.preprocessing
        size = {"img_size": list(seen.size)} if hasattr(network, "patch_embed") else {}
        return {**args, "in_chans": seen.channels, **size}

    def save_checkpoint(self) -> None:
        self._write_checkpoint()
        if self.accelerator.is_main_process:
            self.run.confirm_checkpoint()

    def _write_checkpoint(self) -> None:
        """The main process writes: every process holds the same state or gives its part, and generators are functions of the step."""
        self.saved_at = time.monotonic()
        weights = self.state.weights(self.setup)
        if self.accelerator.is_main_process:
            state = self.state.to_checkpoint(self.setup, weights, self.run, self._seconds())
            self.run.write_checkpoint(state, self.state.step, self.state.part)

    def _stop_if_requested(self) -> None:
        """Save and leave after SIGTERM or Ctrl-C."""
        number = self._stop_signal()
        if not number:
            return
        self.save_checkpoint()
        if self.accelerator.is_main_process:
            stopped = f"interrupted at step {self.state.step}"
            self.run.update(status="interrupted", stopped=stopped, wall_seconds=self._seconds())
        raise Interrupted(f"saved {self.run.path} at step {self.state.step}; the same command resumes it", number)

    def _is_time_to_save(self) -> bool:
        """By the main process's clock, where all processes have to take part."""
        due = time.monotonic() - self.saved_at > self.settings.checkpoint_seconds
        if not self.setup.sharded:
            return due
        return bool(broadcast(torch.tensor([due], device=self.accelerator.device)).item())

    def _stop_signal(self) -> int:
        """The signal to stop after, of any of the processes; 0 where there is none."""
        number = self.stop.signal_number
        if self._is_alone:
            return number
        return int(self.accelerator.gather(torch.tensor([number], device=self.accelerator.device)).max())

    def _decide_compile(self) -> None:
        """compile=auto: compile once the measured speed says that enough eager training is left to repay it."""
        state, total = self.state, self.state.course.end
        steps_here = state.step - self.first_step
        if state.compiled is not None or steps_here < min(MEASURED_STEPS, total - self.first_step):
            return
        left = (time.monotonic() - self.began_here) / steps_here * (total - state.step)
        state.compiled = left > COMPILE_WORTH_SECONDS
        if state.compiled:
            self.setup.method.compile_networks()
        verb = "compiling: that is worth it" if state.compiled else "not compiling: that is not worth it"
        self.callback.log(f"compile=auto: {left:.0f} s of training are left, {verb} above {COMPILE_WORTH_SECONDS} s")

    def training_mode(self) -> None:
        self.setup.prepared.train()
        for module in self.setup.model.modules():  # frozen parts keep their running statistics too
            parameters = list(module.parameters())
            if parameters and not any(p.requires_grad for p in parameters):
                module.eval()

    def _seconds(self) -> float:
        return self.state.seconds_before + time.monotonic() - self.settings.began

    def _facts(self) -> dict:
        data, recipe = self.setup.data, self.setup.recipe
        return {
            "model": recipe.model,
            "parameters": sum(p.numel() for p in self.setup.model.parameters()),
            "method": recipe.method,
            "data": data.dataset.name,
            "classes": self.setup.method.num_classes,
            "labels": self.setup.method.target.kind,
            "train_images": len(data.train),
            "val_images": len(data.val),
            "input": [data.preprocessing.channels, *data.preprocessing.size],
            "epochs": whole(round(self.epochs, 2)),
            "steps_per_epoch": self.setup.steps_per_epoch,
            "lr": peak_lr(recipe),
            "device": str(self.accelerator.device),
            "processes": self.accelerator.num_processes,
            "start_epoch": self.state.step // self.setup.steps_per_epoch,
        }


def whole(number: float) -> float:
    """The number, as an integer where it is one."""
    return int(number) if number == int(number) else number
