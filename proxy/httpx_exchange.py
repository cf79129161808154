"""One request and its response over httpx, as ``UpstreamResponse`` reads them.

httpx ends a response whose read is cancelled, and its pool may keep what a cancelled stream held.
So a task of its own performs each exchange, over a transport of its own that has one connection:
whoever reads may be cancelled and read again, and when the task has ended, so has everything that
httpx opened for it.

::

    reader ◀── parts, at most about HIGH_WATER of them ◀── task ◀── httpx ◀── socket
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpcore  # noqa: F401 - at start: httpx would import it within the first request
import httpx

from pipeline.errors import UpstreamError
from proxy.dial import KEEPALIVE_IDLE, named_errors
from proxy.exchange import HIGH_WATER, SLICE_BYTES
from proxy.transport import late

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from proxy.dial import Origin, Proxy

HEAD_BYTES: Final = 100 * 1024
"""httpx's own limit for a response head; one field of 64 KiB fits."""
_KEEPALIVE: Final = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
if (_IDLE := getattr(socket, "TCP_KEEPIDLE", None)) is not None:
    _KEEPALIVE.append((socket.IPPROTO_TCP, _IDLE, KEEPALIVE_IDLE))
_TOO_LARGE: Final = 431
"""What httpx's parser hints at when a head is above its limit."""
_SOCKET_OPEN: Final = "connection.connect_tcp.complete"
_TUNNEL_OPEN: Final = "proxy.start_tls.started"
_REQUEST_STARTED: Final = "http11.send_request_headers.started"
"""What httpx traces, in this order; of a CONNECT as well, before the tunnel is open."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one exchange needs.

    Args:
        request: To be sent as it is.
        content: Its body, closed at the end if it is a generator.
        origin: Who is to answer.
        proxy: What stands in between.
        tls: What ``https`` is checked with, on the way to the proxy too.
        connect_seconds: How long opening a connection may take.
    """

    request: httpx.Request
    content: bytes | AsyncIterator[bytes]
    origin: Origin
    proxy: Proxy | None
    tls: ssl.SSLContext
    connect_seconds: float

    @property
    def tunnel(self) -> Proxy | None:
        """The proxy that gets a CONNECT; one that gets whole URLs is part of the request."""
        return self.proxy if self.origin.scheme == "https" else None

    def transport(self) -> httpx.AsyncHTTPTransport:
        """Return an httpx transport for this exchange alone."""
        return httpx.AsyncHTTPTransport(
            verify=self.tls,
            trust_env=False,
            proxy=None if self.tunnel is None else self._httpx_proxy(self.tunnel),
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
            socket_options=_KEEPALIVE,
        )

    def _httpx_proxy(self, proxy: Proxy) -> httpx.Proxy:
        return httpx.Proxy(
            f"{proxy.origin.scheme}://{proxy.origin.authority}",
            ssl_context=self.tls if proxy.origin.scheme == "https" else None,
            headers=proxy.headers,
        )


class RawURL(httpx.URL):
    """A URL with a request target that is sent byte for byte.

    httpx has an extension for it, but sends that to a proxy as what to CONNECT to as well.

    Args:
        origin: Where to connect to.
        target: The target.
    """

    def __init__(self, origin: Origin, target: bytes) -> None:
        super().__init__(f"{origin.scheme}://{origin.authority}")
        self._target = target

    @property
    def raw_path(self) -> bytes:
        """The target."""
        return self._target


