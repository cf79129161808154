"""A router over scripted upstreams, on a clock that nobody waits for."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from pipeline.errors import RequestError, SottovoceError, UpstreamError
from pipeline.reader import StreamMode
from pipeline.request import Request
from proxy.config import Config
from proxy.config_tables import UpstreamConfig
from proxy.homes import Errand
from proxy.router import Router
from proxy.upstream import UpstreamRequest
from proxy.upstreams import Upstreams
from telemetry.metrics import Metrics
from tests import builders, clock
from tests.builders import message

if TYPE_CHECKING:
    from pipeline.limits import Limits
    from pipeline.reader import Reader, Reading
    from proxy.answer import Answer
    from proxy.headers import Headers
    from proxy.route import Route
    from proxy.upstreams import Endpoint

BEARER = (b"authorization", b"Bearer sk-client")
SSE = StreamMode.SSE
EVENT_STREAM = (b"content-type", b"text/event-stream")
OPENING = builders.frames(builders.numbered(builders.opening()))
GOOD = builders.frames(builders.stream(message("hi")))
DELTA = GOOD[:5]


# --- a scripted upstream ------------------------------------------------------------------------

Piece = bytes | float | SottovoceError
"""Bytes of a body, seconds of silence, or how it breaks."""


@dataclass(slots=True)
class Response:
    """An answer: a ``proxy.upstream.UpstreamResponse`` by looks."""

    status: int
    pieces: deque[Piece]
    headers: Headers = field(default_factory=lambda: [EVENT_STREAM])
    closed: bool = False

    def decode(self, *, limit: int) -> None:
        assert limit > 0
        if (b"content-encoding", b"odd") in self.headers:
            raise UpstreamError("the provider's answer has an unknown encoding")

    async def read(self) -> bytes | None:
        while self.pieces:
            piece = self.pieces[0]
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            self.pieces.popleft()
            if isinstance(piece, SottovoceError):
                raise piece
            if isinstance(piece, bytes):
                return piece
        return None

    def drain(self, _seconds: float) -> None:
        self.closed = True

    async def close(self) -> None:
        self.closed = True


Reply = Response | SottovoceError | float
"""An answer, why there is none, or so many seconds without either."""


class Transport:
    """Stands in for the connections to one upstream."""

    def __init__(self, name: str, calls: list[Call], replies: list[Reply]) -> None:
        self.name = name
        self.replies = replies
        self.given: list[Response] = []
        self._calls = calls

    async def open(self, request: UpstreamRequest) -> Response:
        assert isinstance(request.content, bytes)
        headers = [one for one in request.headers if one[0] != b"x-other"]
        self._calls.append(
            Call(self.name, clock.milliseconds(), headers, json.loads(request.content))
        )
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, float):
            await asyncio.sleep(reply)
            raise UpstreamError("late", status=504)
        if isinstance(reply, SottovoceError):
            raise reply
        fresh = Response(reply.status, reply.pieces.copy(), list(reply.headers))
        self.given.append(fresh)
        return fresh


@dataclass(frozen=True, slots=True)
class Call:
    """One request that an upstream got, and when (ms)."""

    name: str
    at: int
    headers: Headers
    body: dict[str, Any]


def answer(status: int, body: object = None, **headers: str) -> Response:
    data = body if isinstance(body, bytes) else json.dumps(body or {"error": {}}).encode()
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Response(status, deque([data]), [(b"content-type", b"application/json"), *raw])


def streamed(*pieces: Piece | list[bytes]) -> Response:
    flat: deque[Piece] = deque()
    for piece in pieces:
        flat.extend(piece if isinstance(piece, list) else [piece])
    return Response(200, flat)


def failing(code: str) -> list[bytes]:
    """Return the events of a stream that fails before it shows anything."""
    return builders.frames(builders.numbered([*builders.opening(), failed(code)]))


def failed(code: str, text: str = "no") -> dict[str, Any]:
    error = {"code": code, "message": text}
    return {"type": "response.failed", "response": {"id": "r", "status": "failed", "error": error}}


HEALTHY = streamed(GOOD)
NAMES = ("one", "two", "three")


class Lab:
    """A router over scripted upstreams, and one client.

    Args:
        scripts: Replies by upstream; the last one of each is repeated.
        configured: How an upstream is configured otherwise than as ``responses`` with a key.
    """

    def __init__(
        self, scripts: dict[str, list[Reply]], configured: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self.calls: list[Call] = []
        self.headers: Headers = [BEARER, (b"cookie", b"a=1")]
        settings: dict[str, Any] = {"kind": "responses", "api_key": "sk-{}"}
        config = Config(
            upstream=tuple(
                UpstreamConfig.model_validate(
                    {"name": name, "base_url": f"http://{name}.example/v1"}
                    | {key: value.format(name) for key, value in settings.items()}
                    | (configured or {}).get(name, {})
                )
                for name in scripts
            )
        )
        self.metrics = Metrics(version="0")
        self.router = Router(
            Upstreams(config),
            self.metrics,
            limits=config.limits.as_limits(),
            peek_seconds=15.0,
            clock=lambda: asyncio.get_running_loop().time(),
        )
        self.metrics.watch_circuits(self.router.circuit_states)
        self.transports = {
            name: Transport(name, self.calls, list(replies)) for name, replies in scripts.items()
        }
        for group in (True, False):
            for endpoint in self.router.upstreams.group(codex=group):
                endpoint.__dict__["transport"] = self.transports[endpoint.name]

    # How requests are put: as they are.

    def meant(self, _endpoint: Endpoint, request: Request) -> Request:
        return request

    def encode(self, endpoint: Endpoint, request: Request, mode: StreamMode) -> UpstreamRequest:
        assert mode is SSE
        if endpoint.config.model == "unspeakable":
            raise RequestError(f"{endpoint.name} can't say that")
        headers = endpoint.authorize([*self.headers, (b"x-other", b"1")])
        return UpstreamRequest("POST", endpoint.url(b"/responses", b""), headers, request.text)

    def same_dialect(self, endpoint: Endpoint) -> bool:
        return not endpoint.provider.translates

    def reader(
        self,
        _endpoint: Endpoint,
        _request: Request,
        mode: StreamMode,
        limits: Limits,
        **how: Unpack[Reading],
    ) -> Reader:
        return mode.reader(limits, **how)

    def route(
        self,
        body: dict[str, Any] | None = None,
        *,
        session: str = "s",
        codex: bool = False,
        headers: Headers | None = None,
    ) -> Route:
        self.headers = self.headers if headers is None else headers
        errand = Errand(codex, "local", session, self.headers, body or REQUEST.body)
        return self.router.route(errand, self)

    async def post(self, body: dict[str, Any] | None = None, **how: Any) -> bytes:  # as route
        """Send a request the whole way; return the body of the answer."""
        asked = body or REQUEST.body
        return await whole(await self.route(asked, **how).open(request(asked), SSE))

    @property
    def asked(self) -> list[tuple[str, int]]:
        """Who was asked, and when."""
        return [(call.name, call.at) for call in self.calls]

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"sottovoce_{name}", labels) or 0.0

    def left_nothing_open(self, *, but: int = 0) -> None:
        given = [one for transport in self.transports.values() for one in transport.given]
        assert sum(not one.closed and bool(one.pieces) for one in given) <= but


def request(body: dict[str, Any]) -> Request:
    return Request(json.dumps(body).encode(), body)


REQUEST = request(builders.request())


async def whole(found: Answer) -> bytes:
    pieces = []
    while (piece := await found.read()) is not None:
        pieces.append(piece)
    return b"".join(pieces)
