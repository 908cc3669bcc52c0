"""`vitling evaluate`."""

from typing import Annotated

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import (
    AsJson,
    DataRoot,
    MemoryGb,
    NoCache,
    Quiet,
    RunDir,
    Split,
    Weights,
    Workers,
    reading_options,
)


def evaluate(
    run: RunDir,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Other data with the same classes; default: the run's own.",
            autocompletion=completion.data,
        ),
    ] = None,
    split: Split = "test",
    weights: Weights = "best",
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure a run: top-1 and top-5 with intervals, macro-F1, each class, confusion matrix, calibration."""
    with terminal.show_progress(quiet or as_json) as callback:
        reading = reading_options(data_root, memory_gb, workers, no_cache)
        result = vitling.evaluate(run, data, split=split, which=weights, reading=reading, callback=callback)
    print(result.to_json()) if as_json else terminal.show_evaluation(result, run)