class Body(httpx.AsyncByteStream):
    """A request's body, counted where its size was declared.

    Args:
        content: The body.
        size: Its bytes; None for one in chunks.
    """

    def __init__(self, content: bytes | AsyncIterator[bytes], size: int | None) -> None:
        self._pieces = _slices(content) if isinstance(content, bytes) else content
        self._left = size

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece.

        Raises:
            UpstreamError: The body is not as long as was declared.
            Exception: What the content raises.
        """
        try:
            piece = await anext(self._pieces)
        except StopAsyncIteration:
            self._count(b"", end=True)
            raise
        self._count(piece, end=False)
        return piece

    def _count(self, piece: bytes, *, end: bool) -> None:
        if self._left is None:
            return
        self._left -= len(piece)
        if self._left < 0 or (end and self._left):
            raise UpstreamError("the body of the request is not as long as its header says")


class HttpxExchange:
    """One request and its response; begins at once.

    Args:
        plan: What to do.
        on_end: Called once, when all that httpx opened for it is closed.
    """

    def __init__(self, plan: Plan, *, on_end: Callable[[HttpxExchange], None]) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._plan = plan
        self._peer = f"the provider at {plan.origin.authority}"
        if plan.proxy is not None:
            self._peer = f"the proxy at {plan.proxy.origin.authority}"
        self._streams = AsyncExitStack()
        self._tunnelling = plan.tunnel is not None
        self._connecting = asyncio.timeout(plan.connect_seconds)
        plan.request.extensions["trace"] = self._trace
        self._on_end = on_end
        self._parts: list[bytes] = []
        self._waiting = 0
        self._error: BaseException | None = None
        self._over = False
        self._left = False
        self._drained: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.task = asyncio.ensure_future(self._perform())
        """Done when the exchange is over."""
        self.task.add_done_callback(self._finish)

    def __repr__(self) -> str:
        return f"<HttpxExchange with {self._peer}: {'over' if self._over else self.status}>"

    @property
    def draining(self) -> bool:
        """Whether ``drain`` was called in time."""
        return self._drained is not None

    async def head(self) -> None:
        """Wait until ``status`` and ``headers`` are there.

        Raises:
            UpstreamError: The provider was not there, went away, or sent no HTTP.
            Exception: What the request's body raised.
        """
        while not self.status and not self._over:
            await self._change()
        if not self.status:
            self._raise()

    async def read(self) -> bytes | None:
        """Return what has come of the body since the last call, None at its end; cancel-safe.

        Raises:
            UpstreamError: The connection ended in the middle.
        """
        while not self._parts:
            if self._over:
                if self._error is not None:
                    self._raise()
                return None
            await self._change()
        data = b"".join(self._parts)
        self._drop()
        return data

    def drain(self, seconds: float) -> None:
        """Drop what comes of the body for so long, then end it."""
        if not self._over and not self.draining:
            self._drained = asyncio.get_running_loop().call_later(seconds, self.abort)
            self._drop()

    def abort(self) -> None:
        """End the exchange if it is not over; idempotent."""
        if not self._left:  # a second cancellation would interrupt the cleaning up
            self._left = True
            self.task.cancel()

    async def settle(self) -> None:
        """Wait, for a moment at most, until everything is closed."""
        await asyncio.wait({self.task}, timeout=1)

    # The rest is its own.

    async def _perform(self) -> None:
        plan = self._plan
        try:
            async with self._streams, self._connecting, plan.transport() as transport:
                response = await transport.handle_async_request(plan.request)
                if response.status_code == 101:
                    raise UpstreamError(f"{self._peer} switched to another protocol")
                self.status, self.headers = response.status_code, response.headers.raw
                self._changed.set()
                async for piece in response.aiter_raw():
                    self._keep(piece)
                    await self._room.wait()
        finally:
            if isinstance(plan.content, AsyncGenerator):
                await plan.content.aclose()

    def _keep(self, piece: bytes) -> None:
        if self.draining:
            return
        self._parts.append(piece)
        self._waiting += len(piece)
        if self._waiting > HIGH_WATER:
            self._room.clear()
        self._changed.set()

    def _drop(self) -> None:
        self._parts.clear()
        self._waiting = 0
        self._room.set()

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._over = True
        if self._drained is not None:
            self._drained.cancel()
        if task.cancelled():
            self._error = UpstreamError(f"{self._peer} was left")
        elif (error := task.exception()) is not None:
            self._error = self._named(error)
        self._changed.set()
        self._on_end(self)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise(self) -> None:
        raise self._error or UpstreamError(f"{self._peer} was left")

    async def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Follow httpx: who is it that we talk to, and is there a connection yet?"""
        if event == _SOCKET_OPEN:  # a handshake that is cancelled would leave it open
            self._streams.push_async_callback(info["return_value"].aclose)
        elif event == _TUNNEL_OPEN:
            self._tunnelling = False
            self._peer = f"the provider at {self._plan.origin.authority}"
        elif event == _REQUEST_STARTED and not self._tunnelling:
            self._peer = f"the provider at {self._plan.origin.authority}"
            self._connecting.reschedule(None)

    def _named(self, error: BaseException) -> BaseException:
        """Turn what httpx says into an error of ours; what is not httpx's stays what it is."""
        if isinstance(error, TimeoutError) and self._connecting.expired():
            seconds = self._plan.connect_seconds
            named = late(self._plan.origin, "did not accept a connection", seconds)
        elif not isinstance(error, httpx.TransportError):
            return error
        elif isinstance(error, httpx.ProxyError):
            how = f"refused a tunnel to {self._plan.origin.authority} ({str(error)[:3]})"
            named = UpstreamError(f"{self._peer} {how}")
        elif isinstance(error, httpx.ConnectError):
            named = _opening_error(error, self._peer)
        else:
            named = UpstreamError(f"{self._peer} {_how(error, at_head=not self.status)}")
        named.__cause__ = error
        return named


def _opening_error(error: httpx.ConnectError, peer: str) -> UpstreamError:
    """Name what the operating system or TLS said; without a word from them it was a reset."""
    said = [cause for cause in _causes(error) if isinstance(cause, OSError)]
    try:
        with named_errors(peer):
            raise said[-1] if said else ConnectionResetError
    except UpstreamError as named:
        return named


def _how(error: httpx.TransportError, *, at_head: bool) -> str:
    """Say how an exchange over an open connection failed, without a word of what was sent."""
    causes = list(_causes(error))
    when = "before its answer" if at_head else "in the middle of its answer"
    if isinstance(error, httpx.NetworkError):
        broke = any(isinstance(cause, ssl.SSLError) for cause in causes)
        return f"{'broke' if broke else 'reset'} the connection {when}"
    if isinstance(error, httpx.LocalProtocolError):
        return "can't be sent a method, target or header of this request by httpx"
    hints = [hint for cause in causes if (hint := getattr(cause, "error_status_hint", None))]
    if _TOO_LARGE in hints:
        return f"sent a response head above {HEAD_BYTES} bytes"
    # The parser has no other sign for a body that ends too early than its words.
    if not hints or str(error).startswith("peer closed connection"):
        return f"closed the connection {when}"
    return "sent what is not HTTP"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield what led to an error, the root last; of several at once the first."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLWantReadError):
        yield cause
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        else:
            cause = cause.__cause__ or cause.__context__


async def _slices(content: bytes) -> AsyncIterator[bytes]:
    """Cut a body up, so that TLS never encrypts it all at once."""
    for start in range(0, len(content), SLICE_BYTES):
        yield content[start : start + SLICE_BYTES]
