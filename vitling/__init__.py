"""vitling grows Vision Transformers from scratch on small image datasets.

Importing it takes milliseconds. Our families are registered with timm as soon as timm is imported, before or after this.
"""

__version__ = "0.1.0"

import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from vitling import _imports

_imports.watch_timm()

# The public names and the file each lives in. They load on first use, because torch takes seconds to import.
_PUBLIC = {
    "Recipe": "vitling.recipe",
    "UserError": "vitling.errors",
    "ViTClassifier": "vitling.estimator",
    "evaluate": "vitling.evaluate",
    "export": "vitling.export",
    "load_recipe": "vitling.recipe",
    "load_run": "vitling.run",
    "load_weights": "vitling.weights",
    "plan": "vitling.plan",
    "predict": "vitling.predict",
    "relabel": "vitling.relabel",
    "reproduce": "vitling.reproduce",
    "save_weights": "vitling.weights",
    "study": "vitling.study",
    "train": "vitling.train",
}
_PARTS = ("data", "diagnose", "methods", "models", "recipes")  # as in vitling.diagnose.linear_cka
__all__ = ["__version__", *sorted(_PUBLIC)]


class _Package(_ModuleType):
    """Keeps `vitling.train` the function: importing the file of that name would put the module in its place."""

    def __setattr__(self, name: str, value) -> None:
        if not (name in _PUBLIC and isinstance(value, _ModuleType)):
            super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package


def __getattr__(name: str):
    if name in _PUBLIC:
        value = getattr(_import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    if name in _PARTS:
        return _import_module(f"vitling.{name}")
    raise AttributeError(f"module 'vitling' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
