"""vitling grows Vision Transformers from scratch on small image datasets.

After `import vitling`, timm knows our families: `timm.create_model("dhvt_tiny_cifar_patch4")` builds one. Torch is loaded when
something needs it; an ONNX file is predicted with in a second, without.
"""

__version__ = "0.3.0.dev0"

from importlib import import_module as _import_module

from vitling._deprecated import accept_old_arguments as _accept_old_arguments
from vitling._deprecated import find_old_name as _find_old_name
from vitling.importing.watch import register_models
from vitling.importing.watch import watch_imports as _watch_imports

# The public names and the module each lives in; they load on first use.
_PUBLIC = {
    "Callback": "vitling.callbacks",
    "NotebookProgress": "vitling.cli.terminal.notebook",
    "Predictor": "vitling.deploy.predictor",
    "Recipe": "vitling.recipes",
    "Settings": "vitling.training.settings",
    "UserError": "vitling.errors",
    "ViTClassifier": "vitling.estimator",
    "ViTRegressor": "vitling.estimator",
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
    "pretrain": "vitling.planning.pretraining",
    "relabel": "vitling.methods.token_labeling.relabeling",
    "reproduce": "vitling.papers.reproduction",
    "save_weights": "vitling.models.weights",
    "study": "vitling.studies.study",
    "train": "vitling.diagnose.paged",
    "train_folds": "vitling.ensembles.folds",
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


_watch_imports()
