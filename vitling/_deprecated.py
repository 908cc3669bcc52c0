"""What was renamed in 0.2 still works, with a warning that says the new name: modules, listeners, arguments. Deleted in 0.3."""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from vitling.callbacks import Callback, StudyCallback

# old module -> the modules in which its names are now, both inside vitling
MOVED = {
    "advice": "planning.rules",
    "app": "deploy.app",
    "build": "training.setup",
    "classifier": "deploy.predictor",
    "compare": "evaluation.comparison",
    "data.author_maps": "methods.token_labeling.author_maps",
    "data.boxes": "data.augment.boxes",
    "data.decode": "data.threads data.pipeline.decoding",
    "data.files": "data.sources.files",
    "data.images": "data.sources.images",
    "data.label_maps": "methods.token_labeling.label_maps",
    "data.loader": "data.pipeline.loader",
    "data.memory": "data.sources.memory",
    "data.mix": "methods.mixing",
    "data.named": "data.sources.named",
    "data.near_duplicates": "planning.near_duplicates",
    "data.pillow_ops": "data.augment.pillow_ops",
    "data.prepare": "data.pipeline.preprocessing data.pipeline.reading data.pipeline.training_data",
    "data.randaugment": "data.augment.randaugment",
    "data.survey": "planning.survey",
    "demo": "studies.demo",
    "diagnose.calibration": "evaluation.calibration",
    "diagnose.capture": "models.inspect",
    "diagnose.gradients": "models.inspect",
    "diagnose.plots": "reports.plots",
    "diagnose.probe": "diagnose.measures.probe",
    "evaluate": "evaluation.metrics evaluation.loop runs.run evaluation.evaluation",
    "export": "deploy.export",
    "figures": "papers.figures",
    "hub": "runs.hub deploy.hub",
    "listener": "callbacks",
    "methods.label_transport": "methods.token_labeling.transport",
    "model_card": "deploy.model_card",
    "muon": "optim.muon",
    "neighbours": "deploy.neighbours",
    "onnx_model": "runs.onnx_model deploy.onnx",
    "pace": "planning.speed",
    "passport": "runs.metadata",
    "plan": "planning.plan",
    "predict": "deploy.prediction",
    "recipe": "recipes",
    "relabel": "methods.token_labeling.relabeling",
    "report": "reports.page diagnose.run_page",
    "reproduce": "papers.reproduction",
    "run": "runs.run",
    "study": "studies.study",
    "study_results": "studies.results",
    "temperature": "evaluation.temperature evaluation.predictions",
    "train": "training.settings training.signals training.loop",
    "weights": "models.weights",
}

# old name -> new one, where a thing was renamed when it moved
RENAMED = {
    "Classifier": "Predictor",
    "Passport": "ModelMetadata",
    "find_twins": "find_near_duplicates",
    "open_classifier": "open_predictor",
}


def _warn(text: str) -> None:
    warnings.warn(f"{text}; the old name goes in vitling 0.3", DeprecationWarning, stacklevel=3)


def renamed_attribute(old: str, new: str) -> property:
    """An attribute under its old name."""

    def read(self):
        _warn(f"{type(self).__name__}.{old} is now {new}")
        return getattr(self, new)

    return property(read)


class MovedModule(ModuleType):
    """Stands in for a module that is gone: whatever is asked of it is fetched from where it is now."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "vitling.listener" and name in LISTENERS:
            new = "Callback" if name == "Listener" else "StudyCallback"
            _warn(f"{self.__name__}.{name} is now vitling.callbacks.{new}, with other method names")
            return LISTENERS[name]
        for place in MOVED[self.__name__.removeprefix("vitling.")].split():
            new = RENAMED.get(name, name)
            if hasattr(module := import_module(f"vitling.{place}"), new):
                _warn(f"{self.__name__}.{name} is now vitling.{place}.{new}")
                return getattr(module, new)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


# Found by the import statement, and not set as attributes: `vitling.train` is the function.
for _name in MOVED:
    sys.modules.setdefault(f"vitling.{_name}", MovedModule(f"vitling.{_name}"))


# ---------------------------------------------------------------------------------------------------------------------
# Listeners: the methods that a callback had before


class Listener(Callback):
    """A callback under its old name: its new methods call the old ones."""

    def say(self, text: str) -> None: ...
    def decoding(self, split: str, done: int, total: int | None) -> None: ...
    def started(self, facts: dict) -> None: ...
    def stepped(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None: ...
    def validated(self, record: dict, timing: dict) -> None: ...
    def finished(self, run: Any) -> None: ...

    def log(self, message: str) -> None:
        self.say(message)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        self.decoding(task.removeprefix("reading "), done, total)

    def on_start(self, facts: dict) -> None:
        self.started(facts)

    def on_step(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        self.stepped(epoch, step, steps, loss, images_per_second)

    def on_validation(self, record: dict, timing: dict) -> None:
        self.validated(record, timing)

    def on_end(self, run: Any) -> None:
        self.finished(run)


class StudyListener(Listener, StudyCallback):
    """The same for a study."""

    def planned(self, runs: int, finished: int) -> None: ...
    def ended(self, label: str, outcome: str) -> None: ...

    def began(self, label: str) -> Callback:
        return Callback()

    def on_study_start(self, runs: int, finished: int) -> None:
        self.planned(runs, finished)

    def on_run_start(self, label: str) -> Callback:
        return self.began(label)

    def on_run_end(self, label: str, outcome: str) -> None:
        self.ended(label, outcome)


LISTENERS = {"Listener": Listener, "StudyListener": StudyListener}


# ---------------------------------------------------------------------------------------------------------------------
# Arguments: `listener=`, `on_progress=` and `say=` are one now


class _Functions(StudyCallback):
    """A callback made of the functions that were given instead of one."""

    def __init__(self, listener: Callback | None, on_progress: Callable | None, say: Callable | None):
        self.listener = listener or StudyCallback()
        self.functions = {"on_progress": on_progress, "log": say}

    def __getattribute__(self, name: str):
        if name.startswith("_") or name in ("listener", "functions"):
            return super().__getattribute__(name)
        return self.functions.get(name) or getattr(self.listener, name)


def accept_old_arguments(function: Callable) -> Callable:
    """A public function that also takes the arguments that `callback` replaced."""
    if not inspect.isfunction(function) or "callback" not in inspect.signature(function).parameters:
        return function

    @functools.wraps(function)
    def accepting(*args, **kwargs):
        old = {name: kwargs.pop(name) for name in ("listener", "on_progress", "say") if name in kwargs}
        if old:
            _warn(f"vitling.{function.__name__}({', '.join(f'{name}=' for name in old)}) is now callback=")
            kwargs["callback"] = _Functions(*(old.get(name) for name in ("listener", "on_progress", "say")))
        return function(*args, **kwargs)

    return accepting
