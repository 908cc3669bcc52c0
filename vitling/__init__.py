"""vitling grows Vision Transformers from scratch on small image datasets.

Importing it takes milliseconds. Our families are registered with timm as soon as timm is imported, before or after this.
"""

__version__ = "0.1.0"

from importlib import import_module as _import_module

from vitling import _imports

_imports.watch_timm()

# The public names and the file each lives in. They load on first use, because torch takes seconds to import.
_PUBLIC = {
    "Recipe": "vitling.recipe",
    "UserError": "vitling.errors",
    "evaluate": "vitling.evaluate",
    "load_recipe": "vitling.recipe",
    "load_run": "vitling.run",
    "load_weights": "vitling.weights",
    "predict": "vitling.predict",
    "relabel": "vitling.relabel",
    "save_weights": "vitling.weights",
    "train": "vitling.train",
}
__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str):
    if name in _PUBLIC:
        value = getattr(_import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'vitling' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
