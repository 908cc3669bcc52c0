"""`vitling export`."""

from pathlib import Path
from typing import Annotated, Any

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import AsJson, DataRoot, NoCache, Quiet, RunDir, Weights, reading_options


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
        bool, typer.Option("--raw-input", help="A file that takes normalised floats instead of uint8 pixels.")
    ] = False,
    push: Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="Upload the hf folder to the hub.")] = None,
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write ONNX, OpenVINO, a torch program, or a folder for timm and the hub; compared with the run before."""
    with terminal.show_progress(quiet or as_json) as callback:
        options: dict[str, Any] = dict(
            which=weights, raw_input=raw_input, push=push, reading=reading_options(data_root, None, None, no_cache)
        )
        exported = vitling.export(run, to, out, callback=callback, **options)
    print(exported.to_json()) if as_json else terminal.show_exported(exported)
