"""What was renamed in 0.2 still works, with a warning that says the new name: modules, names, arguments, attributes, listeners.

First the tables, then what reads them. In 0.3 this file goes, and with it every line that names it.
"""

import sys
import warnings
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from inspect import isfunction, signature
from operator import attrgetter
from types import ModuleType
from typing import Any

from vitling.callbacks import Callback, StudyCallback

# Modules that are gone -> where their names are now, both inside vitling.
NAMED_RECIPES = "bootstrapping cifar10 cifar100 claims dhvt diagnosis digits folder lvvit t2t vitling yardsticks"
MOVED = {
    "advice": "planning.rules planning.conflicts planning.expectation",
    "app": "deploy.app",
    "build": "training.setup",
    "classifier": "deploy.predictor",
    "compare": "evaluation.comparison",
    "data.author_maps": "methods.token_labeling.author_maps",
    "data.boxes": "data.augment.boxes",
    "data.decode": "data.threads data.pipeline.decoding",
    "data.files": "data.sources.files data.sources.tree",
    "data.images": "data.sources.images",
    "data.label_maps": "methods.token_labeling.label_maps",
    "data.loader": "data.pipeline.loader",
    "data.memory": "data.sources.memory",
    "data.mix": "methods.mixing",
    "data.named": "data.sources.named",
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
    "evaluate": "evaluation.intervals evaluation.metrics evaluation.loop runs.run evaluation.evaluation diagnose.paged",
    "export": "deploy.export",
    "figures": "papers.figures",
    "hub": "runs.hub deploy.hub",
    "listener": "callbacks",
    "methods.label_transport": "methods.token_labeling.transport",
    "methods.surroundings": "methods.preparation",
    "model_card": "deploy.model_card",
    "muon": "optim.muon",
    "neighbours": "deploy.neighbours",
    "onnx_model": "runs.onnx_model runs.exported deploy.onnx",
    "pace": "training.budget planning.speed",
    "passport": "runs.metadata",
    "plan": "planning.plan",
    "predict": "deploy.prediction deploy.inputs",
    "recipe": "recipes",
    "relabel": "methods.token_labeling.relabeling",
    "report": "reports.page diagnose.run_page",
    "reproduce": "papers.reproduction",
    "run": "runs.run",
    "study": "studies.study",
    "study_page": "studies.page",
    "study_results": "evaluation.intervals studies.results",
    "temperature": "evaluation.temperature evaluation.predictions",
    "train": "training.settings training.signals training.beginning training.loop",
    "weights": "models.weights",
    **{f"recipes.{name}": f"recipes.named.{name}" for name in NAMED_RECIPES.split()},
}

# Modules that are still there -> where some of their names are now.
SPLIT = {
    "diagnose.attention": "diagnose.measures.distance diagnose.measures.diversity diagnose.measures.entropy diagnose.measures.locality",
    "diagnose.features": "diagnose.measures.channels diagnose.measures.rank diagnose.measures.similarity",
    "diagnose.health": "evaluation.metrics",
    "methods": "methods.preparation",
}

# Names that changed, wherever they are.
RENAMED = {
    "Classifier": "Predictor",
    "Pace": "Speed",
    "Passport": "ModelMetadata",
    "Surroundings": "Preparation",
    "demo": "run_demo",
    "find_twins": "find_near_duplicates",
    "measure_paces": "measure_speeds",
    "model_card": "render_card",
    "open_classifier": "Predictor",
    "run_page": "build_run_page",
    "survey": "survey_data",
}

# Arguments of functions that changed. `listener=`, `on_progress=` and `say=` became `callback=` in all functions that have it.
ARGUMENTS: dict[str, dict[str, str]] = {
    "channel_statistics": {"white": "max_value"},
    "decode": {"white": "max_value"},
    "diagnose_run": {},  # hands its callback on
    "fit_image": {"white": "max_value"},
    "generalisation_gap": {"train_right": "train_correct", "right": "correct"},
    "load_image": {"white": "max_value"},
    "per_class_accuracy": {"probs": "scores"},
    "prepare_method": {"around": "preparation"},
    "wilson_interval": {"successes": "correct", "trials": "images"},
}
# Functions whose on_progress did not get the task's name.
COUNTED = {"decode", "find_near_duplicates", "measure_speeds", "write_maps"}

