"""train(recipe, run_dir): the only training loop.

It knows no method: a method turns a batch into losses and, where it must, losses into gradients. Everything random in a
step is a function of (seed, step), so a checkpoint holds no generator states and a resumed run repeats the uninterrupted one.
"""

import copy
import math
import random
import time
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.loader import TrainLoader, step_seed
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.training_data import TrainingData, prepare_training_data
from vitling.errors import UserError
from vitling.evaluation.loop import validate
from vitling.methods import Surroundings, create_method, prepare_method
from vitling.models import default_size
from vitling.models.inspect import layer_gradient_norms
from vitling.optim import SAM, Schedule, create_optimizer, peak_lr
from vitling.recipes import Recipe, from_dict, scale_epochs, to_dict
from vitling.runs.run import Run, asked_for, environment, recipe_digest
from vitling.training.settings import Settings, check_precision
from vitling.training.setup import class_weights, create_augment, create_model
from vitling.training.signals import Interrupted, interruption

MEASURED_STEPS = 12  # of a run with a budget or compile=auto
MEASURED_SHARE = 0.1  # of a budget, at most, for measuring
PREPARING_SHARE = 0.25  # of a budget, for a run that the method needs first
BUDGET_USED = 0.92  # the rest is for what the first steps do not show
SMALL_BATCH = 2**20  # pixels: larger ones always run on all threads
COMPILE_WORTH_SECONDS = 900  # compile=auto compiles when more eager training than this is left


def train(
    recipe: Recipe, run_dir: str | Path, *, settings: Settings | None = None, callback: Callback | None = None
) -> Run:
    """Train a recipe into a run directory; into the same directory again, resume it."""
    settings, callback = settings or Settings(), callback or Callback()
    accelerator = create_accelerator(settings, run_dir)
    threads = torch.get_num_threads()
    try:
        run = _train_with(accelerator, recipe, run_dir, settings, callback)
    finally:
        torch.set_num_threads(threads)
    accelerator.end_training()
    return run


def _train_with(
    accelerator: Accelerator, recipe: Recipe, run_dir: str | Path, settings: Settings, callback: Callback
) -> Run:
    recipe = from_dict(to_dict(recipe))  # declared types, as if read from its file: the run is compared with that
    run = Run(run_dir)
    with run.locked() if accelerator.is_main_process else nullcontext():
        asked = asked_for(recipe, settings.budget_seconds)
        resuming = run.claim(asked)
        accelerator.wait_for_everyone()
        if run.finished:
            callback.log(f"{run.path} is finished already: {run.info['stopped']}.")
            return run
        if resuming and (run.path / "recipe.yaml").exists():  # written last when a run begins
            recipe = run.recipe  # resolved when the run began
        with interruption() as wish:
            Training(recipe, asked, run, settings, callback, accelerator, wish).run_to_end()
    return run


