"""Seconds per epoch of streamed training beside training from memory, and seconds until the reading processes have ended.

    python benchmarks/streaming.py DATA [--recipe vitling/nano] [--epochs 4] [--workers 2] [key=value ...]

Both are the same run but for where their pixels come from: `memory_gb=0` streams. They take turns, epoch by epoch with a validation after each,
so that both share the machine's noise; the ratio is that of all turns together. The first epoch of each warms up and does not count.
"""

import vitling  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import gc
import multiprocessing
import tempfile
import time
from pathlib import Path
from statistics import median

from vitling import Callback, Settings
from vitling.data.pipeline.reading import Reading
from vitling.recipes import Recipe, override
from vitling.runs.run import Run, asked_for
from vitling.training.beginning import open_loop
from vitling.training.loop import Loop
from vitling.training.setup import create_accelerator
from vitling.training.signals import StopRequest

MEMORY_GB = {"resident": 64.0, "streamed": 0.0}


def open_run(recipe: Recipe, folder: Path, memory_gb: float, workers: int) -> Loop:
    settings = Settings(reading=Reading(memory_gb=memory_gb, workers=workers), threads=1)
    accelerator = create_accelerator(settings, folder)
    asked = asked_for(recipe, None)
    return open_loop(Run(folder), recipe, asked, settings, Callback(), accelerator, StopRequest())


def epoch_seconds(loop: Loop, epoch: int) -> float:
    began = time.perf_counter()
    loop.train_epoch(epoch)
    loop.validate(epoch)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--recipe", default="vitling/nano")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    recipe = override(vitling.load_recipe(args.recipe), [f"data={args.data}", *args.overrides])
    with tempfile.TemporaryDirectory() as folder:
        loops = {
            name: open_run(recipe, Path(folder, name), memory_gb, args.workers) for name, memory_gb in MEMORY_GB.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for epoch in range(args.epochs + 1):
            for name, loop in loops.items():
                seconds[name].append(epoch_seconds(loop, epoch))
        readers = len(multiprocessing.active_children())
        began = time.perf_counter()
        loops.clear()
        del loop
        gc.collect()  # a run in progress is a cycle
        ended = time.perf_counter() - began
        assert not multiprocessing.active_children()
    for name, taken in seconds.items():
        print(f"{name}: {median(taken[1:]):.2f} s per epoch and validation, the first {taken[0]:.2f} s")
    resident, streamed = (taken[1:] for taken in seconds.values())
    turns = sorted(ours / theirs for theirs, ours in zip(resident, streamed, strict=True))
    ratio = sum(streamed) / sum(resident)
    print(f"streamed / resident: {ratio:.2f} (turns: {turns[0]:.2f} to {turns[-1]:.2f}, median {median(turns):.2f})")
    print(f"{readers} reading processes ended in {ended:.2f} s")


if __name__ == "__main__":
    main()
