"""Callback: how anything that takes a while says what it does. Free of torch, so that the command line starts fast."""

from typing import Any


class Callback:
    """Told what happens, and shows nothing; subclasses override what they want to know.

    Every function that works for longer than a moment takes one as `callback`.
    """

    def log(self, message: str) -> None:
        """Something worth a line."""

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        """So much of a task is done; a total of None is not known."""

    def on_start(self, facts: dict) -> None:
        """Training begins, or goes on: model, data, epochs and more, by name."""

    def on_step(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        """A step of an epoch, counted from 1, of so many in that epoch."""

    def on_validation(self, record: dict, timing: dict) -> None:
        """What is written into metrics.jsonl, with the best so far, and into timing.jsonl."""

    def on_end(self, run: Any) -> None:
        """Training has ended; the run directory holds everything."""


class StudyCallback(Callback):
    """Told about a study, and about each of its runs through a callback of its own."""

    def on_study_start(self, runs: int, finished: int) -> None:
        """So many runs are planned, and so many of them are finished already."""

    def on_run_start(self, label: str) -> Callback:
        """What will be told about the run of that label."""
        return Callback()

    def on_run_end(self, label: str, outcome: str) -> None:
        """A score, or the reason of a failure."""
