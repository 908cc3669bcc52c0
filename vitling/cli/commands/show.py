"""`vitling show`."""

import json
from typing import Annotated

import typer

from vitling.cli import completion
from vitling.cli.options import AsJson
from vitling.recipes import load_recipe, to_dict, to_yaml


def show(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A recipe's name, a YAML file or a run.", autocompletion=completion.recipes
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a recipe, as the YAML that --recipe takes."""
    shown = load_recipe(recipe)
    print(json.dumps(to_dict(shown), indent=1, ensure_ascii=False) if as_json else to_yaml(shown).rstrip())
