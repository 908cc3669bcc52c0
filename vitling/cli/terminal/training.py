"""Progress of a training, and of anything else that takes a while: a live bar in a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vitling.callbacks import Callback
from vitling.cli.terminal.console import console, fold, note, print_line
from vitling.cli.terminal.notebook import NotebookProgress, in_notebook
from vitling.cli.terminal.watching import BARS, Watch
from vitling.cli.terminal.words import count_classes, duration, percent, unlabelled_result
from vitling.data.targets import Score, find_score
from vitling.evaluation.intervals import wilson_interval

if TYPE_CHECKING:
    from vitling.runs.records import DataRecord
    from vitling.runs.run import Run

C = TypeVar("C", bound=Callback)
LINE, CURVE = 80, 12  # characters of a line, and of the curve in it at most
COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(bar_width=12),
    TextColumn("{task.fields[text]}"),
    TimeRemainingColumn(),
)


class Plain(Callback):
    """One line per validation, for logs and pipes; at most one every two seconds."""

    def __init__(self) -> None:
        self.shown_at = 0.0
        self.pending: str | None = None
        self.watch = Watch()

    def log(self, message: str) -> None:
        print_line(message)

    def on_start(self, facts: dict) -> None:
        self.epochs, self.began, self.start_epoch = facts["epochs"], time.monotonic(), facts["start_epoch"]
        channels, height, width = facts["input"]
        self.log(
            f"{facts['model']} ({facts['parameters'] / 1e6:.2f} M parameters, {facts['method']}) on {facts['data']}: "
            f"{facts['train_images']:,} training and {facts['val_images']:,} validation images of {channels} x {height} x {width}, "
            f"{count_classes(facts)}"
        )
        self.log(
            f"{facts['epochs']:.4g} epochs of {facts['steps_per_epoch']} steps, learning rate {facts['lr']:g}, on {facts['device']}"
            + (f" x {facts['processes']}" if facts["processes"] > 1 else "")
        )

    def on_length(self, epochs: float) -> None:
        self.epochs = epochs

    def left(self, epoch: int) -> float:
        done = epoch - self.start_epoch
        return (time.monotonic() - self.began) / max(done, 1) * max(self.epochs - epoch, 0)

    def line(self, record: dict, *, with_curve: bool = False) -> str:
        """A validation in a line; with the curve of those before it, as far as there is room."""
        epochs = str(math.ceil(self.epochs))
        score = find_score(record)
        if score is None:
            begin = f"epoch {record['epoch']:>{len(epochs)}}/{epochs}  loss {record['train_loss']:.3f}  "
            return f"{begin}{unlabelled_result(record)}  {duration(self.left(record['epoch']))} left"
        begin = f"epoch {record['epoch']:>{len(epochs)}}/{epochs}  loss {record['train_loss']:.3f}  val {_short(score, record[score.recorded])}  "
        end = f"best {_short(score, record[score.best])} in {record['best_epoch']}  {duration(self.left(record['epoch']))} left"
        curve = self.watch.curve(min(CURVE, LINE - len(begin) - len(end) - 2)) if with_curve else ""
        return f"{begin}{curve}  {end}" if curve else begin + end

    def on_validation(self, record: dict, timing: dict) -> None:
        score = find_score(record)
        if score:
            self.watch.add(record)
        self.pending = self.line(record)
        warning = self.watch.warning(record, self.epochs) if score else None
        if warning or time.monotonic() - self.shown_at >= 2 or record["epoch"] >= self.epochs:
            self.flush()
        if warning:
            self.log(warning)

    def flush(self) -> None:
        if self.pending:
            self.log(self.pending)
            self.shown_at, self.pending = time.monotonic(), None

    def on_end(self, run: "Run") -> None:
        self.flush()
        info = run.info
        if "best" not in info:
            return
        best = info["best"]
        if members := run.members:
            self._end_of_folds(run, len(members))
            return
        if run.unlabelled:
            self.end_unlabelled(run)
            return
        score = run.score
        self.log(
            f"stopped: {info['stopped']}, after {duration(info['wall_seconds'])}. "
            f"Best validation {score.name} {score.show(best[score.recorded], digits=2)} in epoch {best['epoch']}."
        )
        has_test = "test" in info["data"].get("splits", ["test"])
        images = info["data"].get("val_images")
        if images and score.of_images:
            self.log(_meaning(best["val_top1"], images, info["data"], has_test))
        self.log(f"run directory: {run.path}")
        if has_test:
            self.log(f"next: vitling evaluate {run.path}    (the test set: look once)")
        else:
            self.log(f"next: vitling evaluate {run.path} --split val    (every number; the data has no test set)")

    def _end_of_folds(self, run: "Run", members: int) -> None:
        from vitling.evaluation.metrics import Evaluation  # brings torch, which a completion must not wait for

        info = run.info
        judged = Evaluation.read(run.path / "evaluation-val.json")
        low, high = judged.top1_interval
        over = f" over {judged.groups:,} groups" if judged.groups else ""
        self.log(
            f"{members} networks in {duration(info['wall_seconds'])}. Out-of-fold accuracy {percent(judged.top1)}: all {judged.images:,} images, each by "
            f"the one network that did not learn from it (95 % interval{over} {100 * low:.1f} to {100 * high:.1f} %). Together they are usually a little better."
        )
        self.log(f"run directory: {run.path}")
        if (run.path / "distilled").exists():
            self.log(f"the single network that learnt from them: {run.path / 'distilled'}")
        if "test" in info["data"].get("splits", ["test"]):
            self.log(f"next: vitling evaluate {run.path}    (the test set: look once)")
        else:
            self.log(f"next: vitling predict {run.path} IMAGE ...    (the ensemble answers like any run)")

    def end_unlabelled(self, run: "Run") -> None:
        info, records = run.info, run.metrics()
        self.log(
            f"stopped: {info['stopped']}, after {duration(info['wall_seconds'])}. {unlabelled_result(records[-1]).capitalize()}."
        )
        if any("val_neighbours_top1" in record for record in records):
            self.log(
                "neighbours: how often the nearest training images are of a held-out image's class. No label was learnt from."
            )
        if run.uses_test_images:
            self.log("the test split was among the images: a test number afterwards is of images that it has seen.")
        self.log(f"run directory: {run.path}    (its weights are those of the last epoch)")
        self.log(f"next: vitling train DATA init={run.path}")


def _short(score: Score, value: float) -> str:
    """A score in a line that has little room."""
    return score.show(value) if score.of_images else f"{score.short} {score.show(value)}"


def _meaning(accuracy: float, images: int, data: "DataRecord", has_test: bool) -> str:
    correct = round(accuracy * images)
    if known := data.get("val_known"):
        return f"That is {correct:,} of {images:,} images that {known} has learnt from, so it is too good: " + (
            "the test set decides." if has_test else "expect less on new images."
        )
    low, high = wilson_interval(correct, images)
    # With groups the images are not independent: the interval over those stands on the page, and `evaluate` gives it.
    groups = data.get("val_groups")
    spread = f"of {groups:,} groups" if groups else f"95 % interval {100 * low:.0f} to {100 * high:.0f} %"
    return (
        f"That is {correct:,} of {images:,} images that it did not learn from ({spread}). The epoch was chosen by "
        + ("them: the test set decides." if has_test else "them: expect a little less on new images.")
    )


class Bars:
    """Moving bars by name, each with a text of its own, under the lines that are printed."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}

    def print(self, text: str) -> None:
        console = self.progress.console
        for line in fold(text, console.width) if console.is_terminal else [text]:
            console.print(line, soft_wrap=True, markup=False)

    def move(self, name: str, done: float, total: float | None, text: str = "") -> None:
        """Bring a bar to this place; it appears with its first move."""
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(escape(name), total=total, text=text)
        self.progress.update(self.tasks[name], completed=done, total=total, text=text)

    def remove(self, name: str) -> None:
        if name in self.tasks:
            self.progress.remove_task(self.tasks.pop(name))

    def clear(self) -> None:
        for name in list(self.tasks):
            self.remove(name)


