"""Trials, one after the other, in turns between the parts of the bench: what was tried, what held, and how to repeat what did not."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

SHOWN_EVERY_SECONDS = 0.2


@dataclass
class Tally:
    """What one part has tried so far."""

    part: str
    tried: int = 0
    held: int = 0
    seconds: float = 0.0
    counts: Counter = field(default_factory=Counter)  # what was tried, by its kind
    figures: list[tuple[str, str]] = field(default_factory=list)  # what was measured
    problems: list[tuple[int, str]] = field(default_factory=list)  # the number of the trial, and what did not hold

    def count(self, trial: int, problem: str, kind: str = "") -> None:
        """One thing that was tried: it held where there is no problem."""
        self.tried += 1
        self.held += not problem
        if kind:
            self.counts[kind] += 1
        if problem:
            self.problems.append((trial, problem))


class Part:
    """One part of the bench. Trial number n draws from (seed, n) alone, so it can be repeated by itself."""

    name: str
    about: str
    examples = 10  # that a trial tries, where it tries many
    share: float = 1.0  # of the time
    trials: int | None = None  # at most so many are worth doing

    def __init__(self, folder: Path, seed: int, seconds: float):
        self.folder, self.seed, self.seconds = folder, seed, seconds

    def try_one(self, number: int, tally: Tally) -> None:
        raise NotImplementedError


class Progress:
    """One line that moves on a terminal; elsewhere a line per trial."""

    def __init__(self, stream: TextIO):
        self.stream, self.moves, self.shown_at = stream, stream.isatty(), 0.0

    def show(self, text: str, last: bool = False) -> None:
        now = time.monotonic()
        if not self.moves:
            print(text, file=self.stream, flush=True)
        elif last or now - self.shown_at > SHOWN_EVERY_SECONDS:
            self.shown_at = now
            self.stream.write(f"\r\x1b[K{text[:118]}" + ("\n" if last else ""))
            self.stream.flush()


def run_bench(
    kinds: Sequence[type[Part]],
    folder: Path,
    *,
    seed: int,
    seconds: float,
    trials: int | None = None,
    only: int | None = None,
    examples: int | None = None,
    stream: TextIO | None = None,
) -> list[Tally]:
    """Every part for its share of the time, or for so many trials; with `only`, the trial of that number alone."""
    progress, shares = Progress(stream or sys.stderr), sum(kind.share for kind in kinds)
    parts = [kind(folder / kind.name, seed, seconds * kind.share / shares) for kind in kinds]
    for part in parts:
        part.examples = examples or part.examples
    tallies = [Tally(part.name) for part in parts]
    done = [0] * len(parts)
    began = time.monotonic()
    while True:
        waiting = [i for i, part in enumerate(parts) if _has_more(part, done[i], trials, only)]
        if trials is None and only is None and time.monotonic() - began > seconds:
            waiting = [i for i in waiting if not done[i]]  # each is tried once, however short the time
        if not waiting:
            return tallies
        i = min(waiting, key=lambda i: tallies[i].seconds / parts[i].share)
        number = done[i] if only is None else only
        started = time.monotonic()
        parts[i].try_one(number, tallies[i])
        tallies[i].seconds += time.monotonic() - started
        done[i] += 1
        tally, passed = tallies[i], time.monotonic() - began
        for trial, problem in tally.problems:
            if trial == number:
                progress.show(f"{tally.part} {number}: {problem}", last=True)
        progress.show(f"{passed:5.0f} s  {tally.part} {number}: {tally.held} of {tally.tried} held")


def _has_more(part: Part, done: int, trials: int | None, only: int | None) -> bool:
    if only is not None:
        return done == 0
    return all(limit is None or done < limit for limit in (trials, part.trials))


def summary(tallies: Sequence[Tally], seed: int, *options: str) -> str:
    """The table, and below it each thing that did not hold with the command that repeats it."""
    lines = [f"{'part':<12}{'tried':>8}{'held':>8}{'seconds':>9}"]
    for tally in tallies:
        lines.append(f"{tally.part:<12}{tally.tried:>8,}{tally.held:>8,}{tally.seconds:>9.0f}")
    for tally in tallies:
        lines += [f"{tally.part}: {what}: {figure}" for what, figure in tally.figures]
    for tally in tallies:
        for trial, problem in tally.problems:
            lines.append(f"did not hold: {problem}")
            lines.append(
                " ".join([f"  repeat: python -m torture {tally.part} --seed {seed} --trial {trial}", *options])
            )
    return "\n".join(lines)


def all_held(tallies: Sequence[Tally]) -> bool:
    return all(tally.held == tally.tried for tally in tallies)


def markdown(tallies: Sequence[Tally], parts: dict[str, type[Part]], circumstances: str) -> str:
    """The same as a page shows it."""
    lines = [f"{circumstances}:", ""]
    lines += ["| part | what | tried | held |", "|---|---|---|---|"]
    for tally in tallies:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.counts.items()))
        about = parts[tally.part].about + (f" ({kinds})" if kinds else "")
        lines.append(f"| `{tally.part}` | {about} | {tally.tried:,} | {tally.held:,} |")
    figures = [figure for tally in tallies for figure in tally.figures]
    if figures:
        lines += ["", "| measured | |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in figures)]
    return "\n".join(lines)
