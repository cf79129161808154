"""A provider that only writes bytes made beforehand: ``python -m bench.provider PORT PACE``.

Paces: ``fast`` writes the whole stream at once, ``each`` makes one write of every event, ``paced``
sends 50 events a second, each with the time of its writing in it. In all of them an event is one
HTTP chunk, as real providers send it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final, cast

import uvloop

from bench import stream

INTERVAL: Final = 0.02
"""Seconds between two events of a paced stream."""

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"x-request-id: bench\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END: Final = b"0\r\n\r\n"
_NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class Provider(asyncio.Protocol):
    """One connection, kept alive; requests come one after the other."""

    def __init__(self, chunks: list[bytes], pace: str) -> None:
        self._chunks = chunks
        self._whole = b"".join([_HEAD, *chunks, _END])
        self._pace = pace
        self._request = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # not asked why
        """Stop a paced stream."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Answer as soon as a whole request is there."""
        self._request += data
        if _is_whole(self._request):
            answer = self._request.startswith(b"POST ")
            self._request = b""
            self._answer() if answer else self._write(_NOT_FOUND)

    def _answer(self) -> None:
        match self._pace:
            case "fast":
                self._write(self._whole)
            case "each":
                for chunk in (_HEAD, *self._chunks, _END):
                    self._write(chunk)
            case _:
                self._write(_HEAD)
                loop = asyncio.get_running_loop()
                self._next(loop, 0, loop.time())

    def _next(self, loop: asyncio.AbstractEventLoop, number: int, due: float) -> None:
        if number == len(self._chunks):
            self._write(_END)
            return
        stamp = stream.STAMP % time.monotonic_ns()
        self._write(self._chunks[number].replace(stream.STAMP % 0, stamp))
        due += INTERVAL
        loop.call_at(due, self._next, loop, number + 1, due)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line[15:])
        if line.startswith(b"transfer-encoding:"):
            return body.endswith(_END)
    return True


async def start(port: int, pace: str) -> asyncio.Server:
    """Return a listening server; port 0 lets the system choose one."""
    chunks = [b"%x\r\n%b\r\n" % (len(frame), frame) for frame in stream.frames()]
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Provider(chunks, pace), "127.0.0.1", port)


async def _serve(port: int, pace: str) -> None:
    server = await start(port, pace)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2]))
