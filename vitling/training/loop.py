"""train(recipe, run_dir): the only training loop.

It knows no method: a method turns a batch into losses and, where it must, losses into gradients. Everything random in a
step is a function of (seed, step), so a checkpoint holds no generator states and a resumed run repeats the uninterrupted one.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.training_data import TrainingData, prepare_training_data
from vitling.data.sources.dataset import Dataset
from vitling.errors import UserError
from vitling.evaluation.loop import validate
from vitling.evaluation.predictions import Predictions
from vitling.methods import Preparation, prepare_method
from vitling.models import default_size
from vitling.models.inspect import layer_gradient_norms
from vitling.optim import Schedule, peak_lr
from vitling.recipes import Recipe, from_dict, to_dict
from vitling.runs.run import Run, asked_for, environment, recipe_digest
from vitling.training.budget import FIRST_RUN_SHARE, MEASURED_STEPS, fit_to_budget
from vitling.training.measurement import measure_speed, try_a_step
from vitling.training.random_state import callers_state_kept
from vitling.training.settings import Settings
from vitling.training.setup import Setup, build_setup, create_accelerator
from vitling.training.signals import Interrupted, StopRequest, stop_on_signals
from vitling.training.state import State
from vitling.training.step import Stepper

COMPILE_WORTH_SECONDS = 900  # compile=auto compiles when more eager training than this is left


def train(
    recipe: Recipe,
    run_dir: str | Path,
    *,
    settings: Settings | None = None,
    dataset: Dataset | None = None,
    callback: Callback | None = None,
) -> Run:
    """Train a recipe into a run directory; into the same directory again, resume it.

    `dataset` is the recipe's data where it has been opened already, as by `vitling.plan`. The best weights' predictions on the
    validation images are passed on in the run that is returned.
    """
    settings, callback = settings or Settings(), callback or Callback()
    with callers_state_kept():
        accelerator = create_accelerator(settings, run_dir)
        run = train_into(Run(run_dir), recipe, settings, callback, accelerator, dataset)
        accelerator.end_training()
    return run


def train_into(
    run: Run,
    recipe: Recipe,
    settings: Settings,
    callback: Callback,
    accelerator: Accelerator,
    dataset: Dataset | None = None,
) -> Run:
    """The same on devices that are set up already: nothing where the run is finished, else what is left of it."""
    recipe = from_dict(to_dict(recipe))  # declared types, as if read from its file: the run is compared with that
    with run.locked() if accelerator.is_main_process else nullcontext():
        asked = asked_for(recipe, settings.budget_seconds)
        resuming = run.claim(asked)
        accelerator.wait_for_everyone()
        if run.finished:
            callback.log(f"{run.path} is finished already: {run.info['stopped']}.")
            return run
        if resuming and (run.path / "recipe.yaml").exists():  # written last when a run begins
            recipe = run.recipe  # resolved when the run began
        with stop_on_signals() as stop:
            open_loop(run, recipe, asked, settings, callback, accelerator, stop, dataset).run_to_end()
    return run


def open_loop(
    run: Run,
    recipe: Recipe,
    asked: dict,
    settings: Settings,
    callback: Callback,
    accelerator: Accelerator,
    stop: StopRequest,
    dataset: Dataset | None = None,
) -> "Loop":
    """A run at its first step, or at that of its last checkpoint: data read, method prepared, everything built."""
    data = _read_data(recipe, settings, callback, accelerator, dataset)
    recipe = replace(recipe, img_size=data.preprocessing.size, channels=data.preprocessing.channels)
    checkpoint = _read_checkpoint(run, recipe, data, callback)
    preparation = _preparation(run, recipe, data, asked, settings, callback, accelerator)
    setup = build_setup(
        recipe,
        data,
        accelerator,
        method_args=prepare_method(recipe.method, preparation, recipe.method_args),
        load_init=checkpoint is None,
        callback=callback,
    )
    if checkpoint is None:
        try_a_step(setup, settings.threads or run.info.get("environment", {}).get("threads"))
        if settings.budget_seconds:
            speed = measure_speed(setup, settings.began, settings.budget_seconds)
            setup.change_recipe(fit_to_budget(recipe, speed, settings.budget_seconds))
            callback.log(f"a step takes {1000 * speed.step:.0f} ms, so the budget allows {setup.recipe.epochs} epochs")
    schedule = Schedule(
        setup.optimizer, setup.recipe, setup.steps_per_epoch
    )  # refuses what cannot be, before it is written
    state = State.begin(setup)
    if checkpoint is not None:
        state.restore(checkpoint, setup, settings.threads)
        callback.log(f"resuming {run.path} at step {state.step}")
    if accelerator.is_main_process:
        if checkpoint is None:
            run.cut_logs(dict.fromkeys(run.sizes(), 0))
            _describe(run, setup, asked, settings)
        else:
            run.cut_logs(checkpoint["logs"])
            run.update(status="running")
    if settings.trackers:
        accelerator.init_trackers("vitling", config={"model": recipe.model, "data": recipe.data})
    if state.compiled:
        setup.method.compile_networks()
    return Loop(setup, state, schedule, run, settings, callback, stop)


def _read_data(
    recipe: Recipe, settings: Settings, callback: Callback, accelerator: Accelerator, dataset: Dataset | None
) -> TrainingData:
    size = as_size(recipe.img_size) or default_size(recipe.model)
    with accelerator.main_process_first():  # one process downloads, the others find the files
        data = prepare_training_data(recipe, settings.reading, model_size=size, dataset=dataset, callback=callback)
    for note in data.dataset.notes:
        callback.log(note)
    return data


def _read_checkpoint(run: Run, recipe: Recipe, data: TrainingData, callback: Callback) -> dict | None:
    """The newest checkpoint that is whole, if it is of this recipe and this data."""
    checkpoint, corrupted = run.load_checkpoint()
    for line in corrupted:
        callback.log(line)
    if checkpoint is not None and checkpoint["recipe"] != recipe_digest(recipe):
        raise UserError(
            f"the checkpoint in {run.path} is of another recipe than its recipe.yaml; "
            "restore that file, or train into another folder."
        )
    if checkpoint is not None and checkpoint["data"] != data.dataset.fingerprint:
        raise UserError(
            f"the data {recipe.data} has changed since {run.path} was interrupted; "
            "restore it, or train into another folder."
        )
    return checkpoint


def _preparation(
    run: Run,
    recipe: Recipe,
    data: TrainingData,
    asked: dict,
    settings: Settings,
    callback: Callback,
    accelerator: Accelerator,
) -> Preparation:
    """What the method may do before it is built. All of it is part of this run, and found again when the run resumes."""

    def begin() -> None:
        if accelerator.is_main_process:
            run.update(asked=asked, status="preparing")
        accelerator.wait_for_everyone()

    def train_first(first: Recipe, name: str) -> Run:
        begin()
        budget = settings.budget_seconds
        own = replace(settings, trackers=(), budget_seconds=budget and budget * FIRST_RUN_SHARE)
        trained = train_into(Run(run.path / name), first, own, callback, accelerator, data.dataset)
        accelerator.free_memory()  # forgets the network and its optimiser
        return trained

    def once(function):
        begin()
        with accelerator.main_process_first():
            return function()

    return Preparation(recipe, data, run.path, callback, train_first, once)


def _describe(run: Run, setup: Setup, asked: dict, settings: Settings) -> None:
    """Write down what this run is, before its first step."""
    data = setup.data
    run.update(
        asked=asked,
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
        parameters=sum(p.numel() for p in setup.model.parameters()),
        environment=environment(),
        precision=settings.precision,
        processes=setup.accelerator.num_processes,
    )
    run.save_recipe(setup.recipe)


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
    ):
        self.setup, self.state, self.run = setup, state, run
        self.settings, self.callback, self.stop = settings, callback, stop
        self.accelerator = setup.accelerator
        self.stepper = Stepper(setup, schedule)
        self.saved_at = self.began_here = time.monotonic()
        self.first_step = state.step
        self.last_loss = self.images_per_second = 0.0
        self.best_logits: Tensor | None = None  # of the best weights so far, on the validation split

    def run_to_end(self) -> None:
        recipe, state = self.setup.recipe, self.state
        self.callback.on_start(self._facts())
        self.began_here = time.monotonic()
        stopped = f"all {recipe.epochs} epochs are done"
        for epoch in range(state.step // self.setup.steps_per_epoch, recipe.epochs):
            self.train_epoch(epoch)
            last = epoch + 1 == recipe.epochs
            if last or (epoch + 1) % recipe.validate_every == 0:
                self.validate(epoch)
                if recipe.patience_epochs and epoch + 1 - state.best_epoch >= recipe.patience_epochs:
                    stopped = f"no better validation accuracy for {recipe.patience_epochs} epochs"
                    break
        self._finish(stopped)

    def train_epoch(self, epoch: int) -> None:
        state, per_epoch = self.state, self.setup.steps_per_epoch
        self.training_mode()
        clock, seen = time.monotonic(), 0
        for micro_batches in self.setup.loader.epoch(epoch, state.step - epoch * per_epoch):
            # Before the step, when the last validation is done too: what is saved here is a whole number of steps.
            self._stop_if_requested()
            saving = time.monotonic() - self.saved_at > self.settings.checkpoint_seconds
            if saving:
                self._write_checkpoint()
            self.take_step(micro_batches)
            if saving and self.accelerator.is_main_process:
                self.run.confirm_checkpoint()  # its weights have given a finite loss
            seen += self.setup.recipe.batch_size
            rate = seen / (time.monotonic() - clock)
            self.callback.on_step(epoch, state.step - epoch * per_epoch, per_epoch, self.last_loss, rate)
            self._decide_compile()
        self.images_per_second = seen / max(time.monotonic() - clock, 1e-9)

    def take_step(self, micro_batches: list[dict[str, Tensor]]) -> None:
        """One step, and its losses added to the epoch's sums."""
        state = self.state
        logged = self._is_last_before_validation()
        losses = self.stepper.take(
            state.step, micro_batches, before_update=self._log_gradients if logged else None, unscaled=logged
        )
        if state.ema:
            state.ema.update(self.setup.model, state.step)
        state.step += 1
        self._account(losses)

    @property
    def _is_alone(self) -> bool:
        return self.accelerator.num_processes == 1

    def _is_last_before_validation(self) -> bool:
        return (self.state.step + 1) % (self.setup.steps_per_epoch * self.setup.recipe.validate_every) == 0

    def _log_gradients(self) -> None:
        """Log one step's gradient norms per layer, as the optimiser sees them: too cheap to be an option."""
        if self.accelerator.is_main_process:
            norms = layer_gradient_norms(self.setup.model)
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
        self.last_loss = values[0]

    def _refuse_loss(self, loss: float, terms: str) -> None:
        raise UserError(
            f"loss became {loss} at step {self.state.step} ({terms}); last good checkpoint: "
            f"{self.run.last_checkpoint() or 'none yet'}. "
            "Try a lower optim.lr, a longer optim.warmup_epochs or optim.clip_grad=1."
        )

    def validate(self, epoch: int) -> None:
        setup, state = self.setup, self.state
        model = state.validated_model(setup)
        began = time.monotonic()
        # Of a whole split, and as loaded weights give them again: neither a process's part of it, nor in half precision.
        kept: list[Tensor] | None = [] if self._is_alone and self.settings.precision == "no" else None
        val = self._measure(model, keep=kept)
        if not math.isfinite(val["loss"]):
            self._refuse_loss(val["loss"], f"val_loss={val['loss']}")
        others = {
            f"val_{name}_top1": self._measure(network)["top1"] for name, network in setup.method.evaluated().items()
        }
        counted = (state.step - 1) % (setup.steps_per_epoch * setup.recipe.validate_every) + 1
        record = {
            "epoch": epoch + 1,
            "step": state.step,
            "lr": max(group["lr"] for group in setup.optimizer.param_groups),
            **{f"train_{name}": value / counted for name, value in state.sums.items()},
            "val_top1": val["top1"],
            "val_loss": val["loss"],
            **others,
        }
        state.sums = {}
        score = (val["top1"], -val["loss"])
        improved = state.best is None or score > state.best
        if improved:
            state.best, state.best_epoch = score, epoch + 1
            self.best_logits = torch.cat(kept) if kept else None
        assert state.best is not None  # the first validation is an improvement
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
            self.accelerator.log({k: v for k, v in record.items() if k != "epoch"}, step=state.step)
        self.callback.on_validation({**record, "best_top1": state.best[0], "best_epoch": state.best_epoch}, timing)

    def _measure(self, network: nn.Module, keep: list[Tensor] | None = None) -> dict[str, float]:
        data = self.setup.data
        return validate(network, data.val, data.preprocessing, self.accelerator, keep=keep)

    def _hand_on(self) -> None:
        """Give the run its best weights' predictions on the validation images, unless an earlier process found those weights."""
        data = self.setup.data
        if self.best_logits is not None:
            self.run.validation = Predictions(self.best_logits, data.val, data.preprocessing)

    def _finish(self, stopped: str) -> None:
        state = self.state
        assert state.best is not None  # the last epoch is always validated
        if self.accelerator.is_main_process:
            self._save_model("last", state.validated_model(self.setup))
            self._save_checkpoint()
            self.run.update(
                status="finished",
                stopped=stopped,
                wall_seconds=round(self._seconds(), 3),
                best={"val_top1": state.best[0], "val_loss": -state.best[1], "epoch": state.best_epoch},
                epochs_trained=state.step // self.setup.steps_per_epoch,
            )
        self._hand_on()
        self.accelerator.wait_for_everyone()

    # -- saving ----------------------------------------------------------------------------------------------------

    def _save_model(self, which: str, model: nn.Module) -> None:
        seen = self.setup.data.preprocessing
        args = {**self.setup.recipe.model_args, "in_chans": seen.channels}
        if hasattr(model, "patch_embed"):
            args["img_size"] = list(seen.size)
        self.run.save_model(which, model, self.setup.data.class_names, args)

    def _save_checkpoint(self) -> None:
        self._write_checkpoint()
        if self.accelerator.is_main_process:
            self.run.confirm_checkpoint()

    def _write_checkpoint(self) -> None:
        """The main process writes: every process holds the same state, and generators are functions of the step."""
        self.saved_at = time.monotonic()
        if self.accelerator.is_main_process:
            self.run.write_checkpoint(self.state.to_checkpoint(self.setup, self.run, self._seconds()), self.state.step)

    def _stop_if_requested(self) -> None:
        """Save and leave after SIGTERM or Ctrl-C."""
        requested = self.stop.requested
        if not self._is_alone:
            flag = torch.tensor(float(requested), device=self.accelerator.device)
            requested = self.accelerator.reduce(flag, "sum").item() > 0
        if not requested:
            return
        self._save_checkpoint()
        if self.accelerator.is_main_process:
            stopped = f"interrupted at step {self.state.step}"
            self.run.update(status="interrupted", stopped=stopped, wall_seconds=self._seconds())
        raise Interrupted(f"saved {self.run.path} at step {self.state.step}; the same command resumes it")

    def _decide_compile(self) -> None:
        """compile=auto: compile once the measured speed says that enough eager training is left to repay it."""
        state, total = self.state, self.setup.total_steps
        steps_here = state.step - self.first_step
        if state.compiled is not None or steps_here < min(MEASURED_STEPS, total):
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
            "classes": len(data.class_names),
            "train_images": len(data.train),
            "val_images": len(data.val),
            "input": [data.preprocessing.channels, *data.preprocessing.size],
            "epochs": recipe.epochs,
            "steps_per_epoch": self.setup.steps_per_epoch,
            "lr": peak_lr(recipe),
            "device": str(self.accelerator.device),
            "processes": self.accelerator.num_processes,
            "start_epoch": self.state.step // self.setup.steps_per_epoch,
        }
