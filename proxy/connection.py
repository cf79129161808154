"""A connection to a provider: the socket under one exchange after another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from proxy.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable


class Connection(asyncio.Protocol):
    """A connection to a provider, or to a proxy on the way to it.

    Args:
        peer: How errors name the other side: host and port.
        on_lost: Called once, when the connection has ended for whatever reason.
    """

    transport: asyncio.Transport
    """The socket, or TLS over it; there from ``connection_made`` on."""

    def __init__(self, peer: str, *, on_lost: Callable[[Connection], None]) -> None:
        self.peer = peer
        self.lost = asyncio.get_running_loop().create_future()
        """Done when the socket is closed."""
        self._on_lost = on_lost
        self._exchange: Exchange | None = None
        self._paused = False
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_open(self) -> bool:
        """Whether it was neither lost nor aborted."""
        return not self.transport.is_closing()

    def begin(self, *, method: str, on_end: Callable[[bool], None]) -> Exchange:
        """Begin an exchange; the last one must be over."""
        self._exchange = Exchange(self, method=method, on_end=on_end)
        return self._exchange

    def leave(self, *, reusable: bool) -> None:
        """End the exchange, and the connection unless it is reusable."""
        self._exchange = None
        self.resume()
        if not reusable:
            self.abort()

    def abort(self) -> None:
        """Close at once, without waiting for anything; idempotent."""
        self.transport.abort()

    def pause(self) -> None:
        """Stop reading from the socket."""
        if not self._paused and self.is_open:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Go on reading from the socket."""
        if self._paused:
            self._paused = False
            if self.is_open:
                self.transport.resume_reading()

    async def drained(self) -> None:
        """Wait until the socket takes more."""
        await self._writable.wait()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        # A cast, as uvloop's transports are no subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Give it to the exchange; an idle connection has nothing to say but good-bye."""
        if self._exchange is None:
            self.abort()
        else:
            self._exchange.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody."""
        self._writable.set()
        if self._exchange is not None:
            self._exchange.lose(exc)
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_lost(self)

    def pause_writing(self) -> None:
        """Hold an upload back."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let it go on."""
        self._writable.set()
