"""The child of `process.TrialProcess`: completes one run, and reports what happens.

It reads its job from a file and writes JSON lines to standard output: a method of `Callback` and its arguments. Standard input
is its lifeline: when that ends, whoever started it is gone, and it saves and ends.
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.plugins import unpack_plugins
from vitling.runs.run import Occupied
from vitling.studies.engines.base import Job
from vitling.studies.study import complete_run
from vitling.training.signals import Interrupted

REPORTED_EVERY_SECONDS = 0.5  # steps; everything else is reported at once
OCCUPIED_SECONDS = 60.0  # the process of an attempt that counts as lost may need so long to save and end


class Reporter(Callback):
    """Forwards every callback to the parent."""

    def __init__(self, stream: TextIO):
        self.stream, self.reported_at = stream, 0.0

    def report(self, *event: Any) -> None:
        with suppress(BrokenPipeError):  # nobody listens any more: the lifeline says so too, and then it saves
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

    def on_length(self, epochs: float) -> None:
        self.report("on_length", epochs)

    def on_validation(self, record: dict, timing: dict) -> None:
        self.report("on_validation", record, timing)

    def _is_due(self) -> bool:
        due = time.monotonic() - self.reported_at > REPORTED_EVERY_SECONDS
        self.reported_at = time.monotonic() if due else self.reported_at
        return due


def main() -> None:
    tree = json.loads(Path(sys.argv[1]).read_text())
    is_first = os.environ.get("RANK", "0") == "0"
    reporter = Reporter(os.fdopen(os.dup(1), "w") if is_first else open(os.devnull, "w"))  # noqa: SIM115  (as long as the process)
    os.dup2(2, 1)  # what others print must not reach the pipe
    threading.Thread(target=save_when_alone, daemon=True).start()
    try:
        unpack_plugins(tree["plugins"])
        complete(Job.from_dict(tree), reporter)
        reporter.report("outcome", "done")
    except Interrupted:
        reporter.report("outcome", "interrupted")
    except UserError as error:
        reporter.report("outcome", str(error))


def complete(job: Job, callback: Callback) -> None:
    """Complete the run. Where this is not the first attempt, the process of the one before may still be saving."""
    given_up = time.monotonic() + OCCUPIED_SECONDS
    while True:
        try:
            complete_run(job.recipe, job.place, split=job.split, settings=job.settings, callback=callback)
            return
        except Occupied:
            if job.attempt == 1 or time.monotonic() > given_up:
                raise
            time.sleep(1)


def save_when_alone() -> None:
    """Wait for the end of standard input, then stop as after SIGTERM."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
