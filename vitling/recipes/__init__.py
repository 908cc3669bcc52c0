"""Recipes: what an experiment is. The dataclasses, how they are read and written, and the named ones."""

from vitling._deprecated import keep_old_names
from vitling.recipes.named import DEFAULT, named_recipes, register_recipe
from vitling.recipes.parsing import (
    all_keys,
    from_dict,
    load_recipe,
    override,
    read_recipe,
    read_recipes,
    save_recipe,
    to_dict,
    to_yaml,
)
from vitling.recipes.schema import NO_FIRST_STAGE, Augment, Optim, Recipe, replace, scale_epochs

__all__ = [
    "DEFAULT",
    "NO_FIRST_STAGE",
    "Augment",
    "Optim",
    "Recipe",
    "all_keys",
    "from_dict",
    "load_recipe",
    "named_recipes",
    "override",
    "read_recipe",
    "read_recipes",
    "register_recipe",
    "replace",
    "save_recipe",
    "scale_epochs",
    "to_dict",
    "to_yaml",
]

keep_old_names(__name__)
