"""The interface of an engine, and all that engines have in common: what a run's end means, and trying again where a machine died."""

import json
import os
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Annotated, Any, BinaryIO

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.errors import UserError
from vitling.files import append_text, refuse_foreign, starting_with, write_text
from vitling.plugins import pack_plugins
from vitling.recipes import Recipe, from_dict, to_dict
from vitling.runs.remote import as_url, working_folder
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted
from vitling.validation.values import Range, check

LOG_HEAD = "What the process of a vitling study printed:"
RETRIES = 3  # of a run whose machine died
MOST_AT_ONCE = 512
EVENTS = ("log", "on_progress", "on_start", "on_step", "on_length", "on_validation")  # of a callback, that travel


@dataclass(frozen=True)
class Job:
    """A run to be completed elsewhere, as JSON: nothing is pickled, so engines and machines may differ in versions."""

    recipe: Recipe
    place: str  # of the run: a path, or a URL of other storage
    split: str
    settings: Settings
    processes: int = 1  # that train it together
    attempt: int = 1

    def to_json(self) -> str:
        return json.dumps(
            {
                "recipe": to_dict(self.recipe),
                "place": self.place,
                "split": self.split,
                "settings": asdict(self.settings),
                "processes": self.processes,
                "attempt": self.attempt,
                "plugins": pack_plugins(),
            }
        )

    @classmethod
    def from_dict(cls, tree: dict[str, Any]) -> "Job":
        given = tree["settings"]
        reading, trackers = Reading(**given["reading"]), tuple(given["trackers"])
        settings = Settings(**{**given, "reading": reading, "trackers": trackers})
        recipe = from_dict(tree["recipe"])
        return cls(recipe, tree["place"], tree["split"], settings, tree["processes"], tree["attempt"])

    @property
    def path(self) -> Path:
        """The run's folder, here."""
        url = as_url(self.place)
        return working_folder(url) if url else Path(self.place)

    @property
    def log(self) -> Path:
        """What torch and others write; kept where the run fails. It lies where the run does: who sees it sees the run's folder."""
        return self.path.with_name(f"{self.path.name}.log")

    def open_log(self) -> BinaryIO:
        """To write to, on the machine that trains the run. It was made where the study is: who does not see it, lacks the folder."""
        if as_url(self.place):
            self.log.parent.mkdir(parents=True, exist_ok=True)
        elif not self.log.exists():
            raise UserError(
                f"{os.uname().nodename} does not see {self.log.parent}; give the study a folder that all machines share at the same "
                "path, or a place on object storage."
            )
        return open(self.log, "ab", buffering=0)

    @property
    def threads(self) -> int:
        return self.settings.threads or 1


class Lost(Exception):
    """The machine or the process that trained a run is gone; what it saved is not."""


class Engine(ABC):
    """Trains runs, each in a process of its own somewhere. A study asks for many at once, each in a thread.

    An engine says in `attempt` how one run is started, watched and ended. Used as a context, it is connected from `open` to `close`.
    """

    is_here = False  # whether runs are trained on this machine
    slots = MOST_AT_ONCE  # so many can be asked for at once

    def __init__(self, gpus_per_trial: float | None = None) -> None:
        self.gpus = _check_gpus(gpus_per_trial)
        self.stopping = False

    @abstractmethod
    def attempt(self, job: Job, callback: Callback) -> str:
        """Train a run until its process ends: "done", "interrupted", the reason of a failure, or "" and a number for a crash.

        `Lost` where the machine died. Once `stopping`, runs are asked to save and end.
        """

    def open(self, folder: Path) -> None:  # noqa: B027  (this machine needs neither)
        """Connect, for a study in that folder; a UserError where there is nothing to connect to."""

    def close(self) -> None:  # noqa: B027
        """Leave nothing behind."""

    def stop(self) -> None:
        """Ask all runs to save and end."""
        self.stopping = True

    def complete_run(
        self, recipe: Recipe, path: str | Path, *, split: str, settings: Settings, callback: Callback
    ) -> None:
        """`study.complete_run` elsewhere, which raises here what it raised there."""
        if self.stopping:
            raise Interrupted(f"{path} was not begun")
        job = Job(
            recipe, as_url(path) or str(Path(path).absolute()), split, settings, processes=max(1, int(self.gpus or 1))
        )
        job.log.parent.mkdir(parents=True, exist_ok=True)
        ours = starting_with(LOG_HEAD.encode())
        refuse_foreign(job.log, ours=ours)
        write_text(job.log, LOG_HEAD + "\n", ours)
        outcome = self._attempt_until_it_ends(job, callback)
        if outcome == "done":
            job.log.unlink()
            return
        if self.stopping:
            job.log.unlink()
            raise Interrupted(f"{path} is saved")
        if outcome == "interrupted":  # by somebody else
            job.log.unlink()
            raise UserError(f"the process of {path} was interrupted; it is saved, and the same command resumes it")
        if outcome.startswith(CRASHED):
            lines = job.log.read_text(errors="replace").strip().splitlines()[1:] or [outcome]
            raise UserError(f"the process of {path} crashed: {lines[-1]} (all of it: {job.log})")
        job.log.unlink()
        raise UserError(outcome)

    def _attempt_until_it_ends(self, job: Job, callback: Callback) -> str:
        """Try again where a machine dies: the run resumes from its last checkpoint."""
        while True:
            try:
                return self.attempt(job, callback)
            except Lost as lost:
                if self.stopping:
                    return "interrupted"
                if job.attempt > RETRIES:
                    raise UserError(
                        f"{lost}, {job.attempt} times with {job.place}; the same command resumes it (what it printed: {job.log})"
                    ) from None
                append_text(job.log, f"{lost}\n")
                callback.log(f"{lost}; {job.place} resumes elsewhere, {job.attempt} of {RETRIES} retries")
                job = replace(job, attempt=job.attempt + 1)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


CRASHED = "exit code"


def relay(event: list, callback: Callback) -> str:
    """Pass on what a run's process reports; its outcome where that is it, else nothing."""
    name, *arguments = event
    if name == "outcome":
        return arguments[0]
    if name in EVENTS:
        getattr(callback, name)(*arguments)
    return ""


def import_engine(package: str, extra: str) -> ModuleType:
    """The package of an engine, which is an extra."""
    try:
        return import_module(package)
    except ImportError:
        raise UserError(f'the engine {extra} needs the package {package}: pip install "vitling[{extra}]".') from None


def _check_gpus(gpus: float | None) -> float | None:
    if gpus is None:
        return None
    check(gpus, Annotated[float, Range(0, 1024)], "gpus_per_trial")
    if gpus > 1 and gpus != int(gpus):
        raise UserError(
            f"gpus_per_trial={gpus:g} is no whole number; give a part of one GPU, such as 0.5, or whole ones."
        )
    return gpus
