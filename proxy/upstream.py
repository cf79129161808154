"""The way to a provider: open a request, read its answer as it comes, close it at any moment.

::

    response = await transport.open(UpstreamRequest("POST", url, headers, body))
    try:
        while (piece := await response.read()) is not None:
            ...
    finally:
        await response.close()

What is special about it, and why it is written here instead of taken from a client library: a
proxy must not add or change a byte that it was not asked to (no cookies, no user agent, no
quoting of URLs, no following of redirects), a request that is cancelled at whatever moment must
leave nothing behind, every failure has one error that names its phase, and the cost of a stream
is the cost of its bytes.

Hop-by-hop headers are the caller's business. The response's body comes as it was sent, encoded or
not, unless ``decode`` is called.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pipeline.errors import SSEStreamLimitError, UpstreamError
from proxy.dial import dial
from proxy.encodings import BodyTooLargeError, CodingError, Decoder, codings_of
from proxy.transport import CLOSE_SECONDS, BaseTransport, late

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence

    from proxy.connection import Connection
    from proxy.exchange import Headers
    from proxy.transport import Route

_NO_HEAD: Final = "sent no answer"


class UpstreamRequest(NamedTuple):
    """A request as it is to be sent.

    Attributes:
        method: The method.
        url: Absolute, and encoded as it is to be requested: nothing of it is changed.
        headers: Raw headers, sent in this order. ``host`` is added if missing;
            ``content-length`` and ``transfer-encoding`` are replaced by what the content needs.
        content: The body. An iterator is sent in chunks, or whole if a ``content-length`` says
            how long it is; what it raises, ``open`` or ``read`` raises.
    """

    method: str
    url: bytes | str
    headers: Sequence[tuple[bytes, bytes]] = ()
    content: bytes | AsyncIterator[bytes] = b""


class Incoming(Protocol):
    """An exchange whose head has come, whoever performs it; ``Exchange`` says what each means."""

    status: int
    headers: Headers

    @property
    def draining(self) -> bool:
        """Whether ``drain`` was called in time."""

    async def read(self) -> bytes | None:
        """Return what has come of the body since the last call, None at its end; cancel-safe."""

    def drain(self, seconds: float) -> None:
        """Drop what comes of the body for so long."""

    def abort(self) -> None:
        """End it; idempotent."""

    async def settle(self) -> None:
        """Wait, for a moment at most, until what it used is cleaned up."""


class UpstreamTransport(Protocol):
    """The seam: what sends requests to the providers of one upstream."""

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request and wait for the head of its response; ``Transport.open`` says more."""

    async def close(self) -> None:
        """End everything."""


class UpstreamResponse:
    """A response whose head has come.

    Args:
        exchange: Where it comes from.
        reused: Whether it came over a connection that had served before.
    """

    def __init__(self, exchange: Incoming, *, reused: bool) -> None:
        self.status = exchange.status
        self.headers = exchange.headers
        """Raw headers, in the order and the case of the provider."""
        self.reused = reused
        self._exchange = exchange
        self._decoder: Decoder | None = None
        self._decoded: Iterator[bytes] = iter(())

    def __repr__(self) -> str:
        return f"<UpstreamResponse {self.status} of {self._exchange!r}>"

    def read(self) -> Awaitable[bytes | None]:
        """Return the next piece of the body as it arrived, None at its end.

        A read that is cancelled loses nothing: the next one goes on where it was.

        Raises:
            UpstreamError: The provider cut the body short or, with ``decode``, garbled it.
            SSEStreamLimitError: With ``decode``, it unfolds to more than the limit.
        """
        if self._decoder is None:
            return self._exchange.read()
        return self._read_decoded(self._decoder)

    def decode(self, *, limit: int | None) -> None:
        """Undo the content encoding, if there is one, in what is read from now on.

        Args:
            limit: The most decoded bytes; None where the reader counts.

        Raises:
            UpstreamError: It is an encoding that can't be undone.
        """
        try:
            codings = codings_of(self.headers)
        except CodingError as error:
            raise UpstreamError(f"the provider's answer has an {error}") from error
        if codings:
            self._decoder = Decoder(codings, limit=limit)

    async def read_body(self, limit: int) -> bytes:
        """Read a whole body, cut at ``limit`` bytes, which is no error.

        Raises:
            UpstreamError: As ``read``.
        """
        parts: list[bytes] = []
        size = 0
        while size < limit and (piece := await self.read()) is not None:
            parts.append(piece)
            size += len(piece)
        return b"".join(parts)[:limit]

    def drain(self, seconds: float) -> None:
        """Stop reading, but let the body end in the background, so the connection can be reused.

        Args:
            seconds: After them the connection is closed.
        """
        self._exchange.drain(seconds)

    async def close(self) -> None:
        """End the response, its connection too if its body is not at its end; idempotent.

        It does not wait for the network. After ``drain`` there is nothing left to do.
        """
        if not self._exchange.draining:
            self._exchange.abort()
            await self._exchange.settle()

    async def _read_decoded(self, decoder: Decoder) -> bytes | None:
        try:
            while True:
                for piece in self._decoded:
                    return piece
                encoded = await self._exchange.read()
                if encoded is None:
                    decoder.finish()
                    return None
                self._decoded = decoder.feed(encoded)
        except BodyTooLargeError as error:
            raise SSEStreamLimitError(
                "Responses stream exceeded byte limit", limit="stream_bytes"
            ) from error
        except CodingError as error:
            raise UpstreamError(f"the provider's answer is damaged: {error}") from error


