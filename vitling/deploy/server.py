"""`vitling serve`: a model behind HTTP. Images of many requests are predicted together; what is wrong is a status and a line."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

import vitling
from vitling.data.sources.images import BadImage
from vitling.deploy.batching import Batcher, Busy
from vitling.deploy.door import HEALTH, PREDICT, Door, Limits
from vitling.deploy.hosts import Names, Refused, take_address, url_of
from vitling.deploy.metrics import Metrics
from vitling.deploy.predictor import SHOWN, GradePrediction, LabelPrediction, NumberPrediction, Prediction, Predictor
from vitling.errors import UserError

if TYPE_CHECKING:
    from fastapi import FastAPI

LARGEST_BATCH = 32
GRACE_SECONDS = 30  # that requests in progress get to end
PACKAGES = ("fastapi", "uvicorn", "python_multipart")


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address, once it is known that there can be a server."""
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        raise UserError(f'vitling serve needs the package {missing[0]}: pip install "vitling[serve]".')
    return take_address(host, port)


def create_server(
    predictor: Predictor,
    *,
    hosts: Sequence[str] = (),
    token: str | None = None,
    limits: Limits | None = None,
    largest_batch: int = LARGEST_BATCH,
) -> Door:
    """The server as an ASGI application: for this computer and under the names `hosts`; with a token, only for those who send it."""
    limits = limits or Limits()
    batcher = Batcher(predictor.pixel_probabilities, largest=largest_batch, most_waiting=limits.waiting)
    metrics = Metrics(predictor.name, vitling.__version__, lambda: batcher.waiting)
    batcher.on_batch = metrics.batches.add
    api = _create_api(predictor, batcher, metrics, limits)
    door = Door(api, names=Names(*hosts), token=token, limits=limits, metrics=metrics)
    api.state.stopping = lambda: door.stopping
    return door


def serve(
    predictor: Predictor,
    listener: socket.socket,
    *,
    hosts: Sequence[str] = (),
    token: str | None = None,
    limits: Limits | None = None,
    largest_batch: int = LARGEST_BATCH,
    ready: Callable[[str], None],
) -> None:
    """Serve until interrupted or terminated; requests in progress are answered before it ends. `ready` gets the address."""
    import uvicorn  # of the extra serve

    names = [listener.getsockname()[0], *hosts]
    door = create_server(predictor, hosts=names, token=token, limits=limits, largest_batch=largest_batch)
    seen = predictor.preprocessing
    predictor.pixel_probabilities(np.zeros((1, seen.channels, *seen.size), np.uint8))  # the first one takes longest

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            door.stopping = True
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        door,
        log_level="warning",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    listener.listen(config.backlog)  # so that who is told the address can connect
    ready(url_of(listener))
    Server(config).run(sockets=[listener])


