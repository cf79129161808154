"""The load client: many streams at once against one address, counted and checked."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

from bench import stream

_TOO_LONG: Final = 300
"""Seconds; a run takes a few."""
_END: Final = b"0\r\n\r\n"
_STAMP: Final = re.compile(rb'"obfuscation":"T(\d{16})')


@dataclass(slots=True)
class Tally:
    """What one run saw."""

    streams: int = 0
    wall_s: float = 0.0
    first_byte_s: list[float] = field(default_factory=list)
    """From the request's last byte to the answer's first event, one for each stream."""
    latency_s: list[float] = field(default_factory=list)
    """From the provider's write of an event to its arrival here (paced streams only)."""


class LoadError(Exception):
    """The target did not answer with the whole stream."""


class _Connection(asyncio.Protocol):
    """Sends its next request when the answer to the last one is complete."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._started = 0.0
        self._waiting = False
        self._answer: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._request()

    def data_received(self, data: bytes) -> None:
        if self._waiting and b"data:" in data:
            self._waiting = False
            self._run.tally.first_byte_s.append(time.monotonic() - self._started)
        if self._run.stamped:
            now = time.monotonic_ns()
            stamps = map(int, _STAMP.findall(data))
            self._run.tally.latency_s += [(now - stamp) / 1e9 for stamp in stamps if stamp]
        self._answer.append(data)
        if data.endswith(_END) or (len(data) < len(_END) and b"".join(self._answer).endswith(_END)):
            answer, self._answer = self._answer, []
            self._run.complete(answer)
            self._request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting or self._answer:
            seen = b"".join(self._answer)[:300]
            self._run.fail(LoadError(f"the connection ended within a stream: {exc} {seen!r}"))

    def _request(self) -> None:
        if self._transport is None:
            return
        if not self._run.take():
            self._transport.close()
            return
        self._waiting = True
        self._started = time.monotonic()
        self._transport.write(self._run.request)


class _Run:
    def __init__(self, url: str, streams: int, *, stamped: bool) -> None:
        self.tally = Tally()
        self.stamped = stamped
        self.request = _request(url)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._to_start = streams
        self._to_end = streams

    def take(self) -> bool:
        """Whether another stream is to be started."""
        self._to_start -= 1
        return self._to_start >= 0

    def complete(self, answer: list[bytes]) -> None:
        if not self.tally.streams:
            self._check(b"".join(answer))
        if sum(map(len, answer)) < stream.BODY_BYTES * 0.95:
            self.fail(LoadError(f"a short answer: {b''.join(answer)[:300]!r}"))
        self.tally.streams += 1
        self._to_end -= 1
        if not self._to_end and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: LoadError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _check(self, answer: bytes) -> None:
        """Look at one answer closely: all events, the terminal once."""
        head, _, body = answer.partition(b"\r\n\r\n")
        events = body.count(b"\nevent: ") + body.startswith(b"event: ")
        if not head.startswith(b"HTTP/1.1 200 ") or body.count(b"event: response.completed") != 1:
            self.fail(LoadError(f"no whole stream: {answer[:300]!r}"))
        elif events != stream.EVENTS:
            self.fail(LoadError(f"{events} events instead of {stream.EVENTS}"))


def _request(url: str) -> bytes:
    parts = urlsplit(url)
    body = stream.request_body()
    head = (
        f"POST {parts.path}/responses HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        "authorization: Bearer bench\r\ncontent-type: application/json\r\n"
        f"accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def drive(url: str, *, streams: int, at_once: int, stamped: bool = False) -> Tally:
    """Run ``streams`` streams, ``at_once`` of them at a time, against the base URL ``url``.

    Raises:
        LoadError: The target refused, cut, or changed a stream.
        OSError: It is not there.
        TimeoutError: It hangs.
    """
    loop = asyncio.get_running_loop()
    run = _Run(url, streams, stamped=stamped)
    parts = urlsplit(url)
    started = loop.time()
    transports: list[asyncio.Transport] = []
    try:
        async with asyncio.timeout(_TOO_LONG):
            for _ in range(min(at_once, streams)):
                transport, _ = await loop.create_connection(
                    lambda: _Connection(run), parts.hostname or "127.0.0.1", parts.port or 80
                )
                transports.append(transport)
            await run.ended
    finally:
        for transport in transports:
            transport.abort()
    run.tally.wall_s = loop.time() - started
    return run.tally
