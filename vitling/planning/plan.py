"""plan(data): look at the data and at the machine, choose a recipe, say why, how long it takes and what to expect."""

import json
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from os import environ
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from vitling.callbacks import Callback
from vitling.data.pipeline.loader import steps_in_epoch
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset, open_dataset, takes_root
from vitling.data.sources.images import BadImage
from vitling.errors import UserError
from vitling.methods import check_target
from vitling.methods.pretraining import MaskedImages
from vitling.models import build_model, default_size
from vitling.planning.conflicts import find_conflicts, pretrained_hint
from vitling.planning.expectation import Band, expect
from vitling.planning.machine import Machine, find_machine, this_machine
from vitling.planning.rules import CHECKED_FILES, Choice, choose, count_test_views, pretrained_run
from vitling.planning.speed import measure_speeds
from vitling.planning.survey import Survey, survey_data
from vitling.recipes import DEFAULT, NO_FIRST_STAGE, Recipe, load_recipe, override, scale_epochs, to_dict
from vitling.training.budget import LEAST_STEPS, MEASURED_SHARE, Speed, fit_to_budget, steps_within
from vitling.training.first_stage import open_unlabelled
from vitling.training.settings import Settings, check_precision
from vitling.training.setup import check_settings

MEASURED_TRAIN, MEASURED_VAL = 1024, 128  # images that the speed is measured on, where the data has more
MEASURED_SECONDS = 3.0
PRETRAINING = MaskedImages.omission.what  # what the plan calls a first stage, with and without one
START_SECONDS = 10.0  # of a run on a device that is not here


@dataclass(frozen=True)
class Plan:
    """What would be trained on some data, and why. A brief plan has no speed and no expectation."""

    survey: Survey
    recipe: Recipe
    choices: list[Choice]
    warnings: list[str]
    hint: str  # where published weights would serve better
    device: str  # what it is planned for
    precision: str  # that suits this device
    measured: dict[str, float]  # seconds of a step of each candidate that was looked at
    dataset: Dataset = field(repr=False, compare=False)  # as opened for the plan, to be handed to `vitling.train`
    speed: Speed | None = None
    expected: Band | None = None
    epochs: float | None = None  # less than one, where a budget ends within the first

    @property
    def seconds(self) -> float | None:
        """How long the training takes here."""
        if self.speed is None:
            return None
        seconds = self.speed.run_seconds(self.recipe)
        if self.epochs is not None and self.epochs < 1:
            seconds -= (1 - self.epochs) * self.speed.epoch_seconds()
        return seconds / (1 - self.recipe.unlabelled_time) if self.recipe.unlabelled else seconds

    def to_json(self) -> str:
        tree = vars(self) | {"recipe": to_dict(self.recipe), "seconds": self.seconds}
        del tree["dataset"]
        return json.dumps(tree, indent=1, ensure_ascii=False, default=asdict)

    def record(self) -> dict:
        """What a run keeps of its plan: what was decided and why, and what was measured for it."""
        return {
            "choices": [asdict(choice) for choice in self.choices],
            "device": self.device,
            "precision": self.precision,
            "step_seconds": self.measured,
        }


