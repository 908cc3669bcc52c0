"""A run of a study in a process of its own: both ends of the pipe.

The child reads its job from standard input and tells what happens as JSON lines: a method of `Callback` and its arguments.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.recipes import Recipe, from_dict, to_dict

TOLD_EVERY_SECONDS = 0.5  # steps; everything else is told at once


class Workers:
    """Starts children and can ask all of them to save and end."""

    def __init__(self):
        self.processes: set[subprocess.Popen] = set()
        self.stopping = False

    def complete_run(self, recipe: Recipe, path: Path, *, split: str, settings, callback: Callback) -> None:
        """`study.complete_run` in a child, which raises here what it raised there."""
        from vitling.training.signals import Interrupted

        if self.stopping:
            raise Interrupted(f"{path} was not begun")
        job = json.dumps({"recipe": to_dict(recipe), "path": str(path), "split": split, "settings": asdict(settings)})
        log = path.with_name(f"{path.name}.log")  # what torch and others write; kept when the child crashes
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads)} if settings.threads else None
        with open(log, "w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "vitling.studies.engines.local"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which then asks the children
            )
            self.processes.add(process)
            if self.stopping:  # asked in the moment before
                process.send_signal(signal.SIGTERM)
            process.stdin.write(job)
            process.stdin.close()
            outcome = self._hear(process, callback)
            process.wait()
            self.processes.discard(process)
        if outcome == "interrupted" or (self.stopping and outcome != "done"):
            log.unlink()
            raise Interrupted(f"{path} is saved")
        if outcome != "done":
            lines = log.read_text().strip().splitlines() or [f"exit code {process.returncode}"]
            raise UserError(outcome or f"the process of {path} crashed: {lines[-1]} (all of it: {log})")
        log.unlink()

    def _hear(self, process: subprocess.Popen, callback: Callback) -> str:
        """Pass on what the child tells until it ends: "done", "interrupted", the reason of a failure, or "" for a crash."""
        outcome = ""
        for line in process.stdout:
            event, *arguments = json.loads(line)
            if event == "outcome":
                outcome = arguments[0]
            else:
                getattr(callback, event)(*arguments)
        return outcome

    def stop(self) -> None:
        self.stopping = True
        for process in list(self.processes):
            process.send_signal(signal.SIGTERM)


class Telling(Callback):
    """Writes what it hears to the parent."""

    def __init__(self, stream):
        self.stream, self.told_at = stream, 0.0

    def tell(self, *event) -> None:
        print(json.dumps(event), file=self.stream, flush=True)

    def log(self, message: str) -> None:
        self.tell("log", message)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        if done == total or self._time_is_right():
            self.tell("on_progress", task, done, total)

    def on_start(self, facts: dict) -> None:
        self.tell("on_start", facts)

    def on_step(self, *progress) -> None:
        if self._time_is_right():
            self.tell("on_step", *progress)

    def on_validation(self, record: dict, timing: dict) -> None:
        self.tell("on_validation", record, timing)

    def _time_is_right(self) -> bool:
        right = time.monotonic() - self.told_at > TOLD_EVERY_SECONDS
        self.told_at = time.monotonic() if right else self.told_at
        return right


def main() -> None:
    job = json.load(sys.stdin)
    telling = Telling(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what others print must not reach the pipe

    from vitling.data.pipeline.reading import Reading
    from vitling.studies.study import complete_run
    from vitling.training.settings import Settings
    from vitling.training.signals import Interrupted

    given = job["settings"]
    settings = Settings(**{**given, "reading": Reading(**given["reading"]), "trackers": tuple(given["trackers"])})
    try:
        complete_run(
            from_dict(job["recipe"]), Path(job["path"]), split=job["split"], settings=settings, callback=telling
        )
        telling.tell("outcome", "done")
    except Interrupted:
        telling.tell("outcome", "interrupted")
    except UserError as error:
        telling.tell("outcome", str(error))


if __name__ == "__main__":
    main()
