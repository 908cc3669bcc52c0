"""Runs of a study as SLURM jobs, through submitit. Jobs and study talk through files in the study's folder, which all machines share."""

import json
import secrets
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from vitling.callbacks import Callback
from vitling.errors import UserError, did_you_mean, first_line
from vitling.files import append_text, write_text
from vitling.studies.engines.base import Engine, Job, Lost, import_engine, relay
from vitling.studies.engines.process import TrialProcess

POLL_SECONDS = 1.0
MOST_REQUEUES = 1000  # of a job that its time limit, or one of higher priority, ended
MINUTES = 24 * 60  # of a job, unless given; one that takes longer is queued again, and resumes
KEYS = ("partition", "account", "qos", "constraint", "reservation", "mem", "time", "cluster")


class Trial:
    """What a job does: the run's process, its reports into a file, a look at whether it should stop."""

    def __init__(self, job: str, place: str):
        self.job, self.place = job, place

    def __call__(self) -> str:
        self.process = TrialProcess(self.job)
        threading.Thread(target=self._stop_when_asked, daemon=True).start()
        for event in self.process.events():
            append_text(f"{self.place}.events", json.dumps(event) + "\n")
        return "ended"

    def _stop_when_asked(self) -> None:
        while not Path(f"{self.place}.stop").exists():
            time.sleep(POLL_SECONDS)
        self.process.stop()

    def checkpoint(self) -> Any:
        """submitit calls this when the time of the job is over, or another one is to have its place: save, and queue it again."""
        from submitit.helpers import DelayedSubmission  # an extra

        self.process.stop()
        self.process.process.wait()
        again = {**json.loads(self.job), "attempt": 2}  # it may have to wait for us
        return DelayedSubmission(Trial(json.dumps(again), self.place))


class SlurmEngine(Engine):
    """Submits a job for each run."""

    def __init__(self, options: str = "", gpus_per_trial: float | None = None) -> None:
        super().__init__(gpus_per_trial)
        if self.gpus and self.gpus != int(self.gpus):
            raise UserError(f"gpus_per_trial={self.gpus:g}: SLURM gives whole GPUs; give 1.")
        self.options = _read_options(options)
        self.cluster = self.options.pop("cluster", "slurm")
        if self.cluster not in ("slurm", "local"):
            raise UserError(f"cluster={self.cluster} is not one of slurm, local (submitit's own, for trying it out).")
        self.minutes = self.options.pop("time", str(MINUTES))
        if not self.minutes.isdigit() or not int(self.minutes):
            raise UserError(f"time={self.minutes} is not a number of minutes; write slurm:time=240.")
        self.submitit: Any = import_engine("submitit", "slurm")
        self.lock = threading.Lock()  # of the executor, which is not made for threads

    def open(self, folder: Path) -> None:
        self.folder = folder.absolute() / f".vitling-jobs-{secrets.token_hex(4)}"
        if self.cluster == "slurm" and not (shutil.which("srun") and shutil.which("sbatch")):
            raise UserError(
                "no SLURM here: sbatch and srun are not on the path; run this on a login node, or choose local or ray."
            )
        try:
            self.executor = self.submitit.AutoExecutor(
                self.folder, cluster=self.cluster, slurm_max_num_timeout=MOST_REQUEUES
            )
            own = {f"slurm_{name}": value for name, value in self.options.items()}
            self.executor.update_parameters(
                name="vitling",
                timeout_min=int(self.minutes),
                tasks_per_node=1,
                gpus_per_node=int(self.gpus or 0),
                **({"slurm_python": sys.executable} if self.cluster == "slurm" else {}),
                **own,
            )
        except (RuntimeError, NameError, ValueError, TypeError) as error:
            raise UserError(f"SLURM cannot be used: {first_line(error)}") from None

    def close(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def attempt(self, job: Job, callback: Callback) -> str:
        place = self.folder / f"{secrets.token_hex(4)}-{job.attempt}"
        write_text(f"{place}.events", "")
        with self.lock:
            self.executor.update_parameters(cpus_per_task=job.threads)
            try:
                submitted = self.executor.submit(Trial(job.to_json(), str(place)))
            except Exception as error:  # what sbatch says becomes an exception of submitit's
                raise UserError(f"SLURM refuses the job: {first_line(error)}") from None
        return self._watch(submitted, place, callback)

    def _watch(self, submitted: Any, place: Path, callback: Callback) -> str:
        """Relay what the run reports until its outcome, or until its job is over without one."""
        seen, told = 0, False
        while True:
            over = submitted.done()  # before the look at the reports: what was reported last is read
            with open(f"{place}.events", "rb") as stream:
                stream.seek(seen)
                *lines, _ = stream.read().split(b"\n")  # what has no end yet is not whole
            for line in lines:
                seen += len(line) + 1
                if outcome := relay(json.loads(line), callback):
                    return outcome
            if over:
                raise Lost(f"the job {submitted.job_id} ended as {submitted.state}")
            if self.stopping and not told:
                told = True
                write_text(f"{place}.stop", "")
                if submitted.state.startswith("PENDING"):
                    submitted.cancel()
                    return "interrupted"
            time.sleep(POLL_SECONDS)


def _read_options(text: str) -> dict[str, str]:
    """`partition=gpu,time=240` as a dictionary."""
    options = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not value:
            raise UserError(f"slurm:{text} cannot be read; write slurm:partition=gpu,time=240.")
        if key not in KEYS:
            raise UserError(f"unknown SLURM option '{key}'. {did_you_mean(key, KEYS)}")
        options[key] = value
    return options