# Methods of a callback -> those of a listener.
LISTENER_METHODS = {
    "log": "say",
    "on_start": "started",
    "on_step": "stepped",
    "on_validation": "validated",
    "on_end": "finished",
    "on_study_start": "planned",
    "on_run_start": "began",
    "on_run_end": "ended",
}
MEASURING = "measuring the speed"  # the task that was `StudyListener.measuring`

# Attributes of classes that are met only as the result of a function: set when the function is fetched.
RESULTS = {"plan": ("Plan", "pace", "speed")}


def _warn(text: str, stacklevel: int = 3) -> None:
    warnings.warn(f"{text}; the old name goes in vitling 0.3", DeprecationWarning, stacklevel=stacklevel)


# ---------------------------------------------------------------------------------------------------------------------
# Attributes


def renamed_attribute(old: str, new: str) -> property:
    """An attribute under its old name; the new one may be an attribute of an attribute."""

    def read(self):
        _warn(f"{type(self).__name__}.{old} is now {new}")
        return attrgetter(new)(self)

    return property(read)


# ---------------------------------------------------------------------------------------------------------------------
# Listeners


class Adapter(StudyCallback):
    """A callback that calls the methods of a listener: of any object that has some of them, or, without one, its own."""

    def __init__(self, listener: Any = None):
        self._listener = listener

    def _find(self, *names: str) -> Callable | None:
        listener = vars(self).get("_listener")  # the constructor of a subclass may not have called ours
        if listener is None:
            listener, names = self, names[:1]  # the second name is the method that asks
        return next((getattr(listener, name) for name in names if hasattr(listener, name)), None)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        if task == MEASURING and (measuring := self._find("measuring")):
            measuring(done, total)
        elif decoding := self._find("decoding"):
            decoding(task.removeprefix("reading "), done, total)
        elif isinstance(listener := vars(self).get("_listener"), Callback):
            listener.on_progress(task, done, total)


def _calling(new: str, old: str) -> Callable:
    def call(self: Adapter, *values: Any) -> Any:
        method = self._find(old, new)
        result = method(*values) if method else None
        return adapt(result, Callback()) if new == "on_run_start" else result

    return call


for _new, _old in LISTENER_METHODS.items():
    setattr(Adapter, _new, _calling(_new, _old))


def adapt(listener: Any, default: Callback | None = None) -> Callback | None:
    """A listener as a callback; a callback is one already."""
    if listener is None:
        return default
    return listener if isinstance(listener, Callback) else Adapter(listener)


