"""What a few steps measure before a run begins: whether these settings can train, on how many threads, and how fast."""

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vitling.errors import UserError
from vitling.training.budget import MEASURED_SHARE, MEASURED_STEPS, Speed
from vitling.training.setup import Setup
from vitling.training.step import MicroBatches, Stepper
from vitling.training.validation import measure, neighbour_images

TRIES = 4  # of each number of threads
SMALL_BATCH = 2**20  # pixels: larger ones always run on all threads


def try_a_step(setup: Setup, threads: int | None) -> None:
    """Compute one batch's gradients before the run is written down: what cannot train says so now.

    On a CPU it also chooses one thread or all, unless `threads` says how many: small models run faster on one, above all where
    other programs want the cores too.
    """
    accelerator, stepper = setup.accelerator, Stepper(setup)
    most = torch.get_num_threads()
    pixels = setup.recipe.batch_size * math.prod(setup.data.preprocessing.size)
    measured = accelerator.device.type == "cpu" and accelerator.num_processes == 1 and pixels < SMALL_BATCH
    candidates = [threads] if threads else [1, most] * TRIES if measured and most > 1 else [most]
    micro_batches = next(setup.loader.epoch(0))
    seconds: dict[int, float] = {}
    with weights_kept(setup):
        setup.prepared.train()
        for number in candidates:
            torch.set_num_threads(number)
            began = time.perf_counter()
            try:
                stepper.gradients(0, micro_batches)
            except UserError:
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                raise UserError(f"these settings cannot train: {str(error).strip().splitlines()[0]}") from error
            setup.optimizer.zero_grad()
            taken = time.perf_counter() - began
            # The first try warms up, and other programs only slow down: the best one counts.
            seconds[number] = min(taken, seconds.get(number, taken))
    torch.set_num_threads(min(seconds, key=seconds.__getitem__))


def measure_speed(setup: Setup, began: float, budget_seconds: float) -> Speed:
    """Seconds of a step and of a validation, from the first ones, and of everything since `began`."""
    stepper = Stepper(setup)
    ticks = [time.perf_counter()]  # between them: reading, augmenting and learning from a batch
    with weights_kept(setup):
        for micro_batches in endless_steps(setup):
            stepper.take(0, micro_batches)
            ticks.append(time.perf_counter())
            enough = ticks[-1] - ticks[0] > MEASURED_SHARE * budget_seconds
            if len(ticks) > MEASURED_STEPS or (enough and len(ticks) > 3):
                break
        validation_began = time.perf_counter()
        seen = measure(setup, setup.model, batches=1)["images"]
        shown = len(setup.data.val) + neighbour_images(setup)
        validation = (time.perf_counter() - validation_began) / seen * shown
    step = (ticks[-1] - ticks[1]) / (len(ticks) - 2)  # the first one warms up
    measured = torch.tensor([step, time.monotonic() - began, validation], device=setup.accelerator.device)
    step, fixed, validation = setup.accelerator.reduce(measured, "mean").tolist()
    return Speed(fixed, step, validation, setup.steps_per_epoch, setup.recipe.validate_every, torch.get_num_threads())


def endless_steps(setup: Setup) -> Iterator[MicroBatches]:
    """The batches of the first epoch, again and again."""
    while True:
        yield from setup.loader.epoch(0)


@contextmanager
def weights_kept(setup: Setup) -> Iterator[None]:
    """Afterwards weights, statistics and the optimiser are as they were before."""
    before = copy.deepcopy((setup.method.state_dict(), setup.optimizer.state_dict()))
    yield
    setup.method.load_state_dict(before[0])
    setup.optimizer.load_state_dict(before[1])
