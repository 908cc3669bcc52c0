"""`vitling serve`."""

from typing import Annotated

import typer

from vitling.cli import completion, terminal
from vitling.cli.options import DataRoot, Port, Quiet, Weights, finite, reading_options


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run, an .onnx file or another export. ONNX starts fastest: it needs no torch.",
            autocompletion=completion.runs,
        ),
    ],
    port: Port = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other computers in.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option(help="A further name that it is asked under, as behind a web server.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="VITLING_TOKEN", help="Answer only to who sends it; better set in the environment."),
    ] = None,
    max_upload_mb: Annotated[
        float, typer.Option(min=0.001, max=10_000, callback=finite, help="Megabytes of a request.")
    ] = 20.0,
    max_images: Annotated[int, typer.Option(min=1, max=10_000, help="Images of a request.")] = 64,
    max_waiting: Annotated[int, typer.Option(min=1, max=1_000_000, help="Images that may wait for the model.")] = 256,
    max_requests: Annotated[int, typer.Option(min=1, max=100_000, help="Requests at once.")] = 128,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e6, callback=finite, help="Requests per second that one address may make."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Images that go through the model together.")] = 32,
    weights: Weights = "best",
    raw_probabilities: Annotated[
        bool, typer.Option("--raw-probabilities", help="As the model gives them, not calibrated on validation images.")
    ] = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Serve a model over HTTP: images in, classes and probabilities out."""
    from vitling.deploy.door import Limits
    from vitling.deploy.predictor import Predictor
    from vitling.deploy.server import bind, serve

    limits = Limits(upload_mb=max_upload_mb, images=max_images, waiting=max_waiting, requests=max_requests, rate=rate)
    listener = bind(host, port)
    with terminal.show_progress(quiet) as callback:
        reading = reading_options(data_root, None, None, False) if data_root else None
        options = dict(which=weights, calibrated=not raw_probabilities, reading=reading, callback=callback)
        predictor = Predictor(model, **options)  # type: ignore[arg-type]
    serve(
        predictor,
        listener,
        hosts=[host, *(name or [])],
        token=token,
        limits=limits,
        largest_batch=batch,
        ready=lambda address: terminal.show_server(address, predictor.name, open_to_all=token is None),
    )