def _create_api(predictor: Predictor, batcher: Batcher, metrics: Metrics, limits: Limits) -> "FastAPI":
    from fastapi import FastAPI, Query, Request  # an extra, asked for before
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, PlainTextResponse
    from pydantic import BaseModel

    class Predicted(BaseModel):
        """One image: its likeliest classes, best first."""

        name: str
        classes: list[str]
        probabilities: list[float]

    class Answer(BaseModel):
        predictions: list[Predicted]
        calibrated: bool

    class PredictedLabels(Predicted):
        """The same of several labels: every label, and those that the image has."""

        labels: list[str]

    class LabelAnswer(BaseModel):
        predictions: list[PredictedLabels]
        calibrated: bool

    class PredictedGrade(Predicted):
        """The same of grades, with the mean of the distribution over them."""

        expected: float

    class GradeAnswer(BaseModel):
        predictions: list[PredictedGrade]
        calibrated: bool

    class PredictedNumber(BaseModel):
        """One image: its number and the ends of its 90 % prediction interval."""

        name: str
        value: float
        interval: list[float]

    class NumberAnswer(BaseModel):
        predictions: list[PredictedNumber]
        calibrated: bool

    class Problem(BaseModel):
        """What is wrong, in one line."""

        detail: str

    class Health(BaseModel):
        status: str

    class About(BaseModel):
        model: str
        class_names: list[str]
        size: list[int]
        channels: int
        calibrated: bool
        vitling: str

    class LabelAbout(About):
        thresholds: list[float]  # from which probability on an image has each label

    several, numbers = predictor.thresholds is not None, predictor.labels == "numbers"
    answers: dict[str, Any] = {"several": LabelAnswer, "grades": GradeAnswer, "numbers": NumberAnswer}
    shown = len(predictor.class_names) if several else SHOWN
    decoders = ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="vitling-decode")

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()
        decoders.shutdown(wait=True, cancel_futures=True)

    # No pages of documentation: theirs load scripts from other servers.
    api = FastAPI(
        title="vitling",
        version=vitling.__version__,
        description=f"Classes of images, by {predictor.name}.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )

    @api.exception_handler(RequestValidationError)
    async def refuse_arguments(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}."}, 422)

    @api.exception_handler(Refused)
    async def refuse(request: Request, refused: Refused) -> JSONResponse:
        return JSONResponse({"detail": str(refused)}, refused.status, refused.headers)

    @api.get(
        "/",
        summary="The model: classes, size and channels of its images",
        response_model=LabelAbout if several else About,
    )
    async def about() -> dict:
        seen = predictor.preprocessing
        return {
            "model": predictor.name,
            "class_names": predictor.class_names,
            "size": list(seen.size),
            "channels": seen.channels,
            "calibrated": predictor.calibrated,
            "vitling": vitling.__version__,
            **(
                {}
                if predictor.thresholds is None
                else {"thresholds": [round(float(x), 6) for x in predictor.thresholds]}
            ),
        }

    @api.get(HEALTH, summary="Whether it serves", responses={200: {"model": Health}, 503: {"model": Health}})
    async def health() -> JSONResponse:
        stopping = api.state.stopping()
        return JSONResponse({"status": "stopping" if stopping else "ok"}, 503 if stopping else 200)

    @api.get("/metrics", summary="Counts, for Prometheus", response_class=PlainTextResponse)
    async def show_metrics() -> PlainTextResponse:
        return PlainTextResponse(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem} for status in (400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 503)
    }
    image = {"schema": {"type": "string", "format": "binary"}}
    files = {"type": "array", "items": {"type": "string", "format": "binary"}}
    form = {"schema": {"type": "object", "properties": {"file": files}, "required": ["file"]}}
    content = {"application/octet-stream": image, "image/*": image, "multipart/form-data": form}

    @api.post(
        PREDICT,
        summary="The likeliest classes of an image, sent as it is, or of several files of a form",
        responses={200: {"model": answers.get(predictor.labels, Answer)}, **problems},
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=10_000)] = shown) -> JSONResponse:
        if numbers and "top" in request.query_params:
            raise Refused(422, f"top is a number of classes, and {predictor.name} predicts numbers; leave it out.")
        images = await _uploaded(request, limits.images)
        try:
            batcher.check_room(len(images))
            loop = asyncio.get_running_loop()
            fitting = [loop.run_in_executor(decoders, predictor.fit, content, name) for name, content in images]
            found = await batcher.submit(await _all(fitting))
        except BadImage as error:
            metrics.images.add("bad")
            raise Refused(422, f"{error.name}: {error.reason}.") from None
        except Busy:
            metrics.images.add("refused", len(images))
            raise Refused(503, f"{batcher.waiting} images wait already; try again.", {"Retry-After": "1"}) from None
        except Exception as error:  # the runtime's: out of memory, a device that is gone
            metrics.images.add("failed", len(images))
            raise Refused(500, f"the model cannot predict now: {type(error).__name__}.") from error
        metrics.images.add("predicted", len(images))
        best = [
            predictor.best(name, row, None if numbers else top) for (name, _), row in zip(images, found, strict=True)
        ]
        return JSONResponse({"predictions": [_answer(p) for p in best], "calibrated": predictor.calibrated})

    return api


def _answer(found: Prediction) -> dict[str, Any]:
    """A prediction as the server gives it."""
    if isinstance(found, NumberPrediction):
        return {"name": found.path, "value": found.value, "interval": list(found.interval or ())}
    answer: dict[str, Any] = {"name": found.path, "classes": found.classes, "probabilities": found.probabilities}
    if isinstance(found, LabelPrediction):
        answer["labels"] = found.labels
    if isinstance(found, GradePrediction):
        answer["expected"] = found.expected
    return answer


async def _all(futures: list[asyncio.Future]) -> list[Any]:
    """All results; the first error, once all have ended, so that none is left over."""
    results = await asyncio.gather(*futures, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


async def _uploaded(request: Any, most: int) -> list[tuple[str, bytes]]:
    """The images of a request, with their names: of a form, or the body itself. All stay in memory: nothing is written."""
    from python_multipart.exceptions import FormParserError
    from starlette.datastructures import UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    class InMemory(MultiPartParser):
        spool_max_size = max_file_size = 2**62  # the door has bounded the whole

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith(("application/json", "text/")):
        raise Refused(415, f"{kind} is not an image; send the bytes of a file as they are, or a form with files.")
    if kind != "multipart/form-data":
        body = await request.body()
        if not body:
            raise Refused(400, "the request holds no image; send the bytes of a file, or a form with files.")
        return [("the upload", body)]
    try:
        form = await InMemory(request.headers, request.stream(), max_files=most, max_fields=0).parse()
    except (MultiPartException, FormParserError) as error:
        raise Refused(400, f"the form cannot be read: {(str(error).splitlines() or ['it is damaged'])[0]}") from None
    except (KeyError, UnicodeError, ValueError):
        raise Refused(400, "the form cannot be read: its head is damaged.") from None
    try:
        given = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]  # fields are refused above
        parts = [(part.filename or f"file {i}", await part.read()) for i, part in enumerate(given, 1)]
    finally:
        await form.close()
    if not parts:
        raise Refused(400, "the form holds no file.")
    return [("".join(c if c.isprintable() else "?" for c in name[:200]), content) for name, content in parts]
