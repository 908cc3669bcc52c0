"""Callback: the progress channel of everything that takes a while. Free of torch, so that the command line starts fast."""

from typing import Any


class Callback:
    """Receives progress and does nothing with it; subclasses override the methods they need.

    Every long-running function takes one as `callback`.
    """

    def log(self, message: str) -> None:
        """A message of one line."""

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        """So much of a task is done; the total is None where it is unknown."""

    def on_start(self, facts: dict) -> None:
        """Training starts or resumes: model, data, epochs and more, by name."""

    def on_step(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        """A step of an epoch, counted from 1, of so many in that epoch."""

    def on_length(self, epochs: float) -> None:
        """The run will end after so many epochs in all; said again when a budget moves the end."""

    def on_validation(self, record: dict, timing: dict) -> None:
        """What is written into metrics.jsonl, with the best so far, and into timing.jsonl."""

    def on_end(self, run: Any) -> None:  # a `runs.Run`, which this module must not import
        """Training has ended; the run directory holds everything."""


class StudyCallback(Callback):
    """The same for a study; each of its runs gets a callback of its own."""

    def on_study_start(self, runs: int, finished: int) -> None:
        """So many runs are planned, and so many of them are finished already."""

    def on_run_start(self, label: str) -> Callback:
        """The callback of the run with that label."""
        return Callback()

    def on_run_end(self, label: str, outcome: str) -> None:
        """The score, or the reason for the failure."""


class ImproveCallback(StudyCallback):
    """The same for an improvement, which is several studies."""

    def on_change(self, improvement: Any) -> None:  # an `improvement.record.Improvement`
        """A round begins or ends, or the result is there."""
