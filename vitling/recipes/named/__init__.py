"""Named recipes: one file per paper or dataset, one function per recipe, called `file/function`."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable

from vitling.errors import UserError
from vitling.plugins import load_installed
from vitling.recipes.schema import Recipe

DEFAULT = "vitling/nano"  # the smallest of those that `vitling plan`, and `vitling train` without a recipe, choose from

REGISTERED: dict[str, Callable[[], Recipe]] = {}  # of plug-ins


def register_recipe(name: str, recipe: Callable[[], Recipe]) -> None:
    """Add a recipe of one's own, a function without arguments, under a name such as cells/vit_small."""
    if not re.fullmatch(r"[\w.-]+/[\w./-]*\w", name) or name.endswith((".yaml", ".yml")):
        raise UserError(f"the recipe {name!r:.80} needs a name of two parts, such as cells/vit_small.")
    if name in _own_recipes() or REGISTERED.get(name, recipe) is not recipe:
        raise UserError(f"there is a recipe {name} already; give yours another name.")
    REGISTERED[name] = recipe


def named_recipes() -> dict[str, Callable[[], Recipe]]:
    """Every recipe by name, those of plug-ins too. The functions are cheap to call and take nothing."""
    load_installed()
    return {**_own_recipes(), **REGISTERED}


def _own_recipes() -> dict[str, Callable[[], Recipe]]:
    found: dict[str, Callable[[], Recipe]] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda item: item.name):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        for name, function in vars(loaded).items():
            if inspect.isfunction(function) and function.__module__ == loaded.__name__ and not name.startswith("_"):
                found[f"{module.name}/{name}"] = function
    return found
