"""`vitling demo`."""

from pathlib import Path
from typing import Annotated

import typer

import vitling
from vitling.cli import terminal
from vitling.cli.options import Quiet


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs go. The same one again resumes them.")] = Path(
        "vitling-demo"
    ),
    open_page: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open the page in a browser; default: where there is a screen."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """See the whole story in two minutes, offline: two models learn digits, are compared, and explained."""
    vitling.register_models()

    from vitling.studies.demo import DATA, run_demo

    terminal.show_demo_plan(vitling.plan(DATA, brief=True), quiet)
    with terminal.show_study(quiet) as callback:
        story = run_demo(out, callback=callback)
    terminal.show_story(story)
    terminal.open_page(story.diagnosis, open_page)
