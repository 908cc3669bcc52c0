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
    NoCache,
    PlannedPrecision,
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
    why: Annotated[
        bool, typer.Option("--why", help="Give the reason for every choice, and the row that it rests on.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the recipe into this new YAML file.")] = None,
    precision: PlannedPrecision = "",
    threads: Threads = None,
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    memory_gb: MemoryGb = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Look at the data and the machine; say what would be trained, how long it takes and what to expect; --why gives the reasons."""
    budget_seconds = terminal.parse_budget(budget)
    chosen = vitling.override(vitling.load_recipe(recipe), settings or []) if recipe else None
    if save:
        refuse_foreign(save, ours=new)

    with terminal.show_progress(quiet or as_json) as callback:
        planned = vitling.plan(
            data,
            settings or [],
            recipe=chosen,
            budget_seconds=budget_seconds,
            device=device,
            threads=threads,
            precision=precision,
            reading=reading_options(data_root, memory_gb, None, no_cache),
            callback=callback,
        )
    if save:
        save_recipe(vitling.override(planned.recipe, {"data": absolute(data)}), save, ours=new)
    if as_json:
        print(planned.to_json())
        return
    given = {
        "--recipe": recipe,
        "--budget": budget,
        "--precision": precision,
        "--threads": threads,
        "--data-root": data_root,
    }
    flags = [word for flag, value in given.items() if value for word in (flag, str(value))]
    terminal.show_plan(planned, [data, *(settings or []), *flags], save, why, device)
