"""Progress of a study or a reproduction, each of many runs, and their tables."""

import json
import sys
import time
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import Progress

from vitling.callbacks import Listener, StudyListener
from vitling.cli.terminal.console import print_whole, say
from vitling.cli.terminal.training import Plain, listening
from vitling.cli.terminal.words import duration, percent
from vitling.errors import UserError, did_you_mean


class PlainStudy(StudyListener):
    """Lines about a study: each run when it begins and ends, and every half minute what it does."""

    def __init__(self):
        self.runs = self.finished = self.begun = 0
        self.clock, self.done_before, self.said = time.monotonic(), 0, set()

    def say(self, text: str) -> None:
        if text not in self.said:  # what the data has to say, every run would say again
            self.said.add(text)
            self.print(text)

    def print(self, text: str) -> None:
        say(text)

    def measuring(self, done: int, total: int) -> None:
        self.say("measuring how fast the recipes train, in turns")

    def planned(self, runs: int, finished: int) -> None:
        self.runs, self.finished, self.begun, self.done_before = runs, finished, finished, finished
        self.clock = time.monotonic()
        self.print(f"{runs} runs" + (f", {finished} of them finished already" if finished else ""))

    def began(self, label: str) -> Listener:
        self.begun += 1
        self.print(f"run {self.begun} of {self.runs}: {label}")
        return PlainStudyRun(label, self)

    def ended(self, label: str, outcome: str) -> None:
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

    def say(self, text: str) -> None:
        self.study.say(text)

    def started(self, facts: dict) -> None:
        self.epochs, self.began, self.start_epoch = facts["epochs"], time.monotonic(), facts["start_epoch"]

    def validated(self, record: dict, timing: dict) -> None:
        if time.monotonic() - self.shown_at >= 30:
            self.shown_at = time.monotonic()
            self.study.print(f"{self.label}: {self.line(record, timing)}")


class LiveStudy(PlainStudy):
    """A bar for the study and one for each run in progress, under the lines of finished runs."""

    def __init__(self, progress: Progress):
        super().__init__()
        self.progress, self.bars = progress, {}

    def print(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True, markup=False)

    def bar(self, name: str, done: float, total: float, text: str = "") -> None:
        if name not in self.bars:
            self.bars[name] = self.progress.add_task(escape(name), total=total, text=text)
        self.progress.update(self.bars[name], completed=done, total=total, text=text)

    def remove(self, name: str) -> None:
        if name in self.bars:
            self.progress.remove_task(self.bars.pop(name))

    def measuring(self, done: int, total: int) -> None:
        self.bar("measuring in turns", done, total)

    def planned(self, runs: int, finished: int) -> None:
        self.remove("measuring in turns")
        super().planned(runs, finished)
        self.bar("study", finished, runs, f"{finished} of {runs} runs")

    def began(self, label: str) -> Listener:
        self.begun += 1
        return LiveStudyRun(label, self)

    def ended(self, label: str, outcome: str) -> None:
        self.remove(label)
        super().ended(label, outcome)
        self.bar("study", self.finished, self.runs, f"{self.finished} of {self.runs} runs, {self.times()}")


class LiveStudyRun(PlainStudyRun):
    """One run of a study, as a bar."""

    last = ""

    def decoding(self, split: str, done: int, total: int) -> None:
        self.study.bar(self.label, done, total, f"reading {split}")

    def stepped(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        text = f"epoch {epoch + 1}/{self.epochs}  {self.last}"
        self.study.bar(self.label, epoch * steps + step, self.epochs * steps, text)

    def validated(self, record: dict, timing: dict) -> None:
        self.last = f"val {percent(record['val_top1'])}"


@contextmanager
def show_study(quiet: bool = False):
    """A listener for `study`. When interrupted it says how to go on, and the command ends with code 130."""
    from vitling.training.signals import Interrupted

    try:
        with listening(quiet, silent=StudyListener, plain=PlainStudy, live=LiveStudy) as listener:
            yield listener
    except (Interrupted, KeyboardInterrupt) as interruption:
        print(str(interruption) or "interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)


def show_counting(listener: StudyListener):
    """A callback `(name, done, total)` for what comes before and after a study's runs: a bar among its bars."""

    def on_progress(name: str, done: int, total: int) -> None:
        listener.bar(name, done, total, f"{done} of {total}")
        if done >= total:
            listener.progress.remove_task(listener.bars.pop(name))

    return on_progress if isinstance(listener, LiveStudy) else None


def show_study_table(study) -> None:
    print_whole(*study.table())
    for note in study.notes():
        say(note)
    say(f"page: {study.folder / 'study.html'}    (beside it: table.md, table.csv)")
    if study.failures:
        say("next: the same command tries the failed runs again")
    elif study.split == "val":
        say("next: the same command with --split test, once, when the choice is made")


def show_papers(paper: str, as_json: bool = False) -> None:
    """Every table and figure that can be reproduced, a line each."""
    from vitling.papers import tables

    chosen = {name: table for name, table in tables().items() if name.startswith(paper)}
    if not chosen:
        raise UserError(f"no table '{paper}'. {did_you_mean(paper, tables())}")
    if as_json:
        print(json.dumps({name: table.title for name, table in chosen.items()}, indent=1, ensure_ascii=False))
        return
    for name, table in chosen.items():
        trained = sum(bool(row.recipe) for row in table.rows)
        small = sum(row.nano is not None for row in table.rows)
        print(f"{name:<22}{table.title} ({len(table.rows)} rows, {trained} with recipes, {small} at nano scale)")
    print("next: vitling reproduce NAME --dry-run, or --scale nano")


def show_reproduction(result) -> None:
    """A table with the paper's numbers and ours, or what would be trained."""
    say(result.title, style="bold")
    print_whole(*result.table())
    for note in result.notes():
        say(note)
    if result.study:
        say(f"page: {result.study.folder / 'reproduce.html'}    (beside it: reproduce.md, .json, study.html)")
    elif result.seconds:
        say("next: the same command without --dry-run")
