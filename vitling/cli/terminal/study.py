"""Progress of a study or a reproduction, each of many runs, and their tables."""

import json
import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rich.progress import Progress

from vitling.callbacks import Callback, StudyCallback
from vitling.cli.terminal.console import print_line, print_pairs, print_whole
from vitling.cli.terminal.training import Bars, Plain, calling_back, resumable
from vitling.cli.terminal.words import duration
from vitling.data.targets import find_score
from vitling.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from vitling.papers.plan import Request
    from vitling.papers.reproduction import Reproduction
    from vitling.studies.study import Study


class PlainStudy(StudyCallback):
    """Lines about a study: each run when it begins and ends, and every half minute what it does."""

    def __init__(self) -> None:
        self.runs = self.finished = self.begun = 0
        self.clock, self.done_before = time.monotonic(), 0
        self.logged: set[str] = set()

    def log(self, message: str) -> None:
        if message not in self.logged:  # what every run would log again
            self.logged.add(message)
            self.print(message)

    def print(self, text: str) -> None:
        print_line(text)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        if not self.runs:  # before the runs, which say more themselves
            self.log(task)

    def on_study_start(self, runs: int, finished: int) -> None:
        self.runs, self.finished, self.begun, self.done_before = runs, finished, finished, finished
        self.clock = time.monotonic()
        self.print(f"{runs} run{'s' * (runs != 1)}" + (f", {finished} of them finished already" if finished else ""))

    def on_run_start(self, label: str) -> Callback:
        self.begun += 1
        self.print(f"run {self.begun} of {self.runs}: {label}")
        return PlainStudyRun(label, self)

    def on_run_end(self, label: str, outcome: str) -> None:
        self.finished += 1
        self.print(f"{label}: {outcome}    ({self.finished} of {self.runs} done, {self.times()})")

    def times(self) -> str:
        elapsed, here, todo = time.monotonic() - self.clock, self.finished - self.done_before, self.runs - self.finished
        left = f", about {duration(elapsed / here * todo)} left" if here and todo else ""
        return f"{duration(elapsed)} elapsed{left}"


class PlainStudyRun(Plain):
    """One run of a study, in few lines."""

    def __init__(self, label: str, study: PlainStudy):
        super().__init__()
        self.label, self.study, self.shown_at = label, study, time.monotonic()

    def log(self, message: str) -> None:
        self.study.log(message)

    def on_progress(self, task: str, done: int, total: int | None) -> None: ...

    def on_start(self, facts: dict) -> None:
        self.epochs, self.began, self.start_epoch = facts["epochs"], time.monotonic(), facts["start_epoch"]

    def on_validation(self, record: dict, timing: dict) -> None:
        if time.monotonic() - self.shown_at >= 30:
            self.shown_at = time.monotonic()
            self.study.print(f"{self.label}: {self.line(record)}")


class LiveStudy(PlainStudy):
    """A bar for the study and one for each run in progress, under the lines of finished runs."""

    def __init__(self, progress: Progress):
        super().__init__()
        self.bars = Bars(progress)

    def print(self, text: str) -> None:
        self.bars.print(text)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        self.bars.move(task, done, total)
        if done == total:
            self.bars.remove(task)

    def on_study_start(self, runs: int, finished: int) -> None:
        self.bars.clear()
        super().on_study_start(runs, finished)
        self.bars.move("study", finished, runs, f"{finished} of {runs} runs")

    def on_run_start(self, label: str) -> Callback:
        self.begun += 1
        return LiveStudyRun(label, self)

    def on_run_end(self, label: str, outcome: str) -> None:
        self.bars.remove(label)
        super().on_run_end(label, outcome)
        self.bars.move("study", self.finished, self.runs, f"{self.finished} of {self.runs} runs, {self.times()}")


