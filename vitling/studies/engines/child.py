"""The child of `local.Workers`: completes one run, and reports what happens.

It reads its job from standard input and writes JSON lines to standard output: a method of `Callback` and its arguments.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.errors import UserError
from vitling.recipes import from_dict
from vitling.studies.study import complete_run
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

REPORTED_EVERY_SECONDS = 0.5  # steps; everything else is reported at once


class Reporter(Callback):
    """Forwards every callback to the parent."""

    def __init__(self, stream: TextIO):
        self.stream, self.reported_at = stream, 0.0

    def report(self, *event: Any) -> None:
        print(json.dumps(event), file=self.stream, flush=True)

    def log(self, message: str) -> None:
        self.report("log", message)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        if done == total or self._is_due():
            self.report("on_progress", task, done, total)

    def on_start(self, facts: dict) -> None:
        self.report("on_start", facts)

    def on_step(self, *progress: Any) -> None:
        if self._is_due():
            self.report("on_step", *progress)

    def on_validation(self, record: dict, timing: dict) -> None:
        self.report("on_validation", record, timing)

    def _is_due(self) -> bool:
        due = time.monotonic() - self.reported_at > REPORTED_EVERY_SECONDS
        self.reported_at = time.monotonic() if due else self.reported_at
        return due


def main() -> None:
    job = json.load(sys.stdin)
    reporter = Reporter(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what others print must not reach the pipe
    given = job["settings"]
    settings = Settings(**{**given, "reading": Reading(**given["reading"]), "trackers": tuple(given["trackers"])})
    recipe, path = from_dict(job["recipe"]), Path(job["path"])
    try:
        complete_run(recipe, path, split=job["split"], settings=settings, callback=reporter)
        reporter.report("outcome", "done")
    except Interrupted:
        reporter.report("outcome", "interrupted")
    except UserError as error:
        reporter.report("outcome", str(error))


if __name__ == "__main__":
    main()
