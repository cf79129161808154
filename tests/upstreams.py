"""A scripted loopback provider: exact bytes, pauses by events, stalls, resets, full records.

One request takes the next reply of the script; a reply is a list of steps::

    async with ScriptedProvider() as provider:  # on the running loop
        gate = Gate()
        provider.script([stream(b"data: 1\\n\\n", gate, b"data: 2\\n\\n"), response(404)])
        ...  # let the proxy call provider.url
        await provider.requests_seen.reaches(1)
        gate.open()
        await provider.connections_closed.reaches(1)
        assert provider.requests[0].target == b"/v1/responses"

    with ScriptedProvider() as provider: ...  # on a thread of its own

Steps are ``bytes`` (written as they are), a ``Gate`` (wait until the test opens it) and the marks
below. Nothing sleeps: what waits, waits for an event, and every wait of a test has a generous
bound that only a failing test reaches. What a callable reply raises, leaving the block raises.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, cast

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

BOUND = 20.0
"""Seconds after which a wait fails the test."""


class Counter:
    """A number that only grows; waiting for a value works from any thread and any loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = 0
        self._changed = threading.Condition()
        self._waiters: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<{self.name}: {self.value}>"

    def add(self, amount: int = 1) -> None:
        with self._changed:
            self.value += amount
            self._changed.notify_all()
            due = [waiter for waiter in self._waiters if waiter[0] <= self.value]
            self._waiters = [waiter for waiter in self._waiters if waiter[0] > self.value]
        for _, loop, future in due:
            with suppress(RuntimeError):  # a loop that is closed has nobody who waits
                loop.call_soon_threadsafe(_settle, future)

    async def reaches(self, value: int, *, within: float | None = BOUND) -> None:
        """Wait until the number is at least ``value``."""
        loop = asyncio.get_running_loop()
        with self._changed:
            if self.value >= value:
                return
            future: asyncio.Future[None] = loop.create_future()
            self._waiters.append((value, loop, future))
        try:
            async with asyncio.timeout(within):
                await future
        except TimeoutError:
            raise AssertionError(f"{self!r} did not reach {value}") from None

    def wait_for(self, value: int, *, within: float | None = BOUND) -> None:
        """Block the calling thread until the number is at least ``value``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.value >= value, within):
                raise AssertionError(f"{self!r} did not reach {value}")


class Gate(Counter):
    """A step that holds a reply back until somebody calls ``open()``."""

    def __init__(self, name: str = "gate") -> None:
        super().__init__(name)

    @property
    def is_open(self) -> bool:
        return self.value > 0

    def open(self) -> None:
        if not self.is_open:
            self.add()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True, slots=True)
class Stall:
    """Send nothing more, until the peer closes or the provider stops."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Cut the connection with a TCP reset (SO_LINGER 0)."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection in good order (FIN)."""


@dataclass(frozen=True, slots=True)
class Read:
    """Go on reading a request body that an ``Early`` reply left unread."""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """Relay bytes to another port, as a proxy does after CONNECT."""

    port: int
    host: str = "127.0.0.1"


Step = bytes | Gate | Stall | Reset | Close | Read | Tunnel
Steps = Sequence[Step]


@dataclass(frozen=True, slots=True)
class Early:
    """A reply that starts at the request's head; without ``read`` the body stays unread."""

    steps: Steps
    read: bool = True


@dataclass(slots=True)
class Received:
    """One request as it came."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    connection: int
    """Which connection it came on, from 0."""
    body: bytes = b""

    def header(self, name: str) -> bytes | None:
        """Return the only value of a header, None without one."""
        values = self.values(name)
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None

    def values(self, name: str) -> list[bytes]:
        """Return all values of a header, in order."""
        wanted = name.lower().encode()
        return [value for key, value in self.headers if key.lower() == wanted]

    def json(self) -> dict[str, Any]:
        """Read the body, a JSON object."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


Reply = Steps | Early | Callable[[Received], Steps]


@dataclass(slots=True)
class Connection:
    """What became of one connection."""

    requests: int = 0
    closed: Gate = field(default_factory=lambda: Gate("connection closed"))
    by_peer: bool = False
    """The peer closed or reset it; False while open and where the provider closed it."""


