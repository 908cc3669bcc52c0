"""Progress in a notebook: one display that is replaced as things go on, however long they take."""

import html
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from vitling.callbacks import Callback, StudyCallback
from vitling.cli.terminal.words import count_classes, unlabelled_result
from vitling.data.targets import find_score
from vitling.errors import UserError

SECONDS = 0.5  # between two changes of the display: each is a message that the notebook keeps
SHOWN = 8  # lines, the newest ones


class NotebookProgress(StudyCallback):
    """A bar and the newest lines in the output of a cell. Needs IPython, as every notebook has it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            from IPython.display import HTML, display
        except ImportError:
            raise UserError("NotebookProgress needs IPython, which notebooks bring: pip install ipython.") from None
        self._html, self._display, self._clock = HTML, display, clock
        self._handle: Any = None
        self._shown_at = -math.inf
        self.lines: list[str] = []
        self.bar: tuple[str, float, float | None] | None = None  # name, done, total
        self.prefix, self.result, self.epochs = "", "", 0.0

    # -- what is told ----------------------------------------------------------------------------------------------

    def log(self, message: str) -> None:
        self.lines = [*self.lines, f"{self.prefix}{message}"][-SHOWN:]
        self._show()

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        self._move(task, done, total)

    def on_start(self, facts: dict) -> None:
        self.epochs, self.result = facts["epochs"], ""
        self.log(
            f"{facts['model']} on {facts['data']}: {facts['train_images']:,} training images, {count_classes(facts)}"
        )

    def on_length(self, epochs: float) -> None:
        self.epochs = epochs

    def on_step(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        text = f"epoch {epoch + 1}/{math.ceil(self.epochs)}, loss {loss:.3f}, {images_per_second:,.0f} images/s"
        self._move(text, epoch * steps + step, self.epochs * steps)

    def on_validation(self, record: dict, timing: dict) -> None:
        score = find_score(record)
        if score is None:
            self.result = f"{self.prefix}{unlabelled_result(record)} after epoch {record['epoch']}"
            self._show(now=record["epoch"] >= self.epochs)
            return
        reached, best = (score.show(record[key], digits=2) for key in (score.recorded, score.best))
        self.result = (
            f"{self.prefix}validation {score.name} {reached} after epoch {record['epoch']}, the best so far {best}"
        )
        self._show(now=record["epoch"] >= self.epochs)

    # -- a study ---------------------------------------------------------------------------------------------------

    def on_study_start(self, runs: int, finished: int) -> None:
        self.log(f"{runs} runs, {finished} of them finished already")

    def on_run_start(self, label: str) -> Callback:
        self.prefix = f"{label}: "
        return self

    def on_run_end(self, label: str, outcome: str) -> None:
        self.prefix, self.result, self.bar = "", "", None
        self.log(f"{label}: {outcome}")
        self._show(now=True)

    # -- what is shown ---------------------------------------------------------------------------------------------

    def _move(self, name: str, done: float, total: float | None) -> None:
        self.bar = (f"{self.prefix}{name}", done, total)
        finished = total is not None and done >= total
        self._show(now=finished)
        if finished:
            self.bar = None

    def _show(self, now: bool = False) -> None:
        if not now and self._clock() - self._shown_at < SECONDS:
            return  # whatever comes next shows this too
        self._shown_at = self._clock()
        content = self._html(self._render())
        if self._handle is None:
            self._handle = self._display(content, display_id=True)
        else:
            self._handle.update(content)

    def _render(self) -> str:
        shown = [*self.lines, *filter(None, [self.result])]
        parts = [f"<div>{html.escape(line)}</div>" for line in shown]
        if self.bar:
            name, done, total = self.bar
            amount = "" if total is None else f' value="{done:g}" max="{total:g}"'
            parts.append(f"<div><progress{amount}></progress> {html.escape(name)}</div>")
        return f'<div style="font-family: monospace">{"".join(parts)}</div>'


def in_notebook() -> bool:
    """Whether a kernel without a terminal runs this, and so shows HTML."""
    if "IPython" not in sys.modules:  # nobody has started one
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None
