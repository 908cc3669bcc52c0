"""`vitling improve`."""

import time
from pathlib import Path
from typing import Annotated

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import (
    AsJson,
    Changes,
    CheckpointSeconds,
    DataRoot,
    GpusPerTrial,
    Jobs,
    MemoryGb,
    NoCache,
    On,
    PlannedPrecision,
    Quiet,
    ThreadsOfEach,
    Workers,
    absolute,
    reading_options,
)
from vitling.errors import UserError

STARTED = time.monotonic()  # what the budget counts from


def improve(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DATA",
            help="A finished run; or data, for which a first run is planned and trained.",
            autocompletion=completion.runs,
        ),
    ],
    settings: Changes = None,
    budget: Annotated[
        str, typer.Option(help="Wall time for all of it, such as 20m or 1h: trials, final training, confirmation.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Its folder; default: RUN-improved. The same one again resumes it.")
    ] = None,
    init: Annotated[
        str, typer.Option(help="Pre-trained weights to try, too: a run, a file or a name on the hub.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each trial, paired by seed.")] = 1,
    jobs: Jobs = None,
    on: On = "local",
    gpus_per_trial: GpusPerTrial = None,
    threads: ThreadsOfEach = None,
    precision: PlannedPrecision = "",
    data_root: DataRoot = None,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    no_cache: NoCache = False,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Try on the data itself what could make a run better; train the best in full, and prove it on images held back for that."""
    budget_seconds = terminal.parse_budget(budget)
    if budget_seconds is None:
        raise UserError("improve needs the time that it may take: --budget 1h.")

    vitling.register_models()  # after the first checks: a typo is answered before torch has loaded

    where = vitling.Settings(
        precision=precision,
        threads=threads,
        began=STARTED,
        checkpoint_seconds=checkpoint_seconds,
        reading=reading_options(data_root, memory_gb, workers, no_cache),
    )
    with terminal.show_improvement(quiet or as_json) as callback:
        result = vitling.improve(
            absolute(source),
            budget_seconds,
            out,
            changes=settings or [],
            seeds=seeds,
            jobs=jobs or 1,
            engine=on,
            gpus_per_trial=gpus_per_trial,
            init=absolute(init) if init else "",
            settings=where,
            callback=callback,
        )
    if as_json:
        print(result.to_json())
    else:
        terminal.show_improvement_result(result)
