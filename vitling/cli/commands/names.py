"""`vitling list`."""

from typing import Annotated

import typer

from vitling.cli import completion, terminal
from vitling.cli.options import AsJson


def list_names(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="models, recipes, methods or datasets.",
            autocompletion=completion.one_of("models", "recipes", "methods", "datasets"),
        ),
    ],
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Only names that contain this.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the names that the other commands take."""
    terminal.show_names(what, pattern, as_json)