class Live(Plain):
    """A moving bar under the lines."""

    def __init__(self, progress: Progress):
        super().__init__()
        self.bars = Bars(progress)

    def log(self, message: str) -> None:
        self.bars.print(message)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        self.bars.move(task, done, total, f"{done:,}/{total:,}" if total else "")
        if done == total:
            self.bars.remove(task)

    def on_step(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        last = getattr(self, "last", "")
        text = f"epoch {epoch + 1}/{math.ceil(self.epochs)}  loss {loss:.3f}  {last}  {images_per_second:,.0f} images/s"
        self.bars.move("training", epoch * steps + step, round(self.epochs * steps), text)

    def on_validation(self, record: dict, timing: dict) -> None:
        score = find_score(record)
        self.last = f"val {score.show(record[score.recorded], digits=2)}" if score else ""
        super().on_validation(record, timing)

    def line(self, record: dict, *, with_curve: bool = True) -> str:
        return super().line(record, with_curve=with_curve and _can_show(BARS, self.bars.progress.console))


def _can_show(text: str, console: Console) -> bool:
    try:
        text.encode(console.encoding)
    except (LookupError, UnicodeEncodeError):  # a terminal of the last century
        return False
    return True


def live_progress(console: Console) -> Progress:
    """The bars that `Live` moves, each with a text of its own. All of it fits into 80 columns."""
    return Progress(*COLUMNS, console=console, transient=True)


@contextmanager
def calling_back(
    quiet: bool, *, silent: Callable[[], C], plain: Callable[[], C], live: Callable[[Progress], C]
) -> Iterator[C]:
    """The callback that fits the place: one with bars in a terminal, one of plain lines elsewhere, or a silent one."""
    if quiet:
        yield silent()
    elif console.is_terminal:
        with live_progress(console) as progress:
            yield live(progress)
    else:
        yield plain()


@contextmanager
def show_training(quiet: bool = False) -> Iterator[Callback]:
    """A callback for `train`."""
    if in_notebook() and not quiet:
        yield NotebookProgress()
        return
    with calling_back(quiet, silent=Callback, plain=Plain, live=Live) as callback:
        yield callback


@contextmanager
def resumable(print_line: Callable[[str], None] = print_line) -> Iterator[None]:
    """Say how to resume what was interrupted, and end the command with the code of the signal: what follows must not go on."""
    from vitling.training.signals import Interrupted

    try:
        yield
    except KeyboardInterrupt:
        print_line("interrupted; the same command resumes")
        sys.exit(130)
    except Interrupted as interruption:
        print_line(str(interruption))
        sys.exit(interruption.exit_code)


class Lines(Callback):
    """What is worth a line, wherever the command prints it."""

    def __init__(self, print_line: Callable[[str], None]):
        self.print_line = print_line

    def log(self, message: str) -> None:
        self.print_line(message)


class LinesAndBars(Lines):
    """The same, and a bar for every task on standard error."""

    def __init__(self, print_line: Callable[[str], None], progress: Progress):
        super().__init__(print_line)
        self.bars = Bars(progress)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        self.bars.move(task, done, total)


@contextmanager
def show_progress(quiet: bool = False, print_line: Callable[[str], None] = note) -> Iterator[Callback]:
    """A callback that moves bars on standard error where that is a terminal; lines are notes there, apart from any data."""
    if quiet or not sys.stderr.isatty():
        yield Lines(print_line)
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        yield LinesAndBars(print_line, progress)