def chunk(data: bytes) -> bytes:
    """Frame one piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def head(status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """Write a response head with exactly these headers."""
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def response(
    status: int = 200,
    *body: Step,
    headers: Iterable[tuple[str, str]] = (),
    framing: Literal["length", "chunked", "close"] = "length",
) -> list[Step]:
    """Write a whole response; other steps may stand between the pieces of the body."""
    fields = list(headers)
    match framing:
        case "length":
            size = sum(len(step) for step in body if isinstance(step, bytes))
            return [head(status, [*fields, ("content-length", str(size))]), *body]
        case "chunked":
            pieces = [chunk(step) if isinstance(step, bytes) else step for step in body if step]
            return [head(status, [*fields, ("transfer-encoding", "chunked")]), *pieces, LAST_CHUNK]
        case "close":
            return [head(status, [*fields, ("connection", "close")]), *body, Close()]


def stream(*body: Step, headers: Iterable[tuple[str, str]] = ()) -> list[Step]:
    """Write a 200 event stream, chunked."""
    return response(
        200, *body, headers=[("content-type", "text/event-stream"), *headers], framing="chunked"
    )


def answer(
    value: object, *, status: int = 200, headers: Iterable[tuple[str, str]] = ()
) -> list[Step]:
    """Write a JSON response."""
    return response(
        status,
        json.dumps(value).encode(),
        headers=[("content-type", "application/json"), *headers],
    )


class ScriptedProvider:
    """The provider; see the module's text.

    Args:
        replies: The script, one reply per request over all connections.
        default: The reply after the script's end; without one a 500 that says so.
        tls: Serve TLS with this context.
        host: The address to listen on.
        greeting: What every connection gets before it says anything.
    """

    def __init__(
        self,
        replies: Iterable[Reply] = (),
        *,
        default: Reply | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        greeting: bytes = b"",
    ) -> None:
        self.host = host
        self.greeting = greeting
        self.port = 0
        self.default = default
        self.requests: list[Received] = []
        self.connections: list[Connection] = []
        self.failures: list[BaseException] = []
        self.requests_seen = Counter("requests seen")
        self.replies_sent = Counter("replies sent")
        self.connections_opened = Counter("connections opened")
        self.connections_closed = Counter("connections closed")
        self._tls = tls
        self._replies = list(replies)
        self._peers: set[_Peer] = set()
        self._server: asyncio.Server | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._stopped = Gate("stopped")

    @property
    def url(self) -> str:
        """Scheme, address and port, without a slash at the end."""
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    def script(self, replies: Iterable[Reply]) -> None:
        """Add replies to the script."""
        self._replies.extend(replies)

    def next_reply(self) -> Reply:
        if self._replies:
            return self._replies.pop(0)
        if self.default is not None:
            return self.default
        return answer({"error": {"message": "the script has ended"}}, status=500)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Peer(self), self.host, self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [task for peer in list(self._peers) for task in peer.stop()]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connections_closed.reaches(len(self.connections))
        if self.failures and error is None:
            raise self.failures[0]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        if not self._started.wait(BOUND):
            raise AssertionError("the provider did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        self._stopped.open()
        self._thread.join(BOUND)
        if self.failures and error is None:
            raise self.failures[0]

    async def _serve(self) -> None:
        with suppress(Exception):  # what a reply raised is in failures, for the test's thread
            async with self:
                self._started.set()
                await self._stopped.reaches(1, within=None)


class _Peer(asyncio.Protocol):
    """One connection: reads requests, performs replies, notices the peer's close at once."""

    def __init__(self, provider: ScriptedProvider) -> None:
        self._provider = provider
        self._buffer = bytearray()
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._relay: asyncio.StreamWriter | None = None
        self.record = Connection()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, as uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        provider = self._provider
        self._index = len(provider.connections)
        provider.connections.append(self.record)
        provider._peers.add(self)
        provider.connections_opened.add()
        self._transport.write(provider.greeting)
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._finished)

    def data_received(self, data: bytes) -> None:
        if self._relay is not None:
            self._relay.write(data)
        else:
            self._buffer += data
            self._readable.set()

    def eof_received(self) -> None:
        self.record.by_peer = not self._transport.is_closing()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self.record.by_peer = True
        self._writable.set()
        self._provider._peers.discard(self)
        self._task.cancel()
        self.record.closed.open()
        self._provider.connections_closed.add()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def stop(self) -> list[asyncio.Task[None]]:
        self._transport.abort()
        self._task.cancel()
        return [self._task]

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._provider.failures.append(error)
            self._transport.abort()

    async def _run(self) -> None:
        provider = self._provider
        while not self._transport.is_closing():
            request, framing = await self._read_head()
            self.record.requests += 1
            reply = provider.next_reply()
            if isinstance(reply, Early):
                if not reply.read:
                    self._transport.pause_reading()
                self._note(request)
                await self._perform(reply.steps)
                self._transport.close()
                return
            await self._read_body(request, framing)
            self._note(request)
            await self._perform(reply(request) if callable(reply) else reply)

    def _note(self, request: Received) -> None:
        self._provider.requests.append(request)
        self._provider.requests_seen.add()

    async def _perform(self, steps: Steps) -> None:
        for step in steps:
            match step:
                case bytes():
                    self._transport.write(step)
                    await self._writable.wait()
                case Gate():
                    await step.reaches(1, within=None)
                case Stall():
                    await asyncio.get_running_loop().create_future()
                case Reset():
                    sock = self._transport.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self._transport.abort()
                case Close():
                    self._transport.close()
                case Read():
                    self._transport.resume_reading()
                case Tunnel():
                    await self._tunnel(step)
        self._provider.replies_sent.add()

    async def _tunnel(self, step: Tunnel) -> None:
        reader, self._relay = await asyncio.open_connection(step.host, step.port)
        self._relay.write(self._buffer)
        self._buffer.clear()
        try:
            while data := await reader.read(65536):
                self._transport.write(data)
        finally:
            self._relay.close()
            self._transport.close()

    async def _more(self) -> None:
        self._readable.clear()
        await self._readable.wait()

    async def _read_head(self) -> tuple[Received, int | None]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            await self._more()
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        method, target, _ = lines[0].split(b" ")
        headers = [
            (name, value.strip()) for name, _, value in (x.partition(b":") for x in lines[1:])
        ]
        request = Received(method.decode(), target, headers, self._index)
        if request.header("expect") == b"100-continue":
            self._transport.write(head(100))
        if request.header("transfer-encoding") == b"chunked":
            return request, None
        return request, int(request.header("content-length") or 0)

    async def _read_body(self, request: Received, size: int | None) -> None:
        if size is not None:
            request.body = await self._take(size)
            return
        pieces = []
        while length := int(await self._line(), 16):
            pieces.append(await self._take(length))
            await self._take(2)
        await self._take(2)
        request.body = b"".join(pieces)

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            await self._more()
        return (await self._take(end + 2))[:-2]
