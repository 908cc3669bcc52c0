"""Named recipes: one file per paper or dataset, one function per recipe, called `file/function`."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path

from vitling.recipe import Recipe


def named_recipes() -> dict[str, Callable[[], Recipe]]:
    """Every recipe by name. The functions are cheap to call and take nothing."""
    found = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda item: item.name):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        for name, function in vars(loaded).items():
            if inspect.isfunction(function) and function.__module__ == loaded.__name__ and not name.startswith("_"):
                found[f"{module.name}/{name}"] = function
    return found


def default_recipe(data: str) -> str:
    """The recipe for data that comes without one: its own dataset's, or one for small images or for photographs."""
    named = f"{data.replace('-', '_')}/vit_nano"
    if named in named_recipes():
        return named
    photographs = Path(data).exists() and not data.endswith(".npz")
    return "folder/vit_nano" if photographs or data.startswith("hf:") else "folder/vit_nano_small"
