"""Seconds per epoch of streamed training beside training from memory, and seconds until the reading processes have ended.

    python benchmarks/streaming.py DATA [--recipe vitling/nano] [--turns 5] [--workers 2] [key=value ...]

Both are the same run but for where their pixels come from: `memory_gb=0` streams. They take turns of three epochs, each with a validation, so that
both share the machine's noise; the ratio is that of all turns together. The first epoch of a turn does not count: what it reads was begun
while the other one trained. Beside it stands the share of these epochs that training waits for pixels, which other programs disturb less than the ratio.
"""

import vitling  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import gc
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from torch import Tensor

from vitling import Callback, Settings
from vitling.data.pipeline.reading import Reading
from vitling.recipes import Recipe, override
from vitling.runs.asked import asked_for
from vitling.runs.run import Run
from vitling.training.beginning import open_loop
from vitling.training.loop import Loop
from vitling.training.setup import create_accelerator
from vitling.training.signals import StopRequest

EPOCHS = 3  # of a turn
MEMORY_GB = {"resident": 64.0, "streamed": 0.0}


def open_run(recipe: Recipe, folder: Path, memory_gb: float, workers: int) -> Loop:
    settings = Settings(reading=Reading(memory_gb=memory_gb, workers=workers), threads=1)
    accelerator = create_accelerator(settings, folder)
    asked = asked_for(recipe, None)
    return open_loop(Run(folder), recipe, asked, settings, Callback(), accelerator, StopRequest())


class Watch:
    """A run whose epochs are timed, and in them the time that goes by until a batch is there."""

    def __init__(self, loop: Loop):
        self.loop, self.waited = loop, 0.0
        self.epochs: list[float] = []
        self.waits: list[float] = []
        for source in (loop.setup.data.train, loop.setup.data.val):
            source.batches = self._timed(source.batches)

    def _timed(self, batches: Callable) -> Callable:
        def timed(plan: list[Tensor]) -> Iterator:
            found, batch = batches(plan), None
            while True:
                began = time.perf_counter()
                batch = next(found, None)
                self.waited += time.perf_counter() - began
                if batch is None:
                    return
                yield batch

        return timed

    def take_turn(self, turn: int) -> None:
        for epoch in range(turn * EPOCHS, (turn + 1) * EPOCHS):
            began, self.waited = time.perf_counter(), 0.0
            self.loop.train_epoch(epoch)
            self.loop.validate(epoch)
            if epoch > turn * EPOCHS:
                self.epochs.append(time.perf_counter() - began)
                self.waits.append(self.waited)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--recipe", default="vitling/nano")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    recipe = override(vitling.load_recipe(args.recipe), [f"data={args.data}", *args.overrides])
    with tempfile.TemporaryDirectory() as folder:
        watches = {
            name: Watch(open_run(recipe, Path(folder, name), memory_gb, args.workers))
            for name, memory_gb in MEMORY_GB.items()
        }
        for turn in range(args.turns):
            for watch in watches.values():
                watch.take_turn(turn)
        for name, watch in watches.items():
            share = 100 * sum(watch.waits) / sum(watch.epochs)
            print(
                f"{name}: {median(watch.epochs):.2f} s per epoch with its validation, {share:.1f} % of it waiting for pixels"
            )
        resident, streamed = (watch.epochs for watch in watches.values())
        ratios = sorted(ours / theirs for theirs, ours in zip(resident, streamed, strict=True))
        print(f"streamed / resident: {sum(streamed) / sum(resident):.2f} (epochs: {ratios[0]:.2f} to {ratios[-1]:.2f})")
        readers = len(multiprocessing.active_children())
        began = time.perf_counter()
        watches.clear()
        del watch
        gc.collect()  # a run in progress is a cycle
        assert not multiprocessing.active_children()
        print(f"{readers} reading processes ended in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
