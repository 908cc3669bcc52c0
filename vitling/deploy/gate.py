"""What the page lets in: its own names and origin, the few addresses that it needs, and files that were uploaded to it.

gradio answers dozens of addresses, takes any file of this computer and any URL as an input of a mounted page, and trusts every `Host`.
Behind this gate it gets requests that were rebuilt from what the page itself may ask, and the files are the gate's own.
"""

import asyncio
import json
import os
import re
import secrets
import shutil
from collections.abc import Container
from pathlib import Path
from typing import Any, BinaryIO

from python_multipart.exceptions import FormParserError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitling.deploy.hosts import Names, Refused, header_values, megabytes

UPLOAD_BYTES = 100 * 2**20
UPLOADS_BYTES = 10 * UPLOAD_BYTES  # of all that are kept
UPLOAD_SECONDS = 3600  # that one is kept
OVERHEAD_BYTES = 2**16  # of a form around its file; a question is never longer

UPLOAD, PROGRESS, JOIN = "/gradio_api/upload", "/gradio_api/upload_progress", "/gradio_api/queue/join"
FILE = "/gradio_api/file="
PAGE = re.compile(r"/|/config|/theme\.css|/favicon\.ico|/manifest\.json|/(static|assets)/[\w.@/-]+")
GRADIO = re.compile(r"/gradio_api/(info|startup-events|queue/data|heartbeat/\w+)")
HEADERS = {b"host", b"accept", b"accept-encoding", b"user-agent", b"if-none-match", b"if-modified-since"}
FILE_HEADERS = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}


