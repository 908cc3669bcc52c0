"""The process of one run, on whichever machine it is started."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import vitling
from vitling.errors import UserError
from vitling.studies.engines.base import CRASHED, Job


class TrialProcess:
    """Starts `child` for a job. It saves and ends when it is asked to, and when the process that started it is gone."""

    def __init__(self, job: str, environment: dict[str, str] | None = None):
        given = Job.from_dict(json.loads(job))
        threads, processes = given.settings.threads, given.processes
        self.refusal = ""
        try:
            errors = given.open_log()
        except UserError as error:
            self.refusal = str(error)
            return
        with tempfile.NamedTemporaryFile("w", prefix="vitling-job-", suffix=".json", delete=False) as file:
            file.write(job)
        self.job_file = Path(file.name)
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
        )
        package = str(Path(vitling.__file__).parents[1])  # this vitling, also where it is not installed
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(paths), **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
        with errors:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, "-m", "vitling.studies.engines.child", file.name],
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **own, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches the study alone, which then asks the children
            )

    def events(self) -> Iterator[list]:
        """What it reports until it ends; the last is always its outcome."""
        if self.refusal:
            yield ["outcome", self.refusal]
            return
        outcome = None
        assert self.process.stdout is not None  # a pipe
        for line in self.process.stdout:
            event = json.loads(line)
            if event[0] == "outcome":
                outcome = event
            else:
                yield event
        code = self.process.wait()
        self.job_file.unlink(missing_ok=True)
        yield outcome or ["outcome", f"{CRASHED} {code}"]

    def stop(self) -> None:
        """Ask it to save and end."""
        if not self.refusal:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and whatever it started."""
        if not self.refusal and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
