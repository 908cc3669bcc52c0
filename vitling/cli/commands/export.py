"""`vitling export`."""

from pathlib import Path
from typing import Annotated

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import AsJson, DataRoot, Quiet, RunDir, Weights, reading_options


def export(
    run: RunDir,
    to: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(completion.export_targets())}.",
            autocompletion=completion.one_of(*completion.export_targets()),
        ),
    ] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file or folder to write; default: in the run.")] = None,
    weights: Weights = "best",
    raw_input: Annotated[
        bool, typer.Option("--raw-input", help="ONNX that takes normalised floats instead of uint8 pixels.")
    ] = False,
    push: Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="Upload the hf folder to the hub.")] = None,
    data_root: DataRoot = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write ONNX, or a folder with a model card for timm and the hub, compared with the run's model before."""
    with terminal.show_progress(quiet or as_json) as callback:
        options = dict(which=weights, raw_input=raw_input, push=push, reading=reading_options(data_root, None, None))
        exported = vitling.export(run, to, out, callback=callback, **options)
    print(exported.to_json()) if as_json else terminal.show_exported(exported)