class Gate:
    """An ASGI application around gradio's."""

    def __init__(self, page: ASGIApp, folder: str | Path, *, names: Names, functions: Container[int]):
        """`folder` holds what is uploaded and what gradio makes for the page; `functions` are the numbers of the page's events."""
        self.page, self.names, self.functions = page, names, functions
        self.folder = os.path.realpath(folder)
        self.uploads: dict[str, int] = {}  # their bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.page(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nothing here speaks through web sockets
        try:
            self.names.check(scope)
            await self._route(scope, receive, send)
        except Refused as refused:
            shown = JSONResponse({"detail": str(refused)}) if scope["path"] == JOIN else PlainTextResponse(str(refused))
            shown.status_code = refused.status
            await shown(scope, receive, send)
        except ClientDisconnect:
            return  # nobody is there to be answered

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, posted = scope["path"], scope["method"] == "POST"
        read = scope["method"] in ("GET", "HEAD")
        if posted and path == UPLOAD:
            _check_length(scope, UPLOAD_BYTES + OVERHEAD_BYTES, UPLOAD_BYTES)
            await JSONResponse([await self._upload(Request(scope, receive))])(scope, receive, send)
        elif posted and path == JOIN:
            _check_length(scope, OVERHEAD_BYTES, OVERHEAD_BYTES)
            question = self._question(await Request(scope, receive).body())
            await self._ask_gradio(scope, receive, send, question)
        elif read and path.startswith(FILE):
            await self._file(path.removeprefix(FILE))(scope, receive, send)
        elif read and path == PROGRESS:
            done = Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")
            await done(scope, receive, send)
        elif read and ".." not in path and (PAGE.fullmatch(path) or GRADIO.fullmatch(path)):
            await self._ask_gradio(scope, receive, send)
        else:
            raise Refused(404, "there is no such address on this page.")

    async def _ask_gradio(self, scope: Scope, receive: Receive, send: Send, body: bytes | None = None) -> None:
        """Pass a request on without what the page never sends: a path of gradio's state, forwarded names, cookies."""
        headers = [(name, value) for name, value in scope["headers"] if name in HEADERS]
        query = scope["query_string"] if GRADIO.fullmatch(scope["path"]) else b""
        if body is not None:
            headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            receive = _replay(body, receive)
        await self.page({**scope, "headers": headers, "query_string": query}, receive, send)

    # -- files -----------------------------------------------------------------------------------------------------

    async def _upload(self, request: Request) -> str:
        """Keep the one file of a form for a while; where it lies now."""
        if sum(self.uploads.values()) > UPLOADS_BYTES:
            raise Refused(507, f"{megabytes(UPLOADS_BYTES)} were uploaded within the last hour; try again later.")
        try:
            async with request.form(max_files=1, max_fields=0) as form:
                files = [value for value in form.values() if isinstance(value, UploadFile)]
                if len(files) != 1:
                    raise Refused(400, "an upload is a form with one file.")
                path = Path(self.folder, secrets.token_hex(16), _file_name(files[0].filename))
                self.uploads[str(path)] = await run_in_threadpool(_copy, files[0].file, path)
        except (MultiPartException, FormParserError) as error:
            raise Refused(400, f"an upload is a form with one file: {_first_line(error)}") from None
        asyncio.get_running_loop().call_later(UPLOAD_SECONDS, self._forget, str(path))
        return str(path)

    def _forget(self, path: str) -> None:
        del self.uploads[path]
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)  # the page may have ended

    def _file(self, name: str) -> Response:
        """A file of the page's own folder; what else exists on this computer cannot be told from what does not."""
        if not os.path.isfile(name) or not Path(os.path.realpath(name)).is_relative_to(self.folder):
            raise Refused(404, "there is no such file on this page.")
        shown = "image/png" if name.endswith(".png") else "application/octet-stream"  # an HTML file is not for showing
        return FileResponse(name, media_type=shown, filename=os.path.basename(name), headers=FILE_HEADERS)

    # -- questions -------------------------------------------------------------------------------------------------

    def _question(self, body: bytes) -> bytes:
        """What the page asks gradio: one uploaded file, or none, and nothing else."""
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, "the question is not JSON.") from None
        asked = asked if isinstance(asked, dict) else {}
        files, function, session = asked.get("data"), asked.get("fn_index"), asked.get("session_hash")
        if not isinstance(files, list) or len(files) != 1:
            raise Refused(400, "data is a list of one uploaded file, or of null.")
        if type(function) is not int or function not in self.functions:
            raise Refused(400, "fn_index is not that of an event of this page.")
        if not isinstance(session, str) or not re.fullmatch(r"\w{1,64}", session):
            raise Refused(400, "session_hash is up to 64 letters and digits.")
        trigger = asked.get("trigger_id")
        question = {
            "data": [self._uploaded(files[0])],
            "fn_index": function,
            "session_hash": session,
            "trigger_id": trigger if type(trigger) is int else None,
        }
        return json.dumps(question).encode()

    def _uploaded(self, file: Any) -> dict | None:
        if file is None:
            return None
        path = file.get("path") if isinstance(file, dict) else None
        if not isinstance(path, str) or path not in self.uploads:
            raise Refused(403, "only files that were uploaded to this page are read; upload it first.")
        return {"path": path, "meta": {"_type": "gradio.FileData"}}


def _check_length(scope: Scope, allowed: int, told: int) -> None:
    lengths = header_values(scope, b"content-length")
    if len(lengths) != 1 or not re.fullmatch(r"\d{1,18}", lengths[0]):
        raise Refused(411, "the request does not say how long it is (Content-Length).")
    if int(lengths[0]) > allowed:
        raise Refused(413, f"it has {megabytes(int(lengths[0]))}, and at most {megabytes(told)} are taken.")


def _copy(source: BinaryIO, path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700)
        with path.open("xb") as target:
            shutil.copyfileobj(source, target)
    except OSError as error:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise Refused(507, f"the upload could not be kept: {error.strerror}.") from None
    return path.stat().st_size


def _file_name(given: str | None) -> str:
    """A name for the file system that still tells what it was: reading goes by the suffix, messages by the name."""
    name = re.sub(r"[^\w.-]", "_", re.split(r"[/\\]", given or "")[-1])
    return name.encode()[-200:].decode(errors="ignore").lstrip(".") or "image"


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, and then whatever comes: that the other side has gone."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
