"""`vitling reproduce`."""

import json
from pathlib import Path
from typing import Annotated

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import (
    AsJson,
    DataRoot,
    EpochsOfAll,
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
    typed_command,
)
from vitling.errors import UserError


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER/TABLE",
            help="Such as dhvt/table6 or t2t/fig1; none lists all.",
            autocompletion=completion.tables,
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="paper (the published setting: a GPU and its data) or nano (minutes on a CPU).",
            autocompletion=completion.one_of("paper", "nano"),
        ),
    ] = "paper",
    rows: Annotated[str, typer.Option(help="Only these rows: names or parts of names, as in DHVT-T,DeiT.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and its time; train nothing.")] = False,
    seeds: Seeds = "3",
    data: Annotated[
        str | None,
        typer.Option(
            help="nano: any small data (default digits); paper: ImageNet's folder.", autocompletion=completion.data
        ),
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            help="The data's split to measure on, test or val; default: the paper's own, which is val of ImageNet.",
            autocompletion=completion.one_of("test", "val"),
        ),
    ] = "",
    budget: EqualTime = None,
    epochs: EpochsOfAll = None,
    out: Annotated[Path | None, typer.Option(help="The study's folder. The same one again resumes it.")] = None,
    runs: Annotated[Path | None, typer.Option(help="Figures: draw this study instead of training one.")] = None,
    jobs: Jobs = None,
    on: On = "local",
    gpus_per_trial: GpusPerTrial = None,
    threads: ThreadsOfEach = None,
    precision: Precision = "no",
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    list_all: Annotated[bool, typer.Option("--list", help="All tables and figures, a line each.")] = False,
    coverage: Annotated[
        bool,
        typer.Option("--coverage", help="Which rows of each table and figure can be run, and why the others cannot."),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train the rows of a table or figure of one of the five papers; the paper's numbers stand beside ours.

    Exit code 1: some runs failed, and the table says why.
    """
    from vitling.papers import is_figure
    from vitling.papers.plan import Request

    if coverage:
        terminal.show_coverage(as_json)
        return
    if name is None or list_all:
        terminal.show_papers(name or "", as_json)
        return
    request = Request(
        name,
        scale,
        rows,
        absolute(data) if data else None,
        epochs,
        seeds=terminal.parse_seeds(seeds),
        budget_seconds=terminal.parse_budget(budget),
        jobs=jobs,
        on=on,
        gpus_per_trial=gpus_per_trial,
        command=typed_command(),
        split=split,
    )
    request.plan()  # a typo is answered before torch has loaded
    if runs and not is_figure(name):
        raise UserError(f"--runs is for figures; {name} finds its runs again in --out.")

    vitling.register_models()
    settings = vitling.Settings(
        precision=precision, threads=threads, reading=reading_options(data_root, memory_gb, workers, no_cache)
    )
    from vitling.papers.figures import draw_figure
    from vitling.papers.reproduction import preview, train_table

    if dry_run:
        with terminal.show_progress(quiet or as_json) as callback:
            result = preview(request, settings=settings, callback=callback)
        print(result.to_json()) if as_json else terminal.show_reproduction(result)
        return
    with terminal.show_study(quiet or as_json) as callback:
        if is_figure(name):
            page = draw_figure(request, out, runs=runs, settings=settings, callback=callback)
        else:
            result = train_table(request, out, settings=settings, callback=callback)
    if is_figure(name):
        print(json.dumps({"page": str(page)}) if as_json else f"page: {page}")
        return
    print(result.to_json()) if as_json else terminal.show_reproduction(result)
    if result.study and result.study.failures:
        raise typer.Exit(1)
