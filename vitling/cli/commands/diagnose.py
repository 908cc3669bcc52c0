"""`vitling diagnose`."""

from pathlib import Path
from typing import Annotated, Any

import typer

import vitling
from vitling.callbacks import Callback, StudyCallback
from vitling.cli import completion, terminal
from vitling.cli.options import AsJson, DataRoot, ImageCount, Jobs, NoCache, Quiet, Weights, reading_options
from vitling.errors import UserError


class StudyProgress(StudyCallback):
    """The runs of a learning curve, in the progress of the diagnosis."""

    def __init__(self, callback: Callback):
        self.callback = callback

    def log(self, message: str) -> None:
        self.callback.log(message)

    def on_run_end(self, name: str, result: str) -> None:
        self.callback.log(f"{name}: {result}")


def diagnose(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run, a model of timm, or local-dir:FOLDER.", autocompletion=completion.runs
        ),
    ],
    other: Annotated[
        str | None,
        typer.Argument(metavar="RUN2", help="A second one to compare with.", autocompletion=completion.runs),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Images to look at; default: the run's own, held out.", autocompletion=completion.data),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The page; default: diagnosis.html in the run.")] = None,
    images: ImageCount = 512,
    weights: Weights = "best",
    learning_curve: Annotated[
        bool,
        typer.Option("--learning-curve", help="Train on parts of the images: what would more of them bring?"),
    ] = False,
    label_errors: Annotated[
        bool,
        typer.Option("--label-errors", help="Train on folds of the images: which labels are wrong?"),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(help="Time for these trainings, such as 5m; default: what the run took."),
    ] = None,
    jobs: Jobs = None,
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say what limits a run, which classes and images, and what is unusual inside: a summary, a page, and what to do."""
    trains = learning_curve or label_errors
    seconds = terminal.parse_budget(budget)
    if trains and (other or data):
        raise UserError("--learning-curve and --label-errors train on a run's own data; leave RUN2 and --data out.")
    if (seconds or (jobs or 1) > 1) and not trains:
        raise UserError("--budget and --jobs are for what is trained; add --learning-curve or --label-errors.")
    vitling.register_models()

    from vitling.diagnose.diagnosis import diagnose as measure
    from vitling.diagnose.files import check_page, to_json, write_diagnosis
    from vitling.diagnose.suspects import cross_validate
    from vitling.studies.learning_curve import learn_parts

    if out:
        check_page(out)
    with terminal.resumable(), terminal.show_progress(quiet or as_json) as callback:
        reading = reading_options(data_root, None, None, no_cache)
        found: dict[str, Any] = {}
        share = seconds and seconds / (learning_curve + label_errors)
        if learning_curve:
            trained = vitling.load_run(run)
            found["learning_curve"] = learn_parts(
                trained, budget_seconds=share, jobs=jobs or 1, reading=reading, callback=StudyProgress(callback)
            )
        if label_errors:
            found["label_errors"] = cross_validate(
                vitling.load_run(run), budget_seconds=share, reading=reading, callback=callback
            )
        results = measure(run, other, data, images=images, which=weights, reading=reading, callback=callback, **found)
        try:
            page = write_diagnosis(results, out, callback=callback)
        except UserError:  # what was measured is shown, wherever it could not be written
            print(to_json(results)) if as_json else terminal.show_verdict(results)
            raise
    print(to_json(results)) if as_json else terminal.show_verdict(results, page)
