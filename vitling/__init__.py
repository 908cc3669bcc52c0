"""vitling grows Vision Transformers from scratch on small image datasets.

Importing it registers our families with timm, so that `timm.create_model("dhvt_tiny_cifar_patch4")` builds them. The command, a
machine without torch and a program that sets VITLING_WITHOUT_TORCH=1 do without: an ONNX file is predicted with in a second.
"""

__version__ = "0.2.0"

import os as _os
import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

from vitling._deprecated import accept_old_arguments as _accept_old_arguments
from vitling._deprecated import find_old_name as _find_old_name

# The public names and the module each lives in; they load on first use.
_PUBLIC = {
    "Callback": "vitling.callbacks",
    "NotebookProgress": "vitling.cli.terminal.notebook",
    "Predictor": "vitling.deploy.predictor",
    "Recipe": "vitling.recipes",
    "Settings": "vitling.training.settings",
    "UserError": "vitling.errors",
    "ViTClassifier": "vitling.estimator",
    "evaluate": "vitling.diagnose.paged",
    "examine": "vitling.planning.checkup",
    "export": "vitling.deploy.export",
    "import_plugin": "vitling.plugins",
    "improve": "vitling.improvement.improvement",
    "load_recipe": "vitling.recipes",
    "load_run": "vitling.runs.run",
    "load_weights": "vitling.models.weights",
    "open_model": "vitling.runs.opening",
    "override": "vitling.recipes",
    "plan": "vitling.planning.plan",
    "predict": "vitling.deploy.prediction",
    "relabel": "vitling.methods.token_labeling.relabeling",
    "reproduce": "vitling.papers.reproduction",
    "save_weights": "vitling.models.weights",
    "study": "vitling.studies.study",
    "train": "vitling.diagnose.paged",
    "train_more": "vitling.diagnose.paged",
}
_LIGHT = {  # need no torch; predicting does for all but some exported files
    "vitling.callbacks",
    "vitling.deploy.prediction",
    "vitling.deploy.predictor",
    "vitling.errors",
    "vitling.plugins",
    "vitling.recipes",
}
_PACKAGES = ("data", "diagnose", "methods", "models", "recipes")  # as in vitling.diagnose.linear_cka
__all__ = ["__version__", "register_models", *sorted(_PUBLIC)]


def __getattr__(name: str):
    if name in _PUBLIC:
        if _PUBLIC[name] not in _LIGHT:
            register_models()
        value = _accept_old_arguments(getattr(_import_module(_PUBLIC[name]), name), __name__)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return _import_module(f"vitling.{name}")
    return _find_old_name(__name__, name, stacklevel=4)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


def register_models() -> None:
    """Enter every family into timm's registry. Done by `import vitling`; calling it again changes nothing."""
    _import_module("vitling.models")


def _is_the_command() -> bool:
    """Whether this process is the `vitling` command. It registers models when it needs them: its help does not wait for torch."""
    if _sys.argv[:1] == ["-m"]:  # Python is looking for the module; its name precedes the arguments
        return _sys.orig_argv[-len(_sys.argv) :][:1] == ["vitling"]
    return _Path(*_sys.argv[:1]).stem == "vitling"


def _does_without_torch() -> bool:
    """Whether this is a machine, or a program, that only predicts with exported files; torch takes seconds to load."""
    if _sys.modules.get("torch") is not None:
        return False
    return bool(_os.environ.get("VITLING_WITHOUT_TORCH")) or _find_spec("torch") is None


if not _is_the_command() and not _does_without_torch():
    register_models()
