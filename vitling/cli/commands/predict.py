"""`vitling predict`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import (
    AllViews,
    AsCsv,
    AsJson,
    DataRoot,
    NoCache,
    Quiet,
    SkipBadImages,
    Top,
    Weights,
    reading_options,
)
from vitling.errors import UserError


def predict(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run, an .onnx file, an exported folder or hf-hub:OWNER/NAME.",
            autocompletion=completion.runs,
        ),
    ],
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE", help="Image files and folders; - reads paths from standard input."),
    ],
    top: Top = None,
    weights: Weights = "best",
    tta: AllViews = False,
    raw_probabilities: Annotated[
        bool, typer.Option("--raw-probabilities", help="As the model gives them, not calibrated on validation images.")
    ] = False,
    attention: Annotated[Path | None, typer.Option(help="New folder for pictures of where the model looked.")] = None,
    null: Annotated[
        bool, typer.Option("--null", help="Paths on standard input end in NUL, as of find -print0.")
    ] = False,
    skip_bad_images: SkipBadImages = False,
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    quiet: Quiet = False,
) -> None:
    """Name the classes of images, with calibrated probabilities."""
    if as_json and as_csv:
        raise UserError("--json and --csv cannot both be printed; choose one.")
    if null and "-" not in images:
        raise UserError("--null is about paths on standard input; give - in place of the images.")

    from vitling.deploy.prediction import read_paths

    named = [
        path for given in images for path in (read_paths(sys.stdin.buffer, null=null) if given == "-" else [given])
    ]
    with terminal.show_progress(quiet or as_json or as_csv) as callback:
        options: dict[str, Any] = dict(
            top=top, which=weights, tta=tta, calibrated=not raw_probabilities, attention=attention
        )
        # Of an exported file nothing else is read, and then nothing loads torch.
        reading = reading_options(data_root, None, None, no_cache) if data_root or no_cache else None
        common: dict[str, Any] = dict(reading=reading, callback=callback)
        predictions = vitling.predict(model, named, skip_bad_images=skip_bad_images, **options, **common)
    terminal.show_predictions(predictions, "json" if as_json else "csv" if as_csv else "table")
