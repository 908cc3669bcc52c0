"""`vitling evaluate`."""

from typing import Annotated

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import (
    AllViews,
    AsJson,
    DataRoot,
    MemoryGb,
    NoCache,
    Quiet,
    RunDir,
    Split,
    Weights,
    Workers,
    finite,
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
    tta: AllViews = False,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="The class of an operating point, against all others; with --sensitivity or --specificity.",
        ),
    ] = None,
    sensitivity: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            metavar="SHARE",
            help="Fit the threshold on validation so that it finds this share of CLASS there, such as 0.95.",
        ),
    ] = None,
    specificity: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            metavar="SHARE",
            help="Or so that it leaves this share of the other images out.",
        ),
    ] = None,
    group: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Of other data: which images belong together, as the recipe's group= says of its own.",
        ),
    ] = "",
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure a run: top-1 and top-5 with intervals, macro-F1, AUROC and kappa, each class, confusion matrix, calibration."""
    with terminal.show_progress(quiet or as_json) as callback:
        reading = reading_options(data_root, memory_gb, workers, no_cache)
        result = vitling.evaluate(
            run,
            data,
            split=split,
            which=weights,
            tta=tta,
            group=group,
            positive=positive,
            sensitivity=sensitivity,
            specificity=specificity,
            reading=reading,
            callback=callback,
        )
    print(result.to_json()) if as_json else terminal.show_evaluation(result, run)