def plan(
    data: str | Path,
    settings: Sequence[str] = (),
    *,
    recipe: Recipe | str | Path | None = None,
    budget_seconds: float | None = None,
    brief: bool = False,
    device: str | None = None,
    threads: int | None = None,
    precision: str = "",
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Plan:
    """What to train on this data in this time. `settings` are changes to the recipe that you want, such as "epochs=50".

    With a `recipe`, nothing is chosen: the plan says what that one would do here. A brief plan is the same recipe at once: no
    pixels are looked at, and nothing is measured but what the choice depends on. `device` is one that is elsewhere, such as
    "cuda:a100": what would be chosen there, with times worked out on paper. `precision` is that of `Settings`; empty: the faster one.
    """
    if any(setting.partition("=")[0].strip() == "data" for setting in settings):
        raise UserError("the data is the first argument; leave data= out.")
    check_precision(precision)
    reading, callback = reading or Reading(), callback or Callback()
    if device and precision:
        raise UserError(f"device={device} has a precision of its own; leave precision={precision} out.")
    # A recipe that is given is trained in float32 unless somebody asks for more.
    machine = find_machine(device) if device else this_machine(threads, precision or ("no" if recipe else ""))
    given = load_recipe(recipe or DEFAULT) if not isinstance(recipe, Recipe) else recipe
    known = ("channels", "group", "labels", "unlabelled", "unlabelled_time")
    asked = override(given, [text for text in settings if text.partition("=")[0].strip() in known])
    if recipe is None and asked.channels is None and (begun := pretrained_run(settings)):
        asked = replace(asked, channels=begun.recipe.channels)
    if budget_seconds and asked.unlabelled:
        budget_seconds *= 1 - asked.unlabelled_time  # what the first stage leaves
    dataset = _open(str(data), asked, reading)
    seen = survey_data(dataset, brief=brief, cache=reading.open_cache(), callback=callback)
    if recipe is None:
        decided = choose(dataset, seen, settings, machine=machine, budget_seconds=budget_seconds)
        planned, choices, machine.precision = _agreed((*decided, machine.precision))
        if precision:
            as_asked = partial(replace, reason="as you asked", evidence="")
            choices = [as_asked(choice) if choice.what == "precision" else choice for choice in choices]
    else:
        planned, choices = override(given, list(settings)), []
    check_settings(planned)
    check_target(planned.method, dataset.target)
    recipe = replace(planned, data=str(data))
    size = as_size(recipe.img_size) or (seen.largest if seen.small else default_size(recipe.model))
    warnings = find_conflicts(recipe, size, classes=seen.outputs, channels=dataset.channels)
    if budget_seconds and choices and any(text.partition("=")[0].strip() == "epochs" for text in settings):
        warnings.append("how many epochs there are follows from the budget, so that epochs= gives way to it")
    hint = pretrained_hint(seen, recipe)
    result = Plan(seen, recipe, choices, warnings, hint, machine.title, machine.precision, machine.measured, dataset)
    if brief:
        return result
    if seen.unreadable and recipe.on_bad_image == "error":
        warnings.append(
            f"training stops at the first file that cannot be read, because more than {CHECKED_FILES:,} are not tried before; "
            "on_bad_image=skip tries them all and leaves the bad ones out"
        )
    if recipe.unlabelled:
        choices = [choice for choice in choices if choice.what != PRETRAINING]
        choices.append(_first_stage(recipe, dataset, reading))
    if device:
        if recipe.method != Recipe.method:
            warnings.append(
                f"of a device that is elsewhere the time is of the network alone: what method={recipe.method} computes beside it is not counted"
            )
        speed = _estimate(dataset, recipe, size, machine, seen.outputs)
    else:
        fits = len(dataset.splits["train"]) * dataset.channels * size[0] * size[1] <= reading.memory_gb * 2**30
        part = _part(dataset, recipe, in_memory=fits, has_bad=bool(seen.unreadable))
        # Streamed images would all be decoded for the cache, which is no plan's business.
        measured = reading if fits else replace(reading, cache=False)
        speed = _measure(
            dataset,
            recipe,
            override(part, NO_FIRST_STAGE),
            Settings(precision=machine.precision, threads=threads, reading=measured),
            callback,
        )
    epochs: float = recipe.epochs
    if budget_seconds:
        found = "worked out from what the device computes" if device else "measured here"
        recipe, choices, epochs = _fit(recipe, choices, speed, budget_seconds, found)
    shown = epochs * speed.steps_per_epoch * recipe.batch_size
    expected = (
        None if seen.probe_accuracy is None else expect(seen, shown)
    )  # no band is known of other labels than classes
    return replace(result, recipe=recipe, choices=choices, speed=speed, expected=expected, epochs=epochs)


def _first_stage(recipe: Recipe, dataset: Dataset, reading: Reading) -> Choice:
    """What is learnt from before the labels; images that are not there are said now."""
    own = reading if takes_root(recipe.unlabelled) else replace(reading, root=None)
    opened = open_unlabelled(recipe, own, channels=dataset.channels, sampled=True)
    count = sum(map(len, opened.splits.values()))
    what = f"{recipe.unlabelled_method} on {count:,} images without labels, {100 * recipe.unlabelled_time:.0f} % of the time"
    return Choice(PRETRAINING, what, "as you asked; those that the data validates or tests on are left out")


def _agreed(decided: tuple[Recipe, list[Choice], str]) -> tuple[Recipe, list[Choice], str]:
    """What the first of several processes decided: each of them measures other times."""
    return broadcast_object_list([decided])[0] if _several() else decided


def _several() -> bool:
    return int(environ.get("WORLD_SIZE", "1")) > 1


def _open(data: str, asked: Recipe, reading: Reading) -> Dataset:
    """The data; files that cannot be read are left out, not an error: a plan is there to find them."""
    open_data = partial(
        open_dataset,
        data,
        root=reading.root,
        download=reading.download,
        channels=asked.channels,
        group=asked.group,
        labels=asked.labels,
        sampled=True,
    )
    # One process downloads, the others find the files.
    state = PartialState(cpu=not torch.accelerator.is_available()) if _several() else None
    with state.main_process_first() if state else nullcontext():
        try:
            return open_data()
        except BadImage:
            return open_data(on_bad_image="skip")


def _part(dataset: Dataset, recipe: Recipe, *, in_memory: bool, has_bad: bool) -> Recipe:
    """The recipe on as much of the data as its speed is measured on. What does not fit into memory is streamed, then as now."""
    images = len(split_training(dataset, recipe)[0])
    measured = max(MEASURED_TRAIN, 2 * recipe.batch_size)
    return replace(
        recipe,
        fraction=recipe.fraction * min(1.0, measured / images) if in_memory else recipe.fraction,
        val_fraction=min(recipe.val_fraction, MEASURED_VAL / images),
        on_bad_image="skip" if has_bad else "error",
    )


def _measure(dataset: Dataset, recipe: Recipe, part: Recipe, settings: Settings, callback: Callback) -> Speed:
    """The speed on a part of the data, counted up to all of it."""
    if dataset.request:  # what a look at very many files knows is enough for a run that is thrown away
        dataset = replace(dataset, request=dataset.request._replace(sampled=False))
    with tempfile.TemporaryDirectory() as folder:
        speed = measure_speeds(
            {"plan": part},
            Path(folder) / "speed",
            settings=settings,
            budget_seconds=MEASURED_SECONDS / MEASURED_SHARE,
            dataset=dataset,
            callback=callback,
        )["plan"]
    train, val = split_training(dataset, recipe)
    return replace(
        speed,
        validation=speed.validation * len(val) / len(split_training(dataset, part)[1]),
        steps_per_epoch=max(1, steps_in_epoch(recipe, len(train))),
    )


def _estimate(dataset: Dataset, recipe: Recipe, size: tuple[int, int], machine: Machine, outputs: int) -> Speed:
    """The speed on a device that is not here."""
    train, val = split_training(dataset, recipe)
    model = build_model(
        recipe.model,
        num_classes=outputs,
        in_chans=dataset.channels,
        img_size=size,
        **recipe.model_args,
    )
    rate = machine.images_per_second((recipe, model, (dataset.channels, *size)))
    if not rate:
        raise UserError(
            f"{recipe.model} on {recipe.batch_size // recipe.accumulate} images of {size[0]} x {size[1]} pixels at a time does not fit into the "
            f"memory of {machine.title}; set accumulate={2 * recipe.accumulate}, or lower batch_size or img_size."
        )
    return Speed(
        fixed=START_SECONDS,
        step=recipe.batch_size / rate,
        validation=count_test_views(recipe) * len(val) / (3 * rate),  # the forward pass alone
        steps_per_epoch=max(1, steps_in_epoch(recipe, len(train))),
        validate_every=recipe.validate_every,
        threads=0,
    )


def _fit(
    recipe: Recipe, choices: list[Choice], speed: Speed, seconds: float, found: str
) -> tuple[Recipe, list[Choice], float]:
    """As many epochs as the budget allows, the choice that says so, and how many they are: of very many images, a part of one.

    `found` is how the speed was.
    """
    reason = f"what a budget of {seconds:.0f} s allows, at {speed.epoch_seconds():.1f} s per epoch"
    steps = steps_within(speed, seconds - speed.fixed)
    if speed.first is None and LEAST_STEPS <= steps < speed.steps_per_epoch:
        epochs = steps / speed.steps_per_epoch
        recipe = scale_epochs(recipe, 1)
        reason += f"; it ends within the first one, after {100 * epochs:.2g} % of the images"
    else:
        recipe = fit_to_budget(recipe, speed, seconds, used_share=1.0)
        recipe = replace(recipe, validate_every=min(recipe.validate_every, recipe.epochs))
        epochs = recipe.epochs
    fitted = Choice("epochs", str(recipe.epochs), reason, found, changes={"epochs": recipe.epochs})
    return recipe, [fitted if choice.what == "epochs" else choice for choice in choices], epochs
