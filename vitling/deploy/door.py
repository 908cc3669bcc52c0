"""The door of the server: who may ask, how often and how much. What is refused is refused before its body is read.

Behind it an ordinary ASGI application gets requests whose body is in memory and of a bounded size.
"""

import asyncio
import hmac
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Annotated, Any

from vitling.deploy.hosts import Names, Refused, header_values, megabytes
from vitling.deploy.metrics import Metrics
from vitling.errors import UserError
from vitling.validation.values import Range, check_fields

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PREDICT, HEALTH = "/predict", "/health"
LINGER_BYTES, LINGER_SECONDS = 4 * 2**20, 2.0  # of a body that is thrown away, so that who sends it can read why
BODY_SECONDS = 30.0  # that an upload may take
REMEMBERED = 10_000  # addresses whose rate is known
SHORTEST_TOKEN = 8


@dataclass(frozen=True)
class Limits:
    """What one server takes."""

    upload_mb: Annotated[float, Range(above=0, high=10_000)] = 20.0  # of one request
    images: Annotated[int, Range(1, 10_000)] = 64  # of one request
    waiting: Annotated[int, Range(1, 1_000_000)] = 256  # images that wait for the model
    requests: Annotated[int, Range(1, 100_000)] = 128  # at once
    rate: Annotated[float, Range(above=0, high=1e6)] | None = None  # requests per second and address; None: no limit

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def upload_bytes(self) -> int:
        return int(self.upload_mb * 2**20)


class Door:
    """An ASGI application around the server's."""

    def __init__(self, inside: Any, *, names: Names, token: str | None, limits: Limits, metrics: Metrics):
        if token is not None and (len(token) < SHORTEST_TOKEN or not re.fullmatch(r"[!-~]+", token)):
            raise UserError(f"token is {SHORTEST_TOKEN} or more letters, digits and signs of ASCII without blanks.")
        self.inside, self.names, self.token, self.limits, self.metrics = inside, names, token, limits, metrics
        self.stopping = False
        self.inside_now = 0
        self.buckets: dict[str, tuple[float, float]] = {}  # address -> what is left of its rate, and when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inside(scope, receive, send)
        elif scope["type"] == "http":  # nothing here speaks through web sockets
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin, status = time.perf_counter(), "gone"  # of a client that went away before it was answered

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        self.inside_now += 1
        try:
            self._let_in(scope)
            body = await self._read(scope, receive) if scope["method"] == "POST" else b""
            if body is not None:
                await self.inside(scope, _replay(body, receive), sending)
        except Refused as refused:
            await _refuse(refused, receive, sending)
        finally:
            self.inside_now -= 1
            self.metrics.requests.add(status)
            if scope["path"] == PREDICT:
                self.metrics.seconds.add(time.perf_counter() - begin)

    def _let_in(self, scope: Scope) -> None:
        self.names.check(scope)
        if scope["path"] == HEALTH:
            return
        if self.limits.rate is not None:
            self._check_rate(scope)
        if self.token is not None:
            given = [value for key, value in scope["headers"] if key == b"authorization"]
            kind, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
            if kind.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self.token.encode()):
                reason = "wrong token" if given else "no token"
                raise Refused(
                    401, f"{reason}; send the header `Authorization: Bearer TOKEN`.", {"WWW-Authenticate": "Bearer"}
                )
        if self.stopping:
            raise Refused(503, "the server is stopping; ask another one.", {"Retry-After": "5"})
        if self.inside_now > self.limits.requests:
            raise Refused(
                503, f"{self.limits.requests} requests are being answered already; try again.", {"Retry-After": "1"}
            )
        for length in header_values(scope, b"content-length"):
            if not re.fullmatch(r"\d{1,18}", length):
                raise Refused(400, "Content-Length is not a number.")
            self._check_size(int(length))

    def _check_rate(self, scope: Scope) -> None:
        """A bucket per address that fills at the rate, and holds what comes in a second."""
        assert self.limits.rate is not None
        now, address = time.monotonic(), (scope.get("client") or ("", 0))[0]
        most = max(1.0, self.limits.rate)
        left, then = self.buckets.pop(address, (most, now))
        left = min(most, left + (now - then) * self.limits.rate)
        self.buckets[address] = (left - 1 if left >= 1 else left, now)
        if len(self.buckets) > REMEMBERED:
            del self.buckets[next(iter(self.buckets))]  # who has not asked for longest
        if left < 1:
            wait = math.ceil((1 - left) / self.limits.rate)
            raise Refused(
                429, f"more than {self.limits.rate:g} requests per second; slow down.", {"Retry-After": str(wait)}
            )

    def _check_size(self, size: int) -> None:
        if size > self.limits.upload_bytes:
            raise Refused(413, f"it has {megabytes(size)}, and at most {self.limits.upload_mb:g} MB are taken.")

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None where the client has gone."""
        body = bytearray()
        end = time.monotonic() + BODY_SECONDS
        while True:
            try:
                message = await asyncio.wait_for(receive(), end - time.monotonic())
            except asyncio.TimeoutError:
                raise Refused(408, f"the upload took longer than {BODY_SECONDS:g} seconds.") from None
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            self._check_size(len(body))
            if not message.get("more_body", False):
                return bytes(body)


async def _refuse(refused: Refused, receive: Receive, send: Send) -> None:
    """Say why, then throw away a little of what may still come: a connection that is closed on a client which is still sending
    is reset, and the answer may be lost with it."""
    content = json.dumps({"detail": str(refused)}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
    raw = [(name.lower().encode(), value.encode()) for name, value in {**headers, **refused.headers}.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    await _throw_away(receive)
    await send({"type": "http.response.body", "body": b""})


async def _throw_away(receive: Receive) -> None:
    thrown, end = 0, time.monotonic() + LINGER_SECONDS
    while thrown < LINGER_BYTES:
        try:
            message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
        except asyncio.TimeoutError:
            return
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        thrown += len(message.get("body", b""))


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, and then whatever comes: that the other side has gone."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
