"""The local engine: each run of a study in a process of its own on this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.files import refuse_foreign, starting_with
from vitling.recipes import Recipe, to_dict
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

LOG_HEAD = b"What the process of a vitling study printed:"


class Workers:
    """Starts children and can ask all of them to save and end."""

    def __init__(self) -> None:
        self.processes: set[subprocess.Popen] = set()
        self.stopping = False

    def complete_run(self, recipe: Recipe, path: Path, *, split: str, settings: Settings, callback: Callback) -> None:
        """`study.complete_run` in a child, which raises here what it raised there."""
        if self.stopping:
            raise Interrupted(f"{path} was not begun")
        job = json.dumps({"recipe": to_dict(recipe), "path": str(path), "split": split, "settings": asdict(settings)})
        log = path.with_name(f"{path.name}.log")  # what torch and others write; kept when the child crashes
        log.parent.mkdir(parents=True, exist_ok=True)
        refuse_foreign(log, ours=starting_with(LOG_HEAD))
        environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads)} if settings.threads else None
        with open(log, "wb", buffering=0) as errors:
            errors.write(LOG_HEAD + b"\n")
            process = subprocess.Popen(
                [sys.executable, "-m", "vitling.studies.engines.child"],
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
            assert process.stdin is not None  # pipes, both of them
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # it died already: what it printed says why
                process.stdin.write(job)
                process.stdin.close()
            outcome = self._relay(process.stdout, callback)
            process.wait()
            self.processes.discard(process)
        if outcome == "interrupted" and not self.stopping:  # by somebody else
            log.unlink()
            raise UserError(f"the process of {path} was interrupted; it is saved, and the same command resumes it")
        if self.stopping and outcome != "done":
            log.unlink()
            raise Interrupted(f"{path} is saved")
        if outcome != "done":
            lines = log.read_text(errors="replace").strip().splitlines()[1:] or [f"exit code {process.returncode}"]
            raise UserError(outcome or f"the process of {path} crashed: {lines[-1]} (all of it: {log})")
        log.unlink()

    def _relay(self, reports: Iterable[str], callback: Callback) -> str:
        """Pass on what the child reports until it ends: "done", "interrupted", the reason of a failure, or "" for a crash."""
        outcome = ""
        for line in reports:
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
