"""One request and its response in HTTP/1.1, as a client sees them.

::

    HEAD --a head of 200 or more--> BODY --end of the body--> COMPLETE
      |                              |
      +------ lost, not HTTP, a failed upload, abort() ------> FAILED

Whatever arrives is parsed at once and kept until it is read; above ``HIGH_WATER`` the socket is
paused, so a slow reader slows the provider down. There is no timeout here, and a wait that is
cancelled leaves the exchange as it was. As soon as an exchange is over it leaves its connection
and says whether that can be used again, although the end of its body may still wait to be read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import httptools

from pipeline.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from proxy.connection import Connection

    Headers = list[tuple[bytes, bytes]]
    Content = bytes | AsyncIterator[bytes]

HIGH_WATER: Final = 256 * 1024
"""Body bytes that may wait for a reader before the socket is paused."""
HEAD_BYTES: Final = 256 * 1024
"""About the largest response head: several fields of 64 KiB fit."""
JOIN_BYTES: Final = 64 * 1024
"""Up to this size the body of a request goes out in one write with its head."""
SLICE_BYTES: Final = 256 * 1024
"""A longer body is written in slices of this size, so that TLS never encrypts it all at once."""
BODILESS: Final = frozenset({204, 304})
"""Statuses whose responses never have a body, whatever their headers say."""
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_OF_CONNECTION: Final = _FRAMING | {b"connection"}


class Stage(StrEnum):
    """Where an exchange is."""

    HEAD = "head"
    BODY = "body"
    COMPLETE = "complete"
    FAILED = "failed"


class Exchange:
    """One request and its response.

    Args:
        connection: Where it takes place.
        method: Responses to HEAD and CONNECT have no body, whatever their headers say.
        on_end: Called once, when the connection is free of this exchange, with whether it can be
            used again.
    """

    def __init__(
        self, connection: Connection, *, method: str, on_end: Callable[[bool], None]
    ) -> None:
        self.stage = Stage.HEAD
        self.status = 0
        self.headers: Headers = []
        self.stale = False
        """The connection was lost before a byte of a response had come: it may have been closed
        when the request was written."""
        self._connection = connection
        self._method = method
        self._on_end = on_end
        self._sender: asyncio.Task[None] | None = None
        self._sent = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.TimerHandle | None = None
        self._untouched = True
        self._keep_alive = False
        self._until_close = False
        self._over = False
        self._waiting = 0
        self._parts: list[bytes] = []
        self._end: int | None = None
        # The parser calls it for every piece of a body; list.append is the fastest callable.
        self.on_body = self._parts.append
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
            lenient_data_after_close=True,
        )

    def __repr__(self) -> str:
        return f"<Exchange with {self._connection.peer}: {self.stage}>"

    # What the parser calls. It goes on after the end of a message, so each looks at the stage.

    def on_message_begin(self) -> None:
        """Notice an answer that nobody asked for."""
        if self.stage is Stage.COMPLETE:
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head, not of the trailer."""
        if self.stage is Stage.HEAD:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Take the head."""
        if self.stage is not Stage.HEAD or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:  # informational: the response is still to come
            self.headers = []
            self._waiting = 0
            return
        self.status = status
        self.stage = Stage.BODY
        framed, options = _framing(self.headers)
        self._until_close = not framed
        self._keep_alive = b"close" not in options and (
            b"keep-alive" in options or self._parser.get_http_version() == "1.1"
        )
        if self._method == "CONNECT":  # the connection is a tunnel now, or good for nothing
            self._keep_alive = status < 300
            self._complete()
        elif self._method == "HEAD" or status in BODILESS:
            self._complete()

    def on_message_complete(self) -> None:
        """Take the end."""
        if self.stage is Stage.BODY:
            self._complete()

    def _complete(self) -> None:
        self.stage = Stage.COMPLETE
        self._end = len(self._parts)

    # What the connection calls.

    def send(self, head: bytes, content: Content, *, size: int | None) -> None:
        """Write the request; what is not written at once follows from a task.

        Args:
            head: The request head.
            content: The body.
            size: Its bytes; None for one in chunks.
        """
        transport = self._connection.transport
        if isinstance(content, bytes):
            if len(content) <= JOIN_BYTES:
                transport.write(head + content)
                self._sent = True
                return
            content = _slices(content)
        transport.write(head)
        self._sender = asyncio.ensure_future(self._upload(content, size))

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        if self._parser is None:
            return
        self._untouched = False
        self._waiting += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail(self._broken("switched to another protocol"))
        except httptools.HttpParserError as error:
            if self.stage is Stage.COMPLETE:
                self._keep_alive = False
            else:
                self.fail(self._broken(f"sent what is not HTTP ({error})"))
        if self.stage is Stage.HEAD and self._waiting > HEAD_BYTES:
            self.fail(self._broken(f"sent a response head above {HEAD_BYTES} bytes"))
        if self.draining:
            self._parts.clear()
            self._waiting = 0
        if self.stage is Stage.COMPLETE:
            del self._parts[self._end :]
            self._finish(reusable=self._keep_alive and self._sent)
        elif self._waiting > HIGH_WATER:
            self._connection.pause()
        self._wake()

    def lose(self, error: Exception | None) -> None:
        """Take the end of the connection: None is an end in good order."""
        if self.stage is Stage.BODY and self._until_close and error is None:
            self._complete()
            self._finish(reusable=False)
            self._wake()
            return
        self.stale = self._untouched and self.stage is Stage.HEAD
        how = "closed" if error is None else "broke" if isinstance(error, ssl.SSLError) else "reset"
        when = "before its answer" if self.stage is Stage.HEAD else "in the middle of its answer"
        self.fail(self._broken(f"{how} the connection {when}"))

    # What the user of the exchange calls.

    @property
    def draining(self) -> bool:
        """Whether ``drain`` was called in time."""
        return self._drained is not None

    async def head(self) -> None:
        """Wait until ``status`` and ``headers`` are there.

        Raises:
            UpstreamError: The connection ended first, or what came is no HTTP.
            Exception: What the request's body raised.
        """
        while self.stage is Stage.HEAD:
            await self._wait()
        if self.stage is Stage.FAILED and not self.status:
            self._raise()

    async def read(self) -> bytes | None:
        """Return what has come of the body since the last call, None at its end.

        Raises:
            UpstreamError: The connection ended in the middle.
            Exception: What the request's body raised.
        """
        while not self._parts:
            if self.stage is Stage.COMPLETE:
                return None
            if self.stage is Stage.FAILED:
                self._raise()
            await self._wait()
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._waiting = 0
        if not self._over:
            self._connection.resume()
        return data

    def drain(self, seconds: float) -> None:
        """Drop what comes of the body for so long, so that its end frees the connection."""
        if self._over or self.draining:
            return
        self._drained = asyncio.get_running_loop().call_later(seconds, self.abort)
        self._parts.clear()
        self._waiting = 0
        self._connection.resume()

    def abort(self) -> None:
        """End the exchange, and the connection with it if it is still in use; idempotent."""
        self.fail(self._broken("was left"))

    async def settle(self) -> None:
        """Wait, for a moment at most, until an upload that was stopped has cleaned up."""
        if self._sender is not None:
            await asyncio.wait({self._sender}, timeout=1)

    # The rest is its own.

    def fail(self, error: Exception) -> None:
        """Enter FAILED unless it is over; what came before can still be read."""
        if self.stage in {Stage.COMPLETE, Stage.FAILED}:
            return
        self.stage = Stage.FAILED
        self._error = error
        self._finish(reusable=False)
        self._wake()

    def _finish(self, *, reusable: bool) -> None:
        if self._over:
            return
        self._over = True
        self._parser = None  # it refers back to this exchange
        if self._drained is not None:
            self._drained.cancel()
        if self._sender is not None:
            self._sender.cancel()
        self._connection.leave(reusable=reusable)
        self._on_end(reusable)

    def _raise(self) -> None:
        raise self._error or self._broken("was left")

    def _broken(self, how: str) -> UpstreamError:
        return UpstreamError(f"{self._connection.peer} {how}")

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _upload(self, content: AsyncIterator[bytes], size: int | None) -> None:
        try:
            if size is None:
                await self._write_chunks(content)
            else:
                await self._write_pieces(content, size)
        except Exception as error:  # noqa: BLE001 - the body is the caller's, and so is its error
            self.fail(error)
        finally:
            if isinstance(content, AsyncGenerator):
                await content.aclose()

    async def _write_chunks(self, content: AsyncIterator[bytes]) -> None:
        write = self._connection.transport.write
        async for piece in content:
            if piece:  # an empty chunk would end the body
                write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await self._connection.drained()
        write(b"0\r\n\r\n")
        self._sent = True

    async def _write_pieces(self, content: AsyncIterator[bytes], left: int) -> None:
        write = self._connection.transport.write
        async for piece in content:
            left -= len(piece)
            if left < 0:
                break
            write(piece)
            self._sent = left == 0
            await self._connection.drained()
        if left:
            raise UpstreamError("the body of the request is not as long as its header says")
        self._sent = True


def request_head(
    method: str,
    target: bytes,
    host: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    content: Content,
) -> tuple[bytes, int | None]:
    """Write the head of a request and say how its body is framed.

    Everything stands as it is given, in the given order; only ``host`` is added where it is
    missing, and the two framing headers are replaced by what the content needs.

    Args:
        method: The method.
        target: The request target, raw.
        host: The value of ``host``.
        headers: Raw headers.
        content: The body.

    Returns:
        The head, and the size of the body in bytes (None: in chunks).

    Raises:
        UpstreamError: A part of it would break the head apart.
    """
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target)]
    declared: bytes | None = None
    named = False
    for name, value in headers:
        if (key := name.lower()) in _FRAMING:
            if key == b"content-length":
                declared = value
            continue
        named = named or key == b"host"
        lines.append(name + b": " + value)
    if not named:
        lines.insert(1, b"host: " + host)
    size = _body_size(content, declared)
    if size is None:
        lines.append(b"transfer-encoding: chunked")
    elif size or declared is not None or method in {"POST", "PUT", "PATCH"}:
        lines.append(b"content-length: %d" % size)
    return _joined(lines), size


def _joined(lines: list[bytes]) -> bytes:
    """Return lines as a head, unless one of them would break it apart."""
    head = b"\r\n".join([*lines, b"", b""])
    breaks = len(lines) + 1
    if head.count(b"\r") != breaks or head.count(b"\n") != breaks or b"\0" in head:
        raise UpstreamError("the request to the provider has a line break inside of a header")
    return head


def _body_size(content: Content, declared: bytes | None) -> int | None:
    if isinstance(content, bytes):
        return len(content)
    return int(declared) if declared is not None and declared.isdigit() else None


def _framing(headers: Headers) -> tuple[bool, set[bytes]]:
    """Say whether a response's headers tell where its body ends, and the connection's options."""
    framed = False
    options: set[bytes] = set()
    for name, value in headers:
        if (key := name.lower()) not in _OF_CONNECTION:
            continue
        if key == b"connection":
            options.update([token.strip() for token in value.lower().split(b",")])
        elif key == b"content-length" or value.lower().endswith(b"chunked"):
            framed = True
    return framed, options


async def _slices(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), SLICE_BYTES):
        yield content[start : start + SLICE_BYTES]
