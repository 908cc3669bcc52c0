"""How fast recipes train here, measured in turns, and how many epochs of each a time budget buys.

Speeds that are measured one after the other differ by what else the machine was doing meanwhile. Measured in turns, in one
process, all recipes share that noise, and what is compared at equal time is compared fairly.
"""

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.methods.token_labeling.method import epochs_of_annotator, with_annotator_epochs
from vitling.recipes import Recipe, from_dict, to_dict
from vitling.runs.run import Run, asked_for
from vitling.training.loop import BUDGET_USED, MEASURED_SHARE, PREPARING_SHARE, Training, create_accelerator
from vitling.training.settings import Settings

TURNS, LEAST_TURNS = 5, 2
STEPS = 5  # of each recipe in a turn
TASK = "measuring the speed"


@dataclass(frozen=True)
class Pace:
    """Seconds that training a recipe takes."""

    fixed: float  # before the first step: reading, building, writing label maps
    step: float
    validation: float
    steps_per_epoch: int
    validate_every: int
    threads: int
    preparing: "Pace | None" = None  # of a run that the method needs first

    def epoch_seconds(self, fraction: float = 1.0) -> float:
        """An epoch on a part of the training images: fewer steps, the same validation."""
        return max(1, int(fraction * self.steps_per_epoch)) * self.step + self.validation / self.validate_every

    def run_seconds(self, recipe: Recipe) -> float:
        """A whole run, and the one that its method needs first."""
        seconds = self.fixed + recipe.epochs * self.epoch_seconds()
        if first := self.preparing:
            seconds += first.fixed + epochs_of_annotator(recipe) * first.epoch_seconds()
        return seconds

    def scaled(self, factor: float) -> "Pace":
        """The same on a machine that takes `factor` times as long."""
        times = {name: factor * getattr(self, name) for name in ("fixed", "step", "validation")}
        return replace(self, **times, preparing=self.preparing and self.preparing.scaled(factor))


def read_pace(tree: dict) -> Pace:
    """A pace from what `dataclasses.asdict` made of it."""
    preparing = tree["preparing"] and read_pace(tree["preparing"])
    return Pace(**{**tree, "preparing": preparing})


def fit_epochs(pace: Pace, seconds: float, fraction: float = 1.0) -> tuple[int, int | None]:
    """Epochs that fit into the time, and those of the run that the method needs first, which gets a part of it."""
    left, preparing_epochs = seconds * BUDGET_USED - pace.fixed, None
    if first := pace.preparing:
        first_epoch = first.epoch_seconds(fraction)
        preparing_epochs = max(1, int((seconds * PREPARING_SHARE - first.fixed) / first_epoch))
        left -= first.fixed + preparing_epochs * first_epoch
    epochs = min(int(left / pace.epoch_seconds(fraction)), 100_000)
    if epochs < 1:
        raise UserError(
            f"an epoch takes about {pace.epoch_seconds(fraction):.1f} s here, and getting ready leaves {max(left, 0):.1f} s "
            f"of {seconds:g} s for it; raise --budget or choose a smaller model."
        )
    return epochs, preparing_epochs


def measure_paces(
    recipes: dict[str, Recipe],
    folder: Path,
    *,
    settings: Settings,
    budget_seconds: float,
    callback: Callback,
) -> dict[str, Pace]:
    """Train a few steps of every recipe in turns; `folder` holds what that writes and is removed in the end."""
    shutil.rmtree(folder, ignore_errors=True)
    threads = torch.get_num_threads()
    try:
        contestants = []
        for number, (name, recipe) in enumerate(recipes.items()):
            callback.on_progress(TASK, number, len(recipes) + TURNS)
            try:
                contestants.append(_Contestant(recipe, folder / str(number), settings))
            except UserError as error:
                raise UserError(f"{name}: {error}") from None
        everyone = [one for contestant in contestants for one in (contestant, contestant.preparing) if one]
        began, allowed = time.monotonic(), MEASURED_SHARE * budget_seconds * len(recipes)
        for turn in range(TURNS):
            callback.on_progress(TASK, len(recipes) + turn, len(recipes) + TURNS)
            for one in everyone:
                one.take_turn()
            if turn + 1 >= LEAST_TURNS and time.monotonic() - began > allowed:
                break
        return {name: one.pace() for name, one in zip(recipes, contestants, strict=True)}
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(folder, ignore_errors=True)


class _Contestant:
    """A recipe made ready to train, and the times of its turns."""

    def __init__(self, recipe: Recipe, folder: Path, settings: Settings):
        recipe = with_annotator_epochs(from_dict(to_dict(recipe)), 1)
        began = time.monotonic()
        settings = replace(settings, began=began, trackers=())
        accelerator = create_accelerator(settings, folder)  # one each: scalers and what it has prepared are its own
        run = Run(folder)
        self.training = Training(recipe, asked_for(recipe, None), run, settings, Callback(), accelerator, None)
        self.fixed = time.monotonic() - began - sum(run.info["wall_seconds"] for run in self.training.prepared)
        self.threads = torch.get_num_threads()  # Training has chosen it
        self.steps: list[float] = []
        self.validations: list[float] = []
        self.preparing = None
        for first in self.training.prepared:
            self.preparing = _Contestant(first.recipe, folder.with_name(f"{folder.name}-{first.path.name}"), settings)

    def take_turn(self) -> None:
        torch.set_num_threads(self.threads)
        steps, validation = self.training.timed_turn(STEPS)
        self.steps += steps
        self.validations.append(validation)

    def pace(self) -> Pace:
        step = median(self.steps)
        warming_up = max(0.0, sum(self.steps[:STEPS]) - STEPS * step)  # a compiler does its work in the first steps
        return Pace(
            fixed=self.fixed + warming_up,
            step=step,
            validation=median(self.validations),
            steps_per_epoch=self.training.loader.steps_per_epoch,
            validate_every=self.training.recipe.validate_every,
            threads=self.threads,
            preparing=self.preparing and self.preparing.pace(),
        )
