"""Was the learning rate right? Tried, not guessed: the first steps of the run again, at its rate and at others.

Every rate starts from the run's own first weights and sees the same batches with the same random draws, so that their losses are
paired. A run whose rate is right learns faster at it than at a tenth of it, and at ten times as much it learns worse.
"""

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from statistics import mean

import numpy as np

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import prepare_training_data
from vitling.data.sources.dataset import Dataset
from vitling.methods import METHODS, Method
from vitling.models import default_size
from vitling.recipes import Recipe
from vitling.training.measurement import weights_kept
from vitling.training.random_state import callers_state_kept
from vitling.training.settings import Settings
from vitling.training.setup import Setup, build_setup, check_settings, create_accelerator
from vitling.training.step import MicroBatches, Stepper

FACTOR = 10.0  # between two rates
STEPS = (40, 80)  # of a trial: of a slow network, and of any other
MOST_STEPS = 320  # where nothing has been learnt in fewer: a plain ViT may take two hundred to begin
WARMUP = 0.4  # of the steps: the run had one too, as a rule
MOST_TRIALS, LOWEST = 5, 1e-9
CLEAR = 0.1  # of the loss of guessing, by which one rate must beat another
LEARNT = 0.2  # of the loss of guessing, by which some rate must have lowered it


@dataclass(frozen=True)
class RateTrial:
    """Mean loss in the last third of a trial's steps, by the factor on the run's rate; infinite where it diverged."""

    losses: dict[float, float]
    steps: int
    chance: float  # the loss of guessing

    @property
    def best(self) -> float:
        return min(self.losses, key=self.losses.__getitem__)

    @property
    def has_learnt(self) -> bool:
        """Whether it says anything: at no rate is one better where none has begun to learn."""
        return self.losses[self.best] < (1 - LEARNT) * self.chance

    @property
    def verdict(self) -> str:
        """high, low or right: whether another rate is clearly better; unclear where none has learnt anything."""
        if not self.has_learnt:
            return "unclear"
        here, best = self.losses[1.0], self.losses[self.best]
        if math.isinf(here) or here - best > CLEAR * self.chance:
            return "high" if self.best < 1 else "low" if self.best > 1 else "right"
        return "right"


def can_try(recipe: Recipe) -> bool:
    """Whether the run's method starts by itself; one that first needs maps, a teacher or another run would take too long."""
    return METHODS[recipe.method].prepare.__func__ is Method.prepare.__func__  # type: ignore[attr-defined]


def try_rates(
    recipe: Recipe,
    *,
    seconds: float,
    most_steps: int = MOST_STEPS,
    dataset: Dataset | None = None,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> RateTrial:
    """Train for a moment at the recipe's rate, a tenth and ten times of it, and on towards whichever is better.

    Where none of them learns anything, once more with twice the steps; `most_steps` are those that the run took itself.
    """
    callback = callback or Callback()
    with callers_state_kept():
        setup = _build(replace(recipe, compile="off"), dataset, reading or Reading(), callback)
        chance = _loss_of_guessing(setup.data.images["train"].labels)
        bases = [group["lr"] for group in setup.optimizer.param_groups]
        began = time.perf_counter()
        _trial(setup, STEPS[0], bases)
        affordable = int(STEPS[0] * seconds / 4 / max(time.perf_counter() - began, 1e-6))
        steps = min(max(affordable, STEPS[0]), STEPS[1])  # a slow network gets fewer
        while True:
            trial = RateTrial(_try_around(setup, bases, steps, callback), steps, chance)
            if trial.has_learnt or 2 * steps > min(most_steps, MOST_STEPS):
                return trial
            steps *= 2


def _try_around(setup: Setup, bases: list[float], steps: int, callback: Callback) -> dict[float, float]:
    """Losses by the factor on the rate."""
    losses: dict[float, float] = {}
    for factor in (1.0, 1 / FACTOR, FACTOR):
        losses[factor] = _trial(setup, steps, [factor * base for base in bases])
        callback.on_progress("trying learning rates", len(losses), 4)
    while (further := _further(losses)) is not None:
        losses[further] = _trial(setup, steps, [further * base for base in bases])
    callback.on_progress("trying learning rates", 4, 4)
    return losses


def _loss_of_guessing(labels: np.ndarray) -> float:
    """Of always giving each class its share of the images: less than log(classes) where one of them is most of the data."""
    shares = np.bincount(labels) / len(labels)
    return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


def _further(losses: dict[float, float]) -> float | None:
    """The next rate to try, beyond the best one so far; below all where every one diverged."""
    if all(map(math.isinf, losses.values())):
        lower = min(losses) / FACTOR**2
        return lower if lower > LOWEST else None
    best = min(losses, key=losses.__getitem__)
    if 1 / FACTOR < best < FACTOR or len(losses) >= MOST_TRIALS:
        return None
    further = best / FACTOR if best < 1 else best * FACTOR
    return None if further in losses else further


def _build(recipe: Recipe, dataset: Dataset | None, reading: Reading, callback: Callback) -> Setup:
    check_settings(recipe)
    accelerator = create_accelerator(Settings(), ".")
    data = prepare_training_data(
        recipe, reading, model_size=default_size(recipe.model), dataset=dataset, callback=callback
    )
    recipe = replace(recipe, img_size=data.preprocessing.size, channels=data.preprocessing.channels)
    return build_setup(
        recipe,
        data,
        accelerator,
        init=recipe.init,
        method_args=dict(recipe.method_args),
        load_init=True,
        callback=Callback(),
    )


def _batches(setup: Setup, count: int) -> Iterator[MicroBatches]:
    """The first batches of the run, the same for every trial; small data is seen several times."""
    return islice(chain.from_iterable(map(setup.loader.epoch, itertools.count())), count)


def _trial(setup: Setup, steps: int, rates: list[float]) -> float:
    stepper, losses = Stepper(setup), []
    warm = max(1, round(WARMUP * steps))
    with weights_kept(setup):
        setup.prepared.train()
        for step, batch in enumerate(_batches(setup, steps)):
            for group, rate in zip(setup.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * min(1.0, (step + 1) / warm)
            loss = stepper.take(step, batch)["loss"].item()
            if not math.isfinite(loss):
                return math.inf
            losses.append(loss)
    return mean(losses[-max(1, steps // 3) :])
