"""`vitling study`."""

from pathlib import Path
from typing import Annotated, Any

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import (
    AsCsv,
    AsJson,
    DataRoot,
    EqualTime,
    GpusPerTrial,
    Jobs,
    MemoryGb,
    NoCache,
    On,
    Precision,
    Quiet,
    Seeds,
    ThreadsOfEach,
    Workers,
    absolute,
    reading_options,
)
from vitling.errors import UserError
from vitling.recipes import read_recipes


def study(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|KEY=VALUE",
            help='Names, YAML files or runs; with settings and a name of its own: "plain: digits/vit_nano epochs=5". '
            "Settings that stand alone are for all.",
            autocompletion=completion.recipes_and_settings,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(help="Data for all recipes; default: each recipe's own.", autocompletion=completion.data),
    ] = None,
    seeds: Seeds = "3",
    fractions: Annotated[str, typer.Option(help="Parts of the training images, such as 0.1,0.5,1.")] = "1",
    budget: EqualTime = None,
    out: Annotated[Path, typer.Option(help="The study's folder. The same one again resumes it.")] = Path("study"),
    split: Annotated[
        str,
        typer.Option(
            help="test (once per run), or val for making choices.", autocompletion=completion.one_of("test", "val")
        ),
    ] = "test",
    jobs: Jobs = None,
    on: On = "local",
    gpus_per_trial: GpusPerTrial = None,
    threads: ThreadsOfEach = None,
    precision: Precision = "no",
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Compare recipes over seeds and data sizes: mean ± 95 % interval, paired differences, one page.

    Exit code 1: some runs failed, and the table says why.
    """
    chosen = read_recipes(recipes)
    plan: dict[str, Any] = dict(seeds=terminal.parse_seeds(seeds), fractions=terminal.parse_fractions(fractions))
    plan["budget_seconds"] = terminal.parse_budget(budget)
    if as_json + as_csv + as_markdown > 1:
        raise UserError("--json, --csv and --markdown cannot be printed together; choose one.")

    chosen = {
        name: vitling.override(
            recipe, {"data": absolute(data or recipe.data), "init": recipe.init and absolute(recipe.init)}
        )
        for name, recipe in chosen.items()
    }
    where = vitling.Settings(
        precision=precision, threads=threads, reading=reading_options(data_root, memory_gb, workers, no_cache)
    )
    with terminal.show_study(quiet or as_json or as_csv or as_markdown) as callback:
        engine: dict[str, Any] = dict(jobs=jobs, engine=on, gpus_per_trial=gpus_per_trial)
        result = vitling.study(chosen, out, **plan, **engine, split=split, settings=where, callback=callback)
    if as_json or as_csv or as_markdown:
        print(result.to_json() if as_json else result.to_csv() if as_csv else result.to_markdown(), end="")
    else:
        terminal.show_study_table(result)
    if result.failures:
        raise typer.Exit(1)