class Training:
    """A run in progress: everything a checkpoint has to bring back, and the loop over it."""

    def __init__(
        self, recipe: Recipe, asked: dict, run: Run, settings: Settings, callback: Callback, accelerator, interruption
    ):
        self.run, self.asked, self.settings, self.callback = run, asked, settings, callback
        self.accelerator, self.interruption = accelerator, interruption
        self.began = settings.began
        self.prepared: list[Run] = []  # what the method needed first
        self.data = self._load_data(recipe)
        self.recipe = replace(recipe, img_size=self.data.preprocessing.size, channels=self.data.preprocessing.channels)
        state = self._load_checkpoint()
        self.step, self.total_steps, self.schedule, self.ema = 0, math.inf, None, None
        self._build(load_init=state is None)
        if state is None:
            self._try_a_step()
            if settings.budget_seconds:
                self._fit_to_budget()
        self.schedule = Schedule(self.optimizer, self.recipe, self.loader.steps_per_epoch)
        self.total_steps = self.recipe.epochs * self.loader.steps_per_epoch
        if self.recipe.ema_decay:
            self.ema = ModelEmaV3(self.model, decay=self.recipe.ema_decay, use_warmup=self.recipe.ema_warmup)
        self.best, self.best_epoch, self.sums, self.seconds_before = None, 0, {}, 0.0
        self.compiled: bool | None = {"off": False, "on": True, "auto": None}[self.recipe.compile]
        if state is not None:
            self._restore(state)
        elif accelerator.is_main_process:
            run.cut_logs(dict.fromkeys(run.sizes(), 0))
            self._describe()
        if settings.trackers:
            accelerator.init_trackers("vitling", config={"model": self.recipe.model, "data": self.recipe.data})
        if self.compiled:
            self.unwrapped.compile_networks()
        self.saved_at = time.monotonic()

    # -- building --------------------------------------------------------------------------------------------------

    def _load_data(self, recipe: Recipe) -> TrainingData:
        size = as_size(recipe.img_size) or default_size(recipe.model)
        with self.accelerator.main_process_first():  # one process downloads, the others find the files
            return prepare_training_data(recipe, self.settings.reading, model_size=size, callback=self.callback)

    def _build(self, load_init: bool) -> None:
        recipe, data = self.recipe, self.data
        for note in data.dataset.notes:
            self.callback.log(note)
        method_args = prepare_method(recipe.method, self._surroundings(), recipe.method_args)
        seed_everything(recipe.seed, "init")
        model, what_was_loaded = create_model(recipe, data, load_init)
        if what_was_loaded:
            self.callback.log(what_was_loaded)
        method = create_method(
            recipe.method,
            model,
            num_classes=len(data.class_names),
            class_weights=class_weights(data.train.labels, len(data.class_names)) if recipe.balance == "loss" else None,
            **method_args,
        )
        if self.accelerator.num_processes > 1 and self.accelerator.device.type != "cpu":
            method = nn.SyncBatchNorm.convert_sync_batchnorm(method)
        lr = peak_lr(recipe)
        optimizer = create_optimizer(method.parameter_groups(recipe.optim, lr), recipe.optim, lr)
        self.method, self.optimizer = self.accelerator.prepare(method, optimizer)
        self.unwrapped = self.accelerator.unwrap_model(self.method)
        self.model = self.unwrapped.model
        self.sam = SAM(self.method.parameters(), recipe.optim.sam_rho) if recipe.optim.sam_rho else None
        self.loader = TrainLoader(
            data.train,
            create_augment(recipe, data),
            recipe=recipe,
            device=self.accelerator.device,
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
            with_geometry=self.unwrapped.wants_geometry,
        )

    def _surroundings(self) -> Surroundings:
        """What the method may do before it is built. All of it is part of this run, and found again when the run resumes."""

        def begin() -> None:
            if self.accelerator.is_main_process:
                self.run.update(asked=self.asked, status="preparing")
            self.accelerator.wait_for_everyone()

        def train_first(recipe: Recipe, name: str) -> Run:
            begin()
            budget = self.settings.budget_seconds
            settings = replace(self.settings, trackers=(), budget_seconds=budget and budget * PREPARING_SHARE)
            run = _train_with(self.accelerator, recipe, self.run.path / name, settings, self.callback)
            self.accelerator.free_memory()  # forgets the network and its optimiser
            self.prepared.append(run)
            return run

        def once(function):
            begin()
            with self.accelerator.main_process_first():
                return function()

        return Surroundings(
            recipe=self.recipe,
            data=self.data,
            folder=self.run.path,
            callback=self.callback,
            train=train_first,
            once=once,
        )

    def _describe(self) -> None:
        """Write down what this run is, before its first step."""
        data = self.data
        self.run.update(
            asked=self.asked,
            status="running",
            class_names=data.class_names,
            preprocessing=data.preprocessing,
            data=dict(
                name=data.dataset.name,
                fingerprint=data.dataset.fingerprint,
                train_images=len(data.train),
                val_images=len(data.val),
                skipped=data.dataset.skipped,
                splits=sorted(data.dataset.splits),
            ),
            parameters=sum(p.numel() for p in self.model.parameters()),
            environment=environment(),
            precision=self.settings.precision,
            processes=self.accelerator.num_processes,
        )
        self.run.save_recipe(self.recipe)

    def _try_a_step(self) -> None:
        """Compute one batch's gradients before the run is written down: what cannot train says so now.

        On a CPU it also chooses one thread or all: small models run faster on one, above all where other programs want
        the cores too. A run that begins anew keeps the number it had.
        """
        before = copy.deepcopy(self.unwrapped.state_dict())
        self.method.train()
        most = torch.get_num_threads()
        fixed = self.settings.threads or self.run.info.get("environment", {}).get("threads")
        pixels = self.recipe.batch_size * math.prod(self.data.preprocessing.size)
        measured = (
            self.accelerator.device.type == "cpu" and self.accelerator.num_processes == 1 and pixels < SMALL_BATCH
        )
        candidates = [fixed] if fixed else [1, most, 1, most] if measured and most > 1 else [most]
        micro_batches = next(self.loader.epoch(0))
        seconds = {}
        for threads in candidates:
            torch.set_num_threads(threads)
            began = time.perf_counter()
            try:
                self._gradients(micro_batches)
            except (RuntimeError, TypeError, ValueError) as error:
                raise UserError(f"these settings cannot train: {str(error).strip().splitlines()[0]}") from error
            self.optimizer.zero_grad()
            seconds[threads] = time.perf_counter() - began  # the second time counts
        self.unwrapped.load_state_dict(before)
        torch.set_num_threads(min(seconds, key=seconds.get))

    def _fit_to_budget(self) -> None:
        """Measure the first steps, then choose the number of epochs that the time allows."""
        step_seconds, fixed, validation = self._measure()
        epoch_seconds = step_seconds * self.loader.steps_per_epoch + validation / self.recipe.validate_every
        left = self.settings.budget_seconds * BUDGET_USED - fixed
        epochs = min(int(left / epoch_seconds), 100_000)
        if epochs < 1:
            raise UserError(
                f"one epoch takes about {epoch_seconds:.0f} s here and {max(left, 0):.0f} s of the budget are left; "
                "raise --budget, lower fraction= or choose a smaller model."
            )
        self.recipe = scale_epochs(self.recipe, epochs)
        self.loader.recipe = self.recipe
        self.callback.log(f"a step takes {step_seconds * 1000:.0f} ms, so the budget allows {epochs} epochs")

    def _measure(self) -> tuple[float, float, float]:
        """Seconds of a step, of everything so far, and of a validation. The weights are as before afterwards."""
        before = copy.deepcopy((self.unwrapped.state_dict(), self.optimizer.state_dict()))
        ticks = [time.perf_counter()]  # between them: reading, augmenting and learning from a batch
        for micro_batches in self._endless_steps():
            self._gradient_step(micro_batches)
            ticks.append(time.perf_counter())
            enough = ticks[-1] - ticks[0] > MEASURED_SHARE * self.settings.budget_seconds
            if len(ticks) > MEASURED_STEPS or (enough and len(ticks) > 3):
                break
        began = time.perf_counter()
        seen = validate(self.model, self.data.val, self.data.preprocessing, self.accelerator, batches=1)["images"]
        validation = (time.perf_counter() - began) / seen * len(self.data.val)
        self.unwrapped.load_state_dict(before[0])
        self.optimizer.load_state_dict(before[1])
        step_seconds = (ticks[-1] - ticks[1]) / (len(ticks) - 2)  # the first one warms up
        spent = time.monotonic() - self.began
        measured = torch.tensor([step_seconds, spent, validation], device=self.accelerator.device)
        return tuple(self.accelerator.reduce(measured, "mean").tolist())

    def _endless_steps(self):
        while True:
            yield from self.loader.epoch(0)

    def timed_turn(self, steps: int) -> tuple[list[float], float]:
        """Seconds of each of some steps and of a validation, with all that they read and write. Only for measuring."""
        self.step, self.images_per_second = 0, 0.0
        self._training_mode()
        ticks = [time.perf_counter()]
        for micro_batches in islice(self._endless_steps(), steps):
            losses = self._gradient_step(micro_batches)
            self.step += 1
            self._account(losses)
            ticks.append(time.perf_counter())
        self._validate(epoch=0)
        return [after - before for before, after in pairwise(ticks)], time.perf_counter() - ticks[-1]

    # -- the loop --------------------------------------------------------------------------------------------------

    def run_to_end(self) -> None:
        recipe, per_epoch = self.recipe, self.loader.steps_per_epoch
        self.callback.on_start(self._facts())
        self.clock, self.first_step = time.monotonic(), self.step
        stopped = f"all {recipe.epochs} epochs are done"
        for epoch in range(self.step // per_epoch, recipe.epochs):
            self._train_epoch(epoch)
            last = epoch + 1 == recipe.epochs
            if last or (epoch + 1) % recipe.validate_every == 0:
                self._validate(epoch)
                if recipe.patience_epochs and epoch + 1 - self.best_epoch >= recipe.patience_epochs:
                    stopped = f"no better validation accuracy for {recipe.patience_epochs} epochs"
                    break
        self._finish(stopped)

    def _train_epoch(self, epoch: int) -> None:
        per_epoch = self.loader.steps_per_epoch
        start = self.step - epoch * per_epoch
        self._training_mode()
        clock, seen = time.monotonic(), 0
        for micro_batches in self.loader.epoch(epoch, start):
            # Before the step, when the last validation is done too: what is saved here is a whole number of steps.
            self._pause_if_asked()
            saving = time.monotonic() - self.saved_at > self.settings.checkpoint_seconds
            if saving:
                self._write_checkpoint()
            losses = self._gradient_step(micro_batches)
            self.step += 1
            self._account(losses)
            if saving and self.accelerator.is_main_process:
                self.run.confirm_checkpoint()  # its weights have given a finite loss
            seen += self.recipe.batch_size
            rate = seen / (time.monotonic() - clock)
            self.callback.on_step(epoch, self.step - epoch * per_epoch, per_epoch, self.last_loss, rate)
            self._decide_compile()
        self.images_per_second = seen / max(time.monotonic() - clock, 1e-9)

    def _gradient_step(self, micro_batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """One optimiser step."""
        if self.schedule:
            self.schedule.set(self.step)
        losses = self._gradients(micro_batches)
        if self.sam:
            self.sam.climb()
            self.optimizer.zero_grad()
            self._gradients(micro_batches)
            self.sam.descend()
        self._clip()
        if self._before_validation():
            self._log_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema:
            self.ema.update(self.model, self.step)
        return losses

    def _gradients(self, micro_batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Gradients of the mean loss over the micro-batches; processes exchange them once, at the last one."""
        seed_everything(self.recipe.seed, "step", self.step, self.accelerator.process_index)
        progress = self.step / self.total_steps
        parts, total = len(micro_batches), {}
        for number, batch in enumerate(micro_batches, start=1):
            with self.accelerator.no_sync(self.method) if number < parts else nullcontext():
                losses = self.method(batch, progress)
                self.accelerator.backward(losses["loss"] / parts)
            for name, value in losses.items():
                total[name] = total.get(name, 0) + value.detach() / parts
        return total | self.unwrapped.finish_gradients(self._average)

    def _average(self, tensors: list[Tensor]) -> list[Tensor]:
        """Means over the processes, in one message."""
        if self.accelerator.num_processes == 1:
            return tensors
        flat = self.accelerator.reduce(torch.cat([tensor.flatten() for tensor in tensors]), "mean")
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def _clip(self) -> None:
        limits = [limit for limit in self.unwrapped.clip_limits(self.recipe.optim.clip_grad) if limit[1]]
        if limits or self._before_validation():
            self.accelerator.unscale_gradients()  # once, however many networks are clipped
        for parameters, norm in limits:
            nn.utils.clip_grad_norm_(parameters, norm)

    def _before_validation(self) -> bool:
        """Whether this step is the last one before a regular validation."""
        return self.schedule and (self.step + 1) % (self.loader.steps_per_epoch * self.recipe.validate_every) == 0

    def _log_gradients(self) -> None:
        """Write down one step's gradient norms per layer, as the optimiser sees them: too cheap to be an option."""
        if self.accelerator.is_main_process:
            norms = layer_gradient_norms(self.model)
            self.run.append("gradients.jsonl", {"step": self.step + 1, "norms": norms})

    def _account(self, losses: dict[str, Tensor]) -> None:
        """Add a step's losses to the epoch's sums; stop where one is no number."""
        names = list(losses)
        values = torch.stack([losses[name].float() for name in names])
        values = self.accelerator.reduce(values, "mean").tolist()
        if not all(map(math.isfinite, values)):
            terms = ", ".join(f"{name}={value:.4g}" for name, value in zip(names, values, strict=True))
            self._refuse_loss(values[0], terms)
        for name, value in zip(names, values, strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.last_loss = values[0]

    def _refuse_loss(self, loss: float, terms: str) -> None:
        raise UserError(
            f"loss became {loss} at step {self.step} ({terms}); last good checkpoint: "
            f"{self.run.last_checkpoint() or 'none yet'}. "
            "Try a lower optim.lr, a longer optim.warmup_epochs or optim.clip_grad=1."
        )

    def _validate(self, epoch: int) -> None:
        model = self.ema.module if self.ema else self.model
        began = time.monotonic()
        val = validate(model, self.data.val, self.data.preprocessing, self.accelerator)
        if not math.isfinite(val["loss"]):
            self._refuse_loss(val["loss"], f"val_loss={val['loss']}")
        others = {
            f"val_{name}_top1": validate(network, self.data.val, self.data.preprocessing, self.accelerator)["top1"]
            for name, network in self.unwrapped.evaluated().items()
        }
        steps = self.loader.steps_per_epoch * self.recipe.validate_every
        counted = (self.step - 1) % steps + 1
        record = {
            "epoch": epoch + 1,
            "step": self.step,
            "lr": max(group["lr"] for group in self.optimizer.param_groups),
            **{f"train_{name}": value / counted for name, value in self.sums.items()},
            "val_top1": val["top1"],
            "val_loss": val["loss"],
            **others,
        }
        self.sums = {}
        score = (val["top1"], -val["loss"])  # of equal accuracies the one with the smaller loss
        improved = self.best is None or score > self.best
        if improved:
            self.best, self.best_epoch = score, epoch + 1
        timing = {
            "epoch": epoch + 1,
            "seconds": round(self._seconds(), 3),
            "images_per_second": round(self.images_per_second, 1),
            "validation_seconds": round(time.monotonic() - began, 3),
        }
        if self.accelerator.is_main_process:
            self.run.append("metrics.jsonl", record)
            self.run.append("timing.jsonl", timing)
            if improved:
                self._save_model("best", model)
        if self.settings.trackers:
            self.accelerator.log({k: v for k, v in record.items() if k != "epoch"}, step=self.step)
        self.callback.on_validation({**record, "best_top1": self.best[0], "best_epoch": self.best_epoch}, timing)

    def _finish(self, stopped: str) -> None:
        if self.accelerator.is_main_process:
            self._save_model("last", self.ema.module if self.ema else self.model)
            self._save_checkpoint()
            self.run.update(status="finished", stopped=stopped, **self._summary())
        self.accelerator.wait_for_everyone()

    # -- state -----------------------------------------------------------------------------------------------------

    def _save_model(self, which: str, model: nn.Module) -> None:
        args = {**self.recipe.model_args, "in_chans": self.data.preprocessing.channels}
        if hasattr(model, "patch_embed"):
            args["img_size"] = list(self.data.preprocessing.size)
        self.run.save_model(which, model, self.data.class_names, args)

    def _save_checkpoint(self) -> None:
        self._write_checkpoint()
        if self.accelerator.is_main_process:
            self.run.confirm_checkpoint()

    def _write_checkpoint(self) -> None:
        """The main process writes: every process holds the same state, and generators are functions of the step."""
        self.saved_at = time.monotonic()
        if not self.accelerator.is_main_process:
            return
        state = {
            "recipe": recipe_digest(self.recipe),
            "data": self.data.dataset.fingerprint,
            "method": self.unwrapped.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema else None,
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler else None,
            "step": self.step,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "sums": self.sums,
            "seconds": self._seconds(),
            "compiled": self.compiled,
            "threads": torch.get_num_threads(),
            "logs": self.run.sizes(),
        }
        self.run.write_checkpoint(state, self.step)

    def _load_checkpoint(self) -> dict | None:
        state, torn = self.run.load_checkpoint()
        for line in torn:
            self.callback.log(line)
        if state is not None and state["recipe"] != recipe_digest(self.recipe):
            raise UserError(
                f"the checkpoint in {self.run.path} is of another recipe than its recipe.yaml; "
                "restore that file, or train into another folder with --out."
            )
        if state is not None and state["data"] != self.data.dataset.fingerprint:
            raise UserError(
                f"the data {self.recipe.data} has changed since {self.run.path} was interrupted; "
                "restore it, or train into another folder with --out."
            )
        return state

    def _restore(self, state: dict) -> None:
        self.unwrapped.load_state_dict(state["method"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.ema:
            self.ema.module.load_state_dict(state["ema"])
        if self.accelerator.scaler and state["scaler"]:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.step, self.best_epoch, self.sums = state["step"], state["best_epoch"], state["sums"]
        self.best = tuple(state["best"]) if state["best"] else None
        self.seconds_before, self.compiled = state["seconds"], state["compiled"]
        torch.set_num_threads(self.settings.threads or state["threads"])  # another number would round differently
        if self.accelerator.is_main_process:
            self.run.cut_logs(state["logs"])
            self.run.update(status="running")
        self.callback.log(f"resuming {self.run.path} at step {self.step}")

    def _pause_if_asked(self) -> None:
        """Save and leave after SIGTERM or Ctrl-C."""
        asked = self.interruption.asked
        if self.accelerator.num_processes > 1:
            flag = torch.tensor(float(asked), device=self.accelerator.device)
            asked = self.accelerator.reduce(flag, "sum").item() > 0
        if asked:
            self._save_checkpoint()
            if self.accelerator.is_main_process:
                self.run.update(
                    status="interrupted", stopped=f"interrupted at step {self.step}", wall_seconds=self._seconds()
                )
            raise Interrupted(f"saved {self.run.path} at step {self.step}; the same command resumes it")

    def _decide_compile(self) -> None:
        """compile=auto: compile once the measured speed says that enough eager training is left to repay it."""
        steps_here = self.step - self.first_step
        if self.compiled is not None or steps_here < min(MEASURED_STEPS, self.total_steps):
            return
        left = (time.monotonic() - self.clock) / steps_here * (self.total_steps - self.step)
        self.compiled = left > COMPILE_WORTH_SECONDS
        if self.compiled:
            self.unwrapped.compile_networks()
        verb = "compiling: that is worth it" if self.compiled else "not compiling: that is not worth it"
        self.callback.log(f"compile=auto: {left:.0f} s of training are left, {verb} above {COMPILE_WORTH_SECONDS} s")

    def _training_mode(self) -> None:
        self.method.train()
        for module in self.model.modules():  # frozen parts keep their running statistics too
            parameters = list(module.parameters())
            if parameters and not any(p.requires_grad for p in parameters):
                module.eval()

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.began

    def _facts(self) -> dict:
        data, recipe = self.data, self.recipe
        return {
            "model": recipe.model,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "method": recipe.method,
            "data": data.dataset.name,
            "classes": len(data.class_names),
            "train_images": len(data.train),
            "val_images": len(data.val),
            "input": [data.preprocessing.channels, *data.preprocessing.size],
            "epochs": recipe.epochs,
            "steps_per_epoch": self.loader.steps_per_epoch,
            "lr": peak_lr(recipe),
            "device": str(self.accelerator.device),
            "processes": self.accelerator.num_processes,
            "start_epoch": self.step // self.loader.steps_per_epoch,
        }

    def _summary(self) -> dict:
        return {
            "wall_seconds": round(self._seconds(), 3),
            "best": {"val_top1": self.best[0], "val_loss": -self.best[1], "epoch": self.best_epoch},
            "epochs_trained": self.step // self.loader.steps_per_epoch,
        }


def seed_everything(*parts: object) -> None:
    """Seed torch, NumPy and Python from the parts."""
    seed = step_seed(*parts)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def create_accelerator(settings: Settings, run_dir: str | Path) -> Accelerator:
    check_precision(settings.precision)
    for tracker in settings.trackers:
        if find_spec(tracker) is None:
            raise UserError(f'--{tracker} needs the package {tracker}: pip install "vitling[trackers]".')
    AcceleratorState._reset_state()  # accelerate refuses a second precision in one process, a study needs it
    return Accelerator(
        cpu=not torch.accelerator.is_available(),  # without this, several processes on CPUs do not find each other
        mixed_precision=settings.precision,
        log_with=list(settings.trackers) or None,
        project_dir=str(run_dir),
    )
