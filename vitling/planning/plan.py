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

from vitling.callbacks import Callback
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset, open_dataset
from vitling.data.sources.images import BadImage
from vitling.errors import UserError
from vitling.models import default_size
from vitling.planning.rules import CHECKED_FILES, Band, Choice, choose, expect, find_conflicts, pretrained_hint
from vitling.planning.speed import measure_speeds
from vitling.planning.survey import Survey, survey_data
from vitling.recipes import DEFAULT, Recipe, load_recipe, override, to_dict
from vitling.training.budget import Speed, fit_to_budget
from vitling.training.settings import Settings

MEASURED_TRAIN, MEASURED_VAL = 1024, 128  # images that the speed is measured on, where the data has more
MEASURED_SECONDS = 3.0


@dataclass(frozen=True)
class Plan:
    """What would be trained on some data, and why. A brief plan has no speed and no expectation."""

    survey: Survey
    recipe: Recipe
    choices: list[Choice]
    warnings: list[str]
    hint: str  # where published weights would serve better
    device: str
    dataset: Dataset = field(repr=False, compare=False)  # as opened for the plan, to be handed to `vitling.train`
    speed: Speed | None = None
    expected: Band | None = None

    @property
    def seconds(self) -> float | None:
        """How long the training takes here."""
        return self.speed.run_seconds(self.recipe) if self.speed else None

    def to_json(self) -> str:
        tree = vars(self) | {"recipe": to_dict(self.recipe), "seconds": self.seconds}
        del tree["dataset"]
        return json.dumps(tree, indent=1, ensure_ascii=False, default=asdict)


def plan(
    data: str | Path,
    settings: Sequence[str] = (),
    *,
    recipe: Recipe | str | Path | None = None,
    budget_seconds: float | None = None,
    brief: bool = False,
    threads: int | None = None,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Plan:
    """What to train on this data. `settings` are changes to the recipe that you want, such as "epochs=50".

    With a `recipe`, nothing is chosen: the plan says what that one would do here. A brief plan is the same recipe at once: no
    pixels are looked at, nothing is measured, and a budget is left to training.
    """
    if any(setting.partition("=")[0].strip() == "data" for setting in settings):
        raise UserError("the data is the first argument; leave data= out.")
    reading, callback = reading or Reading(), callback or Callback()
    given = load_recipe(recipe or DEFAULT) if not isinstance(recipe, Recipe) else recipe
    channels = override(given, [text for text in settings if text.startswith("channels")]).channels
    dataset = _open(str(data), channels, reading)
    device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    seen = survey_data(dataset, brief=brief, callback=callback)
    if recipe is None:
        recipe, choices = choose(dataset, seen, settings, device=device)
    else:
        recipe, choices = override(given, list(settings)), []
    recipe = replace(recipe, data=str(data))
    size = as_size(recipe.img_size) or (seen.largest if seen.small else default_size(recipe.model))
    warnings = find_conflicts(recipe, size, classes=len(dataset.class_names), channels=dataset.channels)
    result = Plan(seen, recipe, choices, warnings, pretrained_hint(seen, recipe), device, dataset)
    if brief:
        return result
    if seen.unreadable and recipe.on_bad_image == "error":
        warnings.append(
            f"training stops at the first file that cannot be read, because more than {CHECKED_FILES:,} are not tried before; "
            "on_bad_image=skip tries them all and leaves the bad ones out"
        )
    fits = len(dataset.splits["train"]) * dataset.channels * size[0] * size[1] <= reading.memory_gb * 2**30
    part = _part(dataset, recipe, in_memory=fits, has_bad=bool(seen.unreadable))
    speed = _measure(dataset, recipe, part, Settings(threads=threads, reading=reading), callback)
    if budget_seconds:
        recipe, choices = _fit(recipe, choices, speed, budget_seconds)
    return replace(result, recipe=recipe, choices=choices, speed=speed, expected=expect(seen))


def _open(data: str, channels: int | None, reading: Reading) -> Dataset:
    """The data; files that cannot be read are left out, not an error: a plan is there to find them."""
    open_data = partial(open_dataset, data, root=reading.root, download=reading.download, channels=channels)
    several = int(environ.get("WORLD_SIZE", "1")) > 1  # one process downloads, the others find the files
    state = PartialState(cpu=not torch.accelerator.is_available()) if several else None
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
    with tempfile.TemporaryDirectory() as folder:
        speed = measure_speeds(
            {"plan": part},
            Path(folder) / "speed",
            settings=settings,
            budget_seconds=10 * MEASURED_SECONDS,
            callback=callback,
        )["plan"]
    train, val = split_training(dataset, recipe)
    return replace(
        speed,
        validation=speed.validation * len(val) / len(split_training(dataset, part)[1]),
        steps_per_epoch=max(1, len(train) // recipe.batch_size),
    )


def _fit(recipe: Recipe, choices: list[Choice], speed: Speed, seconds: float) -> tuple[Recipe, list[Choice]]:
    """As many epochs as the budget allows, and the choice that says so."""
    recipe = fit_to_budget(recipe, speed, seconds)
    reason = f"what a budget of {seconds:.0f} s allows, at {speed.epoch_seconds():.1f} s per epoch"
    fitted = Choice("epochs", str(recipe.epochs), reason, "measured here", changes={"epochs": recipe.epochs})
    return recipe, [fitted if choice.what == "epochs" else choice for choice in choices]
