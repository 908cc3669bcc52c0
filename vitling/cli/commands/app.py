"""`vitling app`."""

from typing import Annotated

import typer

import vitling
from vitling.cli import terminal
from vitling.cli.options import DataRoot, NoCache, Port, Quiet, RunDir, Weights, reading_options


def serve_app(
    run: RunDir,
    port: Port = 7860,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other computers in.")] = "127.0.0.1",
    weights: Weights = "best",
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
) -> None:
    """Serve a page to drop an image on: its class, attention, the training images most like it."""
    vitling.register_models()

    from vitling.deploy.app import bind, open_viewer, serve

    vitling.load_run(run)  # a typo is answered before anything else is tried
    socket = bind(host, port)
    with terminal.show_progress(quiet) as callback:
        viewer = open_viewer(
            run, which=weights, reading=reading_options(data_root, None, None, no_cache), callback=callback
        )
    serve(viewer, socket, host=host, ready=terminal.show_address)
