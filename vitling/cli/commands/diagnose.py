"""`vitling diagnose`."""

from pathlib import Path
from typing import Annotated

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import AsJson, DataRoot, ImageCount, Quiet, Weights, reading_options
from vitling.errors import UserError


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
    data_root: DataRoot = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say why a model, or one of two, is as good as it is: CKA, attention, features, a verdict on one page."""
    vitling.register_models()

    from vitling.diagnose.diagnosis import diagnose as measure
    from vitling.diagnose.files import check_page, to_json, write_diagnosis

    if out:
        check_page(out)
    with terminal.show_progress(quiet or as_json) as callback:
        reading = reading_options(data_root, None, None)
        results = measure(run, other, data, images=images, which=weights, reading=reading, callback=callback)
        try:
            page = write_diagnosis(results, out, callback=callback)
        except UserError:  # what was measured is shown, wherever it could not be written
            print(to_json(results)) if as_json else terminal.show_verdict(results)
            raise
    print(to_json(results)) if as_json else terminal.show_verdict(results, page)
