"""train(recipe, run_dir): the only training loop.

It knows no method: a method turns a batch into losses and, where it must, losses into gradients. Everything random in a
step is a function of (seed, step), so a checkpoint holds no generator states and a resumed run repeats the uninterrupted one.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.training_data import TrainingData, prepare_training_data
from vitling.data.sources.dataset import Dataset
from vitling.errors import UserError
from vitling.evaluation.loop import predict_logits, validate
from vitling.evaluation.predictions import Predictions
from vitling.methods import Preparation, prepare_method
from vitling.models import default_size
from vitling.models.inspect import layer_gradient_norms
from vitling.optim import Schedule, peak_lr
from vitling.recipes import Recipe, from_dict, scale_epochs, to_dict
from vitling.runs.run import Run, asked_for, environment, load_run, recipe_digest
from vitling.training.budget import (
    FIRST_RUN_SHARE,
    LEAST_STEPS,
    MEASURED_STEPS,
    MOST_EPOCHS,
    Speed,
    Timekeeper,
    steps_within,
)
from vitling.training.course import Course
from vitling.training.measurement import measure_speed, try_a_step
from vitling.training.random_state import callers_state_kept
from vitling.training.settings import Settings
from vitling.training.setup import Setup, build_setup, create_accelerator
from vitling.training.signals import Interrupted, StopRequest, stop_on_signals
from vitling.training.state import State
from vitling.training.step import Stepper

COMPILE_WORTH_SECONDS = 900  # compile=auto compiles when more eager training than this is left
MORE_LR = 0.5  # of the peak learning rate, where a finished run is trained further
TOLD_CHANGE = 0.2  # of its epochs: a budget that moves the end by more is worth a line


def train(
    recipe: Recipe,
    run_dir: str | Path,
    *,
    settings: Settings | None = None,
    dataset: Dataset | None = None,
    asked: dict | None = None,
    planned: dict | None = None,
    callback: Callback | None = None,
) -> Run:
    """Train a recipe into a run directory; into the same directory again, resume it.

    `dataset` is the recipe's data where it has been opened already, as by `vitling.plan`. `asked` is what was asked for where that is
    not the recipe itself, but data to plan one for; `planned` is the record of that plan, which the run keeps. The best weights'
    predictions on the validation images are passed on in the run that is returned.
    """
    settings, callback = settings or Settings(), callback or Callback()
    with callers_state_kept():
        accelerator = create_accelerator(settings, run_dir)
        run = train_into(Run(run_dir), recipe, settings, callback, accelerator, dataset, asked, planned)
        accelerator.end_training()
    return run


def train_more(
    run_dir: str | Path,
    seconds: float,
    *,
    settings: Settings | None = None,
    dataset: Dataset | None = None,
    callback: Callback | None = None,
) -> Run:
    """Train a finished run further: a new schedule of so many seconds from its last weights. Interrupted, the same call resumes.

    The run keeps everything: its logs grow, each part of it stands in run.json, and `best` stays the best of all parts.
    """
    settings, callback = settings or Settings(), callback or Callback()
    run = load_run(run_dir)
    with callers_state_kept():
        accelerator = create_accelerator(settings, run_dir)
        with run.locked() if accelerator.is_main_process else nullcontext():
            if accelerator.is_main_process:
                run.claim_more(seconds)
            accelerator.wait_for_everyone()
            _train_rest(run, run.recipe, run.info["asked"], settings, callback, accelerator, dataset)
        accelerator.end_training()
    return run


def train_into(
    run: Run,
    recipe: Recipe,
    settings: Settings,
    callback: Callback,
    accelerator: Accelerator,
    dataset: Dataset | None = None,
    asked: dict | None = None,
    planned: dict | None = None,
) -> Run:
    """The same on devices that are set up already: nothing where the run is finished, else what is left of it."""
    recipe = from_dict(to_dict(recipe))  # declared types, as if read from its file: the run is compared with that
    with run.locked() if accelerator.is_main_process else nullcontext():
        asked = asked or asked_for(recipe, settings.budget_seconds)
        resuming = run.claim(asked)
        accelerator.wait_for_everyone()
        if run.finished:
            callback.log(f"{run.path} is finished already: {run.info['stopped']}.")
            return run
        if resuming and (run.path / "recipe.yaml").exists():  # written last when a run begins
            recipe = run.recipe  # resolved when the run began
        elif planned and accelerator.is_main_process:
            run.update(plan=planned)
        _train_rest(run, recipe, asked, settings, callback, accelerator, dataset)
    return run


def _train_rest(
    run: Run,
    recipe: Recipe,
    asked: dict,
    settings: Settings,
    callback: Callback,
    accelerator: Accelerator,
    dataset: Dataset | None,
) -> None:
    if run.part > 1:  # whoever resumes it, and with whichever command
        settings = replace(settings, budget_seconds=run.info["more_seconds"][-1])
    with stop_on_signals() as stop:
        open_loop(run, recipe, asked, settings, callback, accelerator, stop, dataset).run_to_end()


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
    checkpoint, recipe = _read_checkpoint(
        run, replace(recipe, img_size=data.preprocessing.size, channels=data.preprocessing.channels), data, callback
    )
    preparation = _preparation(run, recipe, data, asked, settings, callback, accelerator)
    setup = build_setup(
        recipe,
        data,
        accelerator,
        method_args=prepare_method(recipe.method, preparation, recipe.method_args),
        load_init=checkpoint is None,
        callback=callback,
    )
    begins = checkpoint is None or checkpoint.get("part", 1) < run.part
    state, timekeeper = State.begin(setup), None
    if checkpoint is not None:
        state.restore(checkpoint, setup, settings.threads)
    if begins:
        try_a_step(setup, settings.threads or run.info.get("environment", {}).get("threads"))
        if state.step:
            state.begin_part(run.part)
            _lower_rate(setup)
        state.course = Course.straight(setup.total_steps, start=state.step)
        if settings.budget_seconds:
            timekeeper = _fit_to_budget(setup, state, settings, callback)
    else:
        callback.log(f"resuming {run.path} at step {state.step}")
        if settings.budget_seconds:
            timekeeper = _resumed_timekeeper(run, setup, state, settings.budget_seconds)
    schedule = Schedule(
        setup.optimizer, setup.recipe, setup.steps_per_epoch
    )  # refuses what cannot be, before it is written
    if accelerator.is_main_process:
        if checkpoint is None:
            run.cut_logs(dict.fromkeys([*run.sizes(), "budget.jsonl"], 0))
            _describe(run, setup, asked, settings)
        else:
            run.cut_logs(checkpoint["logs"])
            run.update(status="running")
        if begins:
            run.save_recipe(setup.recipe)
            if timekeeper:
                run.append("budget.jsonl", _first_look(state, timekeeper))
    if settings.trackers:
        accelerator.init_trackers("vitling", config={"model": recipe.model, "data": recipe.data})
    if state.compiled:
        setup.method.compile_networks()
    loop = Loop(setup, state, schedule, run, settings, callback, stop, timekeeper)
    if begins and state.part > 1:
        loop.save_checkpoint()  # from here on this part resumes as itself
    return loop


def _lower_rate(setup: Setup) -> None:
    """A trained network is not sent back to the start by the rate that it began with."""
    recipe = setup.recipe
    setup.change_recipe(replace(recipe, optim=replace(recipe.optim, lr=MORE_LR * recipe.optim.lr)))
    for group in setup.optimizer.param_groups:
        for name in ("lr", "initial_lr"):
            group[name] = MORE_LR * group.get(name, group["lr"])


def _fit_to_budget(setup: Setup, state: State, settings: Settings, callback: Callback) -> Timekeeper:
    """As many steps as the budget allows at the speed of the first ones. What comes later moves the end, see `Timekeeper`."""
    budget = settings.budget_seconds
    assert budget is not None
    speed = measure_speed(setup, settings.began, budget)
    left = budget - settings.reserve_seconds - speed.fixed - speed.validation
    steps = steps_within(speed, left)
    if steps < LEAST_STEPS:
        raise UserError(
            f"a step of {setup.recipe.model} takes about {speed.step:.2g} s here, and setup leaves {max(left, 0):.1f} s of the budget of "
            f"{budget:g} s, less than {LEAST_STEPS} steps; raise the budget, lower batch_size or choose a smaller model."
        )
    epochs = min(max(1, round(steps / setup.steps_per_epoch)), MOST_EPOCHS)
    setup.change_recipe(scale_epochs(setup.recipe, epochs))
    state.course = Course.straight(setup.total_steps, start=state.step)
    if state.step + steps != state.course.end and epochs < MOST_EPOCHS:
        state.course.move_end(state.step, state.step + steps)
    shown = steps / setup.steps_per_epoch
    callback.log(f"a step takes {1000 * speed.step:.0f} ms, so the budget allows {shown:.3g} epochs")
    return Timekeeper.begin(state.course, speed, budget - settings.reserve_seconds)


def _first_look(state: State, timekeeper: Timekeeper) -> dict:
    """What a resumed run needs to know of the budget, beside the looks that follow."""
    return {
        "step": state.step,
        "end": state.course.end,
        "part": state.part,
        "every": timekeeper.every,
        "seconds_allowed": timekeeper.seconds,
        "speed": asdict(timekeeper.speed),
    }


def _resumed_timekeeper(run: Run, setup: Setup, state: State, budget: float) -> Timekeeper:
    looks = run.budget_looks(state.part)
    first = looks[0]
    later = [look for look in looks[1:] if look["step"] >= state.step]
    speed = Speed.from_dict(first["speed"])
    return Timekeeper(state.course, speed, first["seconds_allowed"], every=first["every"], recorded=later)


def _read_data(
    recipe: Recipe, settings: Settings, callback: Callback, accelerator: Accelerator, dataset: Dataset | None
) -> TrainingData:
    size = as_size(recipe.img_size) or default_size(recipe.model)
    with accelerator.main_process_first():  # one process downloads, the others find the files
        data = prepare_training_data(recipe, settings.reading, model_size=size, dataset=dataset, callback=callback)
    for note in data.dataset.notes:
        callback.log(note)
    return data


def _read_checkpoint(run: Run, recipe: Recipe, data: TrainingData, callback: Callback) -> tuple[dict | None, Recipe]:
    """The newest checkpoint that is whole, if it is of this run's recipe and this data; and the recipe of the part it is from."""
    checkpoint, corrupted = run.load_checkpoint()
    for line in corrupted:
        callback.log(line)
    if checkpoint is not None and (part := checkpoint.get("part", 1)) > 1:
        recipe = run.part_recipe(part)
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
    return checkpoint, recipe


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
            if state.step == state.course.end or (epoch + 1) % recipe.validate_every == 0:
                self.validate(epoch)
                if recipe.patience_epochs and epoch + 1 - state.best_epoch >= recipe.patience_epochs:
                    stopped = f"no better validation accuracy for {recipe.patience_epochs} epochs"
                    break
            if abs(self.epochs - told) > TOLD_CHANGE * told:
                told = self.epochs
                self.callback.log(f"at the speed of the last steps the budget ends after {told:.3g} epochs")
        self._finish(stopped or f"all {self.epochs:.4g} epochs are done")

    def train_epoch(self, epoch: int) -> None:
        """To the end of the epoch or of the run."""
        state, per_epoch = self.state, self.setup.steps_per_epoch
        self.training_mode()
        clock, seen = time.monotonic(), 0
        for micro_batches in self.setup.loader.epoch(epoch, state.step - epoch * per_epoch):
            # Before the step, when the last validation is done too: what is saved here is a whole number of steps.
            self._stop_if_requested()
            saving = time.monotonic() - self.saved_at > self.settings.checkpoint_seconds
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
        if state.ema:
            state.ema.update(self.setup.model, state.step)
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
        self.state.summed_steps += 1
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
        record = {
            **({"part": state.part} if state.part > 1 else {}),
            "epoch": epoch + 1,
            "step": state.step,
            "lr": max(group["lr"] for group in setup.optimizer.param_groups),
            **{f"train_{name}": value / state.summed_steps for name, value in state.sums.items()},
            "val_top1": val["top1"],
            "val_loss": val["loss"],
            **others,
        }
        state.sums, state.summed_steps = {}, 0
        score = (val["top1"], -val["loss"])
        improved = state.best is None or score > state.best
        if improved:
            state.best, state.best_epoch = score, epoch + 1
            self.best_logits = torch.cat(kept) if kept else None
        assert state.best is not None  # the first validation is an improvement
        if improved and self.accelerator.is_main_process:
            self._save_model("best", model)
        taken = time.monotonic() - began
        if self.timekeeper:
            self.timekeeper.on_validation(taken)
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
        self.callback.on_validation({**record, "best_top1": state.best[0], "best_epoch": state.best_epoch}, timing)

    def _measure(self, network: nn.Module, keep: list[Tensor] | None = None) -> dict[str, float]:
        data = self.setup.data
        return validate(network, data.val, data.preprocessing, self.accelerator, keep=keep)

    def _hand_on(self) -> None:
        """Give the run its best weights' predictions on the validation images, for the page and the calibration."""
        if not self.accelerator.is_main_process:
            return
        data, logits = self.setup.data, self.best_logits
        if logits is None:  # found by an earlier process, in half precision or in parts
            logits = predict_logits(self.run.load_model("best"), data.val, data.preprocessing, callback=self.callback)
        self.run.validation = Predictions(logits, data.val, data.preprocessing)

    def _finish(self, stopped: str) -> None:
        state = self.state
        assert state.best is not None  # the last epoch is always validated
        if self.accelerator.is_main_process:
            self._save_model("last", state.validated_model(self.setup))
            self.save_checkpoint()
            self.run.update(
                status="finished",
                stopped=stopped,
                wall_seconds=round(self._seconds(), 3),
                best={"val_top1": state.best[0], "val_loss": -state.best[1], "epoch": state.best_epoch},
                epochs_trained=whole(round(state.step / self.setup.steps_per_epoch, 3)),
                steps_trained=state.step,
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

    def save_checkpoint(self) -> None:
        self._write_checkpoint()
        if self.accelerator.is_main_process:
            self.run.confirm_checkpoint()

    def _write_checkpoint(self) -> None:
        """The main process writes: every process holds the same state, and generators are functions of the step."""
        self.saved_at = time.monotonic()
        if self.accelerator.is_main_process:
            state = self.state.to_checkpoint(self.setup, self.run, self._seconds())
            self.run.write_checkpoint(state, self.state.step, self.state.part)

    def _stop_if_requested(self) -> None:
        """Save and leave after SIGTERM or Ctrl-C."""
        requested = self.stop.requested
        if not self._is_alone:
            flag = torch.tensor(float(requested), device=self.accelerator.device)
            requested = self.accelerator.reduce(flag, "sum").item() > 0
        if not requested:
            return
        self.save_checkpoint()
        if self.accelerator.is_main_process:
            stopped = f"interrupted at step {self.state.step}"
            self.run.update(status="interrupted", stopped=stopped, wall_seconds=self._seconds())
        raise Interrupted(f"saved {self.run.path} at step {self.state.step}; the same command resumes it")

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
            "classes": len(data.class_names),
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