class LiveStudyRun(PlainStudyRun):
    """One run of a study, as a bar."""

    study: LiveStudy
    last = ""

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        self.study.bars.move(self.label, done, total, task)

    def on_step(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        text = f"epoch {epoch + 1}/{math.ceil(self.epochs)}  {self.last}"
        self.study.bars.move(self.label, epoch * steps + step, round(self.epochs * steps), text)

    def on_validation(self, record: dict, timing: dict) -> None:
        score = find_score(record)
        self.last = f"val {score.show(record[score.recorded], digits=2)}" if score else ""


@contextmanager
def show_study(quiet: bool = False) -> Iterator[StudyCallback]:
    """A callback for `study`. When interrupted it says how to resume."""
    with (
        resumable(partial(print, file=sys.stderr)),
        calling_back(quiet, silent=StudyCallback, plain=PlainStudy, live=LiveStudy) as callback,
    ):
        yield callback


def show_study_table(study: "Study") -> None:
    print_whole(*study.table())
    for note in study.notes():
        print_line(note)
    print_line(f"page: {study.folder / 'study.html'}    (beside it: table.md, table.csv)")
    if study.failures:
        print_line("next: the same command tries the failed runs again")
    elif study.split == "val":
        print_line("next: the same command with --split test, once, when the choice is made")


def show_papers(paper: str, as_json: bool = False) -> None:
    """Every table and figure that can be reproduced, a line each."""
    from vitling.papers import tables

    chosen = {name: table for name, table in tables().items() if name.startswith(paper)}
    if not chosen:
        raise UserError(f"no table '{paper}'. {did_you_mean(paper, tables())}")
    if as_json:
        print(json.dumps({name: table.title for name, table in chosen.items()}, indent=1, ensure_ascii=False))
        return
    pairs = []
    for name, table in chosen.items():
        trained = sum(bool(row.recipe) for row in table.rows)
        small = sum(row.nano is not None for row in table.rows)
        pairs.append((name, f"{table.title} ({len(table.rows)} rows, {trained} with recipes, {small} at nano scale)"))
    print_pairs(pairs)
    print_line("next: vitling reproduce NAME --dry-run, or --scale nano")


def show_coverage(as_json: bool = False) -> None:
    """What of each table and figure can be run, as the table of Markdown in docs/reproducing.md."""
    from vitling.papers.coverage import HEAD, coverage_markdown, coverage_rows

    if as_json:
        names = ("name", *HEAD[1:])
        print(json.dumps([dict(zip(names, row, strict=True)) for row in coverage_rows()], indent=1, ensure_ascii=False))
    else:
        print(coverage_markdown(), end="")


def show_reproduction(result: "Reproduction") -> None:
    """A table with the paper's numbers and ours, or what would be trained."""
    print_line(result.title, style="bold")
    print_whole(*result.table())
    for note in result.notes():
        print_line(note)
    if result.study:
        print_line(f"page: {result.study.folder / 'reproduce.html'}    (beside it: reproduce.md, .json, study.html)")
    if result.next_step:
        what = f"    ({result.next_step.what})" if result.next_step.what else ""
        print_line(f"next: {reproduce_command(result.next_step.request)}{what}")


def reproduce_command(request: "Request") -> str:
    """The command line of a request."""
    from vitling.papers.plan import SEEDS

    seeds = request.seeds if isinstance(request.seeds, int) else ",".join(map(str, request.seeds))
    words = ["vitling", "reproduce", request.name]
    for option, value, default in (
        ("--scale", request.scale, "paper"),
        ("--rows", request.rows, ""),
        ("--data", request.data, None),
        ("--split", request.split, ""),
        ("--seeds", seeds, SEEDS),
        ("--epochs", request.epochs, None),
        ("--budget", f"{request.budget_seconds:g}s" if request.budget_seconds else None, None),
        ("--jobs", request.jobs, None),
        ("--on", request.on, "local"),
        ("--gpus-per-trial", request.gpus_per_trial, None),
    ):
        if value != default:
            words += [option, str(value)]
    return shlex.join(words)
