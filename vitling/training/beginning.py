"""train(recipe, run_dir): a run begins, resumes, or is trained further. Everything up to its first step; the steps are the loop's."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from accelerate import Accelerator

from vitling.callbacks import Callback
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import TrainingData, prepare_training_data
from vitling.data.sources.dataset import Dataset, takes_root
from vitling.errors import UserError
from vitling.methods import Preparation, check_target, find_method, prepare_method
from vitling.models import default_size
from vitling.optim import Schedule
from vitling.plugins import plugin_records
from vitling.recipes import Recipe, from_dict, scale_epochs, to_dict
from vitling.runs.asked import asked_for, is_digest_of, recipe_digest
from vitling.runs.run import Run, load_run
from vitling.runs.surroundings import environment
from vitling.training.budget import (
    FIRST_RUN_SHARE,
    LEAST_STEPS,
    MOST_EPOCHS,
    BudgetTooShort,
    Speed,
    Timekeeper,
    steps_within,
)
from vitling.training.course import Course
from vitling.training.first_stage import count_seen_tests, train_first_stage
from vitling.training.knowledge import find_known_validation
from vitling.training.loop import Loop
from vitling.training.measurement import measure_speed, try_a_step
from vitling.training.peers import end_training, lost_peer_explained
from vitling.training.random_state import callers_state_kept
from vitling.training.settings import Settings
from vitling.training.setup import Setup, build_setup, check_settings, create_accelerator
from vitling.training.signals import StopRequest, stop_on_signals
from vitling.training.state import State, check_checkpoint

NEEDED = ("model", "method", "data")  # that a plug-in may provide
FLOAT32_SLOWER = 3.0  # than half precision, for a GPU that looks at images
OUTGROWN = 4  # times the time that a network was chosen for: more may suit a larger one
MORE_LR = 0.5  # of the peak learning rate, where a finished run is trained further


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
    run = Run(run_dir)
    with callers_state_kept(), lost_peer_explained():
        run.fetch()
        settings = _with_precision(settings, run, planned)
        accelerator = create_accelerator(settings, run_dir)
        run = train_into(run, recipe, settings, callback, accelerator, dataset, asked, planned)
        end_training(accelerator)
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
    run.refuse_ensemble("training goes on with")
    run.require(*NEEDED)
    if seconds > OUTGROWN * run.info.get("wall_seconds", seconds):
        callback.log(
            f"network and augmentation stay as they suited {run.info['wall_seconds']:.0f} s; what is planned for {seconds:.0f} s from the "
            "beginning, in another folder, may be a larger network"
        )
    with callers_state_kept(), lost_peer_explained():
        settings = _with_precision(settings, run)
        accelerator = create_accelerator(settings, run_dir)
        with run.locked() if accelerator.is_main_process else nullcontext():
            run.fetch()
            if accelerator.is_main_process:
                run.claim_more(seconds)
                run.remove_leftovers()
            accelerator.wait_for_everyone()
            try:
                _train_rest(run, run.recipe, run.info["asked"], settings, callback, accelerator, dataset)
            except UserError:  # too short a time, or data that is gone
                if accelerator.is_main_process:
                    run.give_back_more()
                raise
        end_training(accelerator)
    return run


def _with_precision(settings: Settings, run: Run, planned: dict | None = None) -> Settings:
    """The settings; where they leave the precision open, it is what the run began with, else what was planned."""
    plan = run.info.get("plan") or planned or {}
    return replace(settings, precision=settings.precision or run.info.get("precision") or plan.get("precision", ""))


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
    if run.mirror and accelerator.num_processes > 1:
        raise UserError(f"{run.place} is mirrored by one process; train with several into a folder that they share.")
    with run.locked() if accelerator.is_main_process else nullcontext():
        run.fetch()
        run.require(*NEEDED)
        check_settings(recipe)
        asked = asked or asked_for(recipe, settings.budget_seconds)
        resuming = run.claim(asked)
        if accelerator.is_main_process:
            run.remove_leftovers()
        accelerator.wait_for_everyone()
        if run.finished:
            callback.log(f"{run.path} is finished already: {run.info['stopped']}.")
            return run
        if resuming and (changed := run.plugin_changes(*NEEDED)):
            raise UserError(f"{changed[0]} of {run.path} began; restore it, or train into another folder.")
        if resuming and (begun := run.begun_recipe()):
            recipe, planned = begun, None  # resolved when the run began
        try:
            _train_rest(run, recipe, asked, settings, callback, accelerator, dataset, planned)
        except UserError:  # what was only planned or prepared leaves no trace
            if accelerator.is_main_process:
                run.give_back()
            raise
    return run


def _train_rest(
    run: Run,
    recipe: Recipe,
    asked: dict,
    settings: Settings,
    callback: Callback,
    accelerator: Accelerator,
    dataset: Dataset | None,
    planned: dict | None = None,
) -> None:
    if run.part > 1:  # whoever resumes it, and with whichever command
        settings = replace(settings, budget_seconds=run.info["more_seconds"][-1])
    with stop_on_signals() as stop:
        open_loop(run, recipe, asked, settings, callback, accelerator, stop, dataset, planned).run_to_end()
    if accelerator.is_main_process:
        run.set_evaluations_aside()


def open_loop(
    run: Run,
    recipe: Recipe,
    asked: dict,
    settings: Settings,
    callback: Callback,
    accelerator: Accelerator,
    stop: StopRequest,
    dataset: Dataset | None = None,
    planned: dict | None = None,
) -> Loop:
    """A run at its first step, or at that of its last checkpoint: data read, method prepared, everything built."""
    data = _read_data(recipe, settings, callback, accelerator, dataset)
    if not data.dataset.labelled and not find_method(recipe.method).unlabelled:
        raise UserError(
            f"method={recipe.method} learns from labels, and {recipe.data} is opened without them; give the labelled data, "
            "or use `vitling pretrain`."
        )
    check_target(recipe.method, data.dataset.target)
    if recipe.balance == "sampler":
        data.dataset.target.require_classes("balance=sampler draws", data.dataset.name)
    if recipe.balance == "loss" and data.dataset.target.kind == "numbers":
        data.dataset.target.require_classes("balance=loss weighs", data.dataset.name)
    checkpoint, recipe = _read_checkpoint(
        run, replace(recipe, img_size=data.preprocessing.size, channels=data.preprocessing.channels), data, callback
    )
    preparation, train_stage = _preparation(run, recipe, data, asked, settings, callback, accelerator)
    init, seen_tests, first = recipe.init, 0, None
    if init and checkpoint is None:
        seen_tests = count_seen_tests(recipe, data, settings.reading, callback)
    if recipe.unlabelled and checkpoint is None:
        first = train_stage()
        init = str(first.path)
        # What an earlier process spent on it counts, as if this one had.
        settings = replace(settings, began=min(settings.began, time.monotonic() - first.info["wall_seconds"]))
    setup = build_setup(
        recipe,
        data,
        accelerator,
        init=init,
        method_args=prepare_method(recipe.method, preparation, recipe.method_args),
        load_init=checkpoint is None,
        callback=callback,
        shard=settings.shard,
    )
    begins = checkpoint is None or checkpoint.get("part", 1) < run.part
    state, timekeeper = State.begin(setup), None
    if checkpoint is not None:
        state.restore(checkpoint, setup, settings.threads)
    if begins:
        try_a_step(setup, settings.threads or run.info.get("environment", {}).get("threads"))
        if state.step:
            state.begin_part(run.part)
            _lower_rate(setup, MORE_LR * run.recipe.optim.lr / setup.recipe.optim.lr)  # of the first part, in every one
        state.course = Course.straight(setup.total_steps, start=state.step)
        if settings.budget_seconds:
            try:
                timekeeper = _fit_to_budget(setup, state, settings, callback)
            except BudgetTooShort as error:
                raise (_after(first, error, recipe) if first else error) from None
    else:
        callback.log(f"resuming {run.path} at step {state.step}")
        if settings.budget_seconds:
            timekeeper = _resumed_timekeeper(run, state)
    schedule = Schedule(
        setup.optimizer, setup.recipe, setup.steps_per_epoch
    )  # refuses what cannot be, before it is written
    if accelerator.is_main_process:
        if checkpoint is None:
            run.cut_logs(dict.fromkeys([*run.sizes(), "budget.jsonl"], 0))
            known = find_known_validation(recipe, data.dataset, callback)
            _describe(run, setup, asked, planned, seen_tests, known)
            if known:
                callback.log(run.validation_note)
        else:
            run.cut_logs(checkpoint["logs"])
            run.update(status="running")
        if begins:
            run.save_recipe(setup.recipe)  # last, see `begun_recipe`
            if run.part == 1:
                run.update(recipe_digest=recipe_digest(setup.recipe))
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


def _lower_rate(setup: Setup, factor: float) -> None:
    """A trained network is not sent back to the start by the rate that it began with."""
    recipe = setup.recipe
    setup.change_recipe(replace(recipe, optim=replace(recipe.optim, lr=factor * recipe.optim.lr)))
    for group in setup.optimizer.param_groups:
        for name in ("lr", "initial_lr"):
            group[name] = factor * group.get(name, group["lr"])


def _fit_to_budget(setup: Setup, state: State, settings: Settings, callback: Callback) -> Timekeeper:
    """As many steps as the budget allows at the speed of the first ones. What comes later moves the end, see `Timekeeper`."""
    budget = settings.budget_seconds
    assert budget is not None
    speed = measure_speed(setup, settings.began, budget)
    reserve = settings.reserve_seconds + _asked_again(setup, speed)
    left = budget - reserve - speed.fixed - speed.validation
    steps = steps_within(speed, left)
    if steps < LEAST_STEPS:
        raise BudgetTooShort(setup.recipe.model, speed, left=left, budget=budget)
    epochs = min(max(1, round(steps / setup.steps_per_epoch)), MOST_EPOCHS)
    setup.change_recipe(scale_epochs(setup.recipe, epochs))
    state.course = Course.straight(setup.total_steps, start=state.step)
    if state.step + steps != state.course.end and epochs < MOST_EPOCHS:
        state.course.move_end(state.step, state.step + steps)
    shown = steps / setup.steps_per_epoch
    callback.log(f"a step takes {1000 * speed.step:.0f} ms, so the budget allows {shown:.3g} epochs")
    return Timekeeper.begin(state.course, speed, budget - reserve, reserve)


def _asked_again(setup: Setup, speed: Speed) -> float:
    """Seconds for asking the best weights once more in the end, alone and in float32, where validation was neither."""
    accelerator = setup.accelerator
    half = accelerator.device.type != "cpu" and accelerator.mixed_precision != "no"
    if setup.method.unlabelled or not (half or accelerator.num_processes > 1):
        return 0.0
    return speed.validation * accelerator.num_processes * (FLOAT32_SLOWER if half else 1)


def _after(first: Run, error: BudgetTooShort, recipe: Recipe) -> BudgetTooShort:
    """The same of a run whose first stage has had its share."""
    return BudgetTooShort(
        error.model,
        error.speed,
        left=error.left,
        budget=error.budget - first.info["wall_seconds"],
        share=1 - recipe.unlabelled_time,
        part="trained with labels",
        kept=f"What was learnt without labels is kept: init={first.path} begins from it in another folder.",
    )


def _first_look(state: State, timekeeper: Timekeeper) -> dict:
    """What a resumed run needs to know of the budget, beside the looks that follow."""
    return {
        "step": state.step,
        "end": state.course.end,
        "part": state.part,
        "every": timekeeper.every,
        "seconds_allowed": timekeeper.seconds,
        "reserve_seconds": timekeeper.reserve,
        "speed": asdict(timekeeper.speed),
    }


def _resumed_timekeeper(run: Run, state: State) -> Timekeeper:
    """As the process that was interrupted had it, with the looks that are to be repeated."""
    looks = run.budget_looks(state.part)
    first = looks[0]
    later = [look for look in looks[1:] if look["step"] >= state.step]
    speed = Speed.from_dict(first["speed"])
    return Timekeeper(
        state.course,
        speed,
        first["seconds_allowed"],
        every=first["every"],
        recorded=later,
        reserve=first.get("reserve_seconds", 0.0),
    )


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
    if checkpoint is not None:
        check_checkpoint(checkpoint, run)
    if checkpoint is not None and (part := checkpoint.get("part", 1)) > 1:
        recipe = run.part_recipe(part)
    if checkpoint is None and run.part > 1:
        raise run.no_checkpoint()
    if checkpoint is None:
        if run.info.get("status") == "interrupted" and not corrupted:
            callback.log(f"{run.path / 'checkpoint'} is gone; the run begins anew")
        return None, recipe
    if not is_digest_of(checkpoint["recipe"], recipe):
        raise UserError(
            f"the checkpoint in {run.path} is of another recipe than its recipe.yaml; "
            "restore that file, or train into another folder."
        )
    known = checkpoint["contents"]
    changed = [name for name, value in data.contents.items() if known.get(name, value) != value]
    if changed or checkpoint["data"] != data.dataset.fingerprint:
        what = f" ({changed[0]})" if changed else ""
        raise UserError(
            f"the data {recipe.data} has changed since {run.path} was interrupted{what}; "
            "restore it, or train into another folder."
        )
    run.check_whole(checkpoint)
    return checkpoint, recipe


def _preparation(
    run: Run,
    recipe: Recipe,
    data: TrainingData,
    asked: dict,
    settings: Settings,
    callback: Callback,
    accelerator: Accelerator,
) -> tuple[Preparation, Callable[[], Run]]:
    """What the method may do before it is built, and what trains the first stage of a run that has one.

    All of it is part of this run, and found again when the run resumes.
    """

    def begin() -> None:
        if accelerator.is_main_process:
            plugins = plugin_records()
            # A first stage learns with this network: what a plan would choose the next time may be another.
            preparing = {"preparing": to_dict(recipe)} if recipe.unlabelled else {}
            run.update(asked=asked, status="preparing", **preparing, **({"plugins": plugins} if plugins else {}))
        accelerator.wait_for_everyone()

    def train_first(
        first: Recipe,
        name: str,
        share: float = FIRST_RUN_SHARE,
        dataset: Dataset | None = None,
        reading: Reading | None = None,
    ) -> Run:
        begin()
        budget = settings.budget_seconds
        reading = reading or settings.reading
        own = replace(settings, trackers=(), budget_seconds=budget and budget * share, reading=reading)
        part = Run(run.path / name)
        if known := part.asked:  # as an earlier process began it: a budget has changed the epochs of this run since
            first = from_dict(known["recipe"])
        try:
            trained = train_into(part, first, own, callback, accelerator, dataset)
        except BudgetTooShort as error:
            if accelerator.is_main_process:
                run.give_back()
            raise error.of_whole(share) from None
        accelerator.free_memory()  # forgets the network and its optimiser
        return trained

    def once(function):
        begin()
        with accelerator.main_process_first():
            return function()

    def train_on_data(first: Recipe, name: str) -> Run:
        return train_first(first, name, dataset=data.dataset)

    def first_stage() -> Run:
        own = settings.reading
        reading = own if takes_root(recipe.unlabelled) else replace(own, root=None)
        train_there = partial(train_first, reading=reading)
        return train_first_stage(
            run,
            recipe,
            data,
            reading=reading,
            callback=callback,
            budgeted=bool(settings.budget_seconds),
            once=once,
            train=train_there,
        )

    preparation = Preparation(recipe, data, run.path, callback, train_on_data, once, settings.reading)
    return preparation, first_stage


def _count_groups(data: TrainingData) -> dict[str, int]:
    """How many patients, slides or videos were learnt from and validated on, where they are known."""
    found = {split: images.groups for split, images in data.images.items()}
    return {f"{split}_groups": len(set(groups.tolist())) for split, groups in found.items() if groups is not None}


def _describe(run: Run, setup: Setup, asked: dict, planned: dict | None, seen_tests: int, val_known: str) -> None:
    """Write down what this run is, before its first step."""
    data = setup.data
    plugins = plugin_records()
    run.update(
        **({"plan": planned} if planned else {}),
        **({"plugins": plugins} if plugins else {}),
        **({"seen_tests": seen_tests} if seen_tests else {}),
        asked=asked,
        status="running",
        preparing=None,
        recipe_digest=None,  # until the recipe is written
        **({"unlabelled": True, "class_names": []} if setup.method.unlabelled else {"class_names": data.class_names}),
        **({} if setup.method.target.kind == run.kind == "classes" else {"labels": setup.method.target.kind}),
        **({"bins": setup.method.target.bins.to_dict()} if setup.method.target.bins else {}),
        preprocessing=data.preprocessing,
        data=dict(
            name=data.dataset.name,
            fingerprint=data.dataset.fingerprint,
            image_fingerprint=data.dataset.image_fingerprint,
            train_images=len(data.train),
            val_images=len(data.val),
            skipped=data.dataset.skipped,
            splits=sorted(data.dataset.splits),
            notes=data.dataset.notes,
            **_count_groups(data),
            **({"with_test": data.dataset.with_test} if setup.method.unlabelled else {}),
            **({"val_known": val_known} if val_known else {}),
        ),
        parameters=sum(p.numel() for p in setup.model.parameters()),
        environment=environment(),
        precision=setup.accelerator.mixed_precision,
        processes=setup.accelerator.num_processes,
        sharded=setup.sharded,
    )