class Transport(BaseTransport["Connection"]):
    """Connections to the providers of one upstream; one that has served is kept for the next."""

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request and wait for the head of its response.

        A connection that had served before may turn out to be closed by the provider: where not
        a byte of a response has come and the body is at hand, the request goes out once more,
        over a new connection. Nothing else is ever sent twice.

        Raises:
            UpstreamError: 502 for refused, reset, unknown name, TLS, not HTTP; 504 for no
                connection or no head in time; 503 after ``close``.
            Exception: What the request's content raised.
        """
        if self._closed:
            raise UpstreamError("the proxy is shutting down", status=503)
        route = self._route(request)
        await self._enter(route)
        if (connection := self.pool.take(route.origin)) is not None:
            try:
                return await self._send(request, route, connection, reused=True)
            except _StaleError:
                await self._enter(route)
        connection = await self._dial(route)
        return await self._send(request, route, connection, reused=False)

    async def close(self) -> None:
        """Close every connection, also the ones in use, and wait a moment for the sockets."""
        self._closed = True
        self.pool.close()
        lost = [connection.lost for connection in self._held]
        for connection in list(self._held):
            connection.abort()
        if lost:
            await asyncio.wait(lost, timeout=CLOSE_SECONDS)

    async def _enter(self, route: Route) -> None:
        """Take a slot; ``_dial`` or the end of the exchange gives it back."""
        if self.pool.enter():
            return
        timer = asyncio.timeout_at(route.due)
        try:
            async with timer:
                await self.pool.acquire()
        except TimeoutError as error:
            raise self._late(route, "had no connection free") from error

    async def _dial(self, route: Route) -> Connection:
        """Open a connection for a slot that is held; the slot is free again if it fails."""
        due = asyncio.get_running_loop().time() + self._connect_seconds
        timer = asyncio.timeout_at(min(due, route.due))
        try:
            self.pool.make_room()
            async with timer:
                connection = await dial(
                    route.origin, route.proxy, tls=lambda: self._tls, on_lost=self._forget
                )
        except BaseException as error:
            self.pool.free()
            if not (isinstance(error, TimeoutError) and timer.expired()):
                raise
            if route.due <= due:
                raise self._late(route, _NO_HEAD) from error
            missing = "did not accept a connection"
            raise late(route.origin, missing, self._connect_seconds) from error
        self._held.add(connection)
        if self._closed:
            connection.abort()
        return connection

    async def _send(
        self, request: UpstreamRequest, route: Route, connection: Connection, *, reused: bool
    ) -> UpstreamResponse:
        """Perform an exchange; the held slot is free again as soon as it is over."""

        def end(reusable: bool) -> None:  # noqa: FBT001 - a callback has no keywords
            if reusable and not self._closed:
                self.pool.keep(route.origin, connection)
            else:
                connection.abort()
            self.pool.free()

        exchange = connection.begin(method=request.method, on_end=end)
        loop = asyncio.get_running_loop()
        timer = loop.call_at(route.due, lambda: exchange.fail(self._late(route, _NO_HEAD)))
        try:
            exchange.send(route.head, request.content, size=route.size)
            await exchange.head()
        except BaseException as error:
            exchange.abort()
            replayable = reused and exchange.stale and isinstance(request.content, bytes)
            if replayable and isinstance(error, UpstreamError):
                raise _StaleError from error
            await exchange.settle()
            raise
        finally:
            timer.cancel()
        return UpstreamResponse(exchange, reused=reused)

    def _forget(self, connection: Connection) -> None:
        self._held.discard(connection)
        self.pool.forget(connection)


class _StaleError(Exception):
    """A connection from the pool had been closed by the provider."""
