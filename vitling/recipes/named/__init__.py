"""Named recipes: one file per paper or dataset, one function per recipe, called `file/function`."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable

from vitling.recipes.schema import Recipe

DEFAULT = "vitling/nano"  # the smallest of those that `vitling plan`, and `vitling train` without a recipe, choose from


def named_recipes() -> dict[str, Callable[[], Recipe]]:
    """Every recipe by name. The functions are cheap to call and take nothing."""
    found: dict[str, Callable[[], Recipe]] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda item: item.name):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        for name, function in vars(loaded).items():
            if inspect.isfunction(function) and function.__module__ == loaded.__name__ and not name.startswith("_"):
                found[f"{module.name}/{name}"] = function
    return found