class Listener(Adapter):
    """What a callback was."""

    def say(self, text: str) -> None: ...
    def decoding(self, split: str, done: int, total: int | None) -> None: ...
    def started(self, facts: dict) -> None: ...
    def stepped(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None: ...
    def validated(self, record: dict, timing: dict) -> None: ...
    def finished(self, run: Any) -> None: ...


class StudyListener(Listener):
    """What the callback of a study was."""

    def measuring(self, done: int, total: int) -> None: ...
    def planned(self, runs: int, finished: int) -> None: ...
    def ended(self, label: str, outcome: str) -> None: ...

    def began(self, label: str) -> Listener:
        return Listener()


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


def accept_old_arguments(value: Any, module: str) -> Any:
    """A function takes its old arguments too, as a member of `module`, so that it can be pickled; all else stays as it is."""
    return _accepting(value, module) if isfunction(value) else value


@cache
def _accepting(function: Any, module: str) -> Any:
    name = function.__name__
    if name in RESULTS:
        result, old, new = RESULTS[name]
        setattr(getattr(sys.modules[function.__module__], result), old, renamed_attribute(old, new))
    renamed, takes_callback = ARGUMENTS.get(name), "callback" in signature(function).parameters
    if renamed is None and not takes_callback:
        return function

    @wraps(function)
    def accepting(*args, **kwargs):
        changed = {}
        for old, new in (renamed or {}).items():
            if old in kwargs:
                _warn(f"{module}.{name}({old}=) is now {new}=")
                changed[new] = kwargs.pop(old)
        if replaced := {old: kwargs.pop(old) for old in ("listener", "on_progress", "say") if old in kwargs}:
            _warn(f"{module}.{name}({', '.join(f'{old}=' for old in replaced)}) is now callback=")
            changed["callback"] = _one_callback(**replaced, counted=name in COUNTED)
        return function(*args, **changed, **kwargs)

    accepting.__module__ = module
    return accepting


def _one_callback(listener: Any = None, on_progress: Any = None, say: Any = None, *, counted: bool) -> Callback | None:
    if counted and on_progress:
        on_progress = partial(_without_task, on_progress)
    functions = {name: given for name, given in (("on_progress", on_progress), ("log", say)) if given}
    if not functions:
        return adapt(listener)
    callback = Adapter(listener)
    vars(callback).update(functions)
    return callback


def _without_task(on_progress: Callable, task: str, done: int, total: int | None) -> None:
    on_progress(done, total)


# ---------------------------------------------------------------------------------------------------------------------
# What was taken out


def spearman(x: Any, y: Any) -> Any:
    """Correlation of ranks."""
    import torch  # this file is read before anything else, and the command line is quick
    from scipy.stats import spearmanr

    return torch.tensor(spearmanr(torch.as_tensor(x).cpu(), torch.as_tensor(y).cpu()).statistic, dtype=torch.float64)


def gradient_norms(model: Any) -> dict[str, float]:
    """Norm of the gradient of every parameter that has one."""
    return {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}


# What is kept here -> what to use instead.
KEPT: dict[str, tuple[Any, str]] = {
    "diagnose.gradient_norms": (gradient_norms, "vitling.diagnose.layer_gradient_norms, one number per layer"),
    "diagnose.health.gradient_norms": (gradient_norms, "vitling.diagnose.layer_gradient_norms, one number per layer"),
    "diagnose.match.spearman": (spearman, "scipy.stats.spearmanr"),
    "diagnose.spearman": (spearman, "scipy.stats.spearmanr"),
    "listener.Listener": (Listener, "vitling.callbacks.Callback, with other method names"),
    "listener.StudyListener": (StudyListener, "vitling.callbacks.StudyCallback, with other method names"),
}


# ---------------------------------------------------------------------------------------------------------------------
# Modules and names


def find_old_name(module: str, name: str, stacklevel: int = 3) -> Any:
    """What the module had under that name: a module, what is kept here, or what lies elsewhere now."""
    inside = module.removeprefix("vitling").removeprefix(".")
    path = f"{inside}.{name}".removeprefix(".")
    if path in MOVED:
        return sys.modules[f"vitling.{path}"]
    if path in KEPT:
        value, new = KEPT[path]
        _warn(f"vitling.{path} is now {new}", stacklevel)
        return value
    if not name.startswith("__"):
        for place in (MOVED.get(inside) or SPLIT.get(inside, "")).split():
            found = import_module(f"vitling.{place}")
            for now in (name, RENAMED.get(name, name)):
                if hasattr(found, now):
                    _warn(f"{module}.{name} is now vitling.{place}.{now}", stacklevel)
                    return accept_old_arguments(getattr(found, now), module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def keep_old_names(module: str) -> None:
    """Let a module that is loaded answer to its old names, and its functions to their old arguments."""
    found = sys.modules[module]
    vars(found)["__getattr__"] = partial(find_old_name, module)
    for name in ARGUMENTS.keys() & vars(found).keys():
        setattr(found, name, accept_old_arguments(getattr(found, name), module))


# The import statement finds them. They are no attributes of the package: `vitling.train` is the function.
for _name in MOVED:
    _module = ModuleType(f"vitling.{_name}")
    _module.__spec__ = ModuleSpec(_module.__name__, None)
    sys.modules.setdefault(_module.__name__, _module)
    keep_old_names(_module.__name__)
