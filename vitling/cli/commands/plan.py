"""`vitling plan`."""

from pathlib import Path
from typing import Annotated

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import (
    AsJson,
    Budget,
    Changes,
    Data,
    DataRoot,
    MemoryGb,
    Quiet,
    Threads,
    absolute,
    reading_options,
)
from vitling.files import new, refuse_foreign
from vitling.recipes import save_recipe


def plan(
    data: Data,
    settings: Changes = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Plan for this recipe instead of choosing one.", autocompletion=completion.recipes),
    ] = None,
    budget: Budget = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Plan for a device that is elsewhere, such as cuda:a100; times are worked out, not measured."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the recipe into this new YAML file.")] = None,
    threads: Threads = None,
    data_root: DataRoot = None,
    memory_gb: MemoryGb = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Look at the data and the machine; say what would be trained, why, and how long it takes."""
    budget_seconds = terminal.parse_budget(budget)
    chosen = vitling.override(vitling.load_recipe(recipe), settings or []) if recipe else None
    if save:
        refuse_foreign(save, ours=new)

    with terminal.show_progress(quiet or as_json) as callback:
        where = dict(threads=threads, reading=reading_options(data_root, memory_gb, None), callback=callback)
        planned = vitling.plan(
            data, settings or [], recipe=chosen, budget_seconds=budget_seconds, device=device, **where
        )
    if save:
        save_recipe(vitling.override(planned.recipe, {"data": absolute(data)}), save, ours=new)
    print(planned.to_json()) if as_json else terminal.show_plan(planned, data, settings or [], save)
