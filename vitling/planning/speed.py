"""How fast recipes train here, measured in turns.

Speeds that are measured one after the other differ by what else the machine was doing meanwhile. Measured in turns, in one
process, all recipes share that noise, and what is compared at equal time is compared fairly.
"""

import shutil
import time
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import median

import torch

from vitling.callbacks import Callback
from vitling.data.sources.dataset import Dataset
from vitling.errors import UserError
from vitling.methods import find_method
from vitling.recipes import Recipe, from_dict, to_dict
from vitling.runs.asked import asked_for
from vitling.runs.run import Run
from vitling.training.beginning import open_loop
from vitling.training.budget import MEASURED_SHARE, Speed
from vitling.training.measurement import endless_steps
from vitling.training.random_state import callers_state_kept
from vitling.training.settings import Settings
from vitling.training.setup import create_accelerator
from vitling.training.signals import StopRequest

TURNS, LEAST_TURNS = 5, 2
STEPS = 5  # of each recipe in a turn
TASK = "measuring the speed"


def measure_speeds(
    recipes: dict[str, Recipe],
    folder: Path,
    *,
    settings: Settings,
    budget_seconds: float,
    callback: Callback,
    dataset: Dataset | None = None,
) -> dict[str, Speed]:
    """Train a few steps of every recipe in turns; `folder` holds what that writes and is removed in the end.

    `dataset` is their data, where it is one and has been opened already.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with callers_state_kept():
            candidates = []
            for number, (name, recipe) in enumerate(recipes.items()):
                callback.on_progress(TASK, number, len(recipes) + TURNS)
                try:
                    candidates.append(_Candidate(recipe, folder / str(number), settings, dataset))
                except UserError as error:
                    raise UserError(f"{name}: {error}") from None
            measured = [one for candidate in candidates for one in (candidate, candidate.first) if one]
            began, allowed = time.monotonic(), MEASURED_SHARE * budget_seconds * len(recipes)
            for turn in range(TURNS):
                callback.on_progress(TASK, len(recipes) + turn, len(recipes) + TURNS)
                for one in measured:
                    torch.set_num_threads(one.threads)
                    one.take_turn()
                if turn + 1 >= LEAST_TURNS and time.monotonic() - began > allowed:
                    break
            callback.on_progress(TASK, len(recipes) + TURNS, len(recipes) + TURNS)
            return {name: one.speed() for name, one in zip(recipes, candidates, strict=True)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Candidate:
    """A recipe prepared for training, and the times of its turns."""

    def __init__(self, recipe: Recipe, folder: Path, settings: Settings, dataset: Dataset | None):
        recipe = find_method(recipe.method).with_first_epochs(from_dict(to_dict(recipe)), 1)
        began = time.monotonic()
        settings = replace(settings, began=began, trackers=())
        accelerator = create_accelerator(settings, folder)  # one each: scalers and what it has prepared are its own
        self.loop = open_loop(
            Run(folder), recipe, asked_for(recipe, None), settings, Callback(), accelerator, StopRequest(), dataset
        )
        self.fixed = time.monotonic() - began
        self.threads = torch.get_num_threads()  # as chosen for it
        self.steps: list[float] = []
        self.validations: list[float] = []
        self.first: _Candidate | None = None
        if first := find_method(recipe.method).first_run(self.loop.setup.recipe):
            # What it trained just now for an epoch is measured by itself.
            self.fixed -= sum(run.info["wall_seconds"] for run in _finished_below(folder))
            self.first = _Candidate(first, folder.with_name(f"{folder.name}-first"), settings, dataset)

    def take_turn(self) -> None:
        """Some steps and a validation, with all that they read and write."""
        loop = self.loop
        loop.state.step = 0
        loop.training_mode()
        ticks = [time.perf_counter()]
        for micro_batches in islice(endless_steps(loop.setup), STEPS):
            loop.take_step(micro_batches)
            ticks.append(time.perf_counter())
        loop.validate(epoch=0)
        self.steps += [after - before for before, after in pairwise(ticks)]
        self.validations.append(time.perf_counter() - ticks[-1])

    def speed(self) -> Speed:
        step = median(self.steps)
        warming_up = max(0.0, sum(self.steps[:STEPS]) - STEPS * step)  # a compiler does its work in the first steps
        return Speed(
            fixed=self.fixed + warming_up,
            step=step,
            validation=median(self.validations),
            steps_per_epoch=self.loop.setup.steps_per_epoch,
            validate_every=self.loop.setup.recipe.validate_every,
            threads=self.threads,
            first=self.first.speed() if self.first else None,
        )


def _finished_below(folder: Path) -> list[Run]:
    """Runs inside a run: those that its method trained first."""
    return [Run(path.parent) for path in folder.glob("*/run.json")]
