from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from proxy.client_connection import HEAD_BYTES, ClientConnection, Patience
from tests.proxy.serving import SECONDS, Client, connected, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

pytestmark = pytest.mark.anyio

H2C: Final = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
)
"""What curl --http2, Java's HttpClient and others send with their first request."""
WEBSOCKET: Final = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class Echo:
    """Tells each request back, with what the application saw of it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.hold: asyncio.Event | None = None
        self.ended: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.set()
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.ended.append("left")
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        names = [name.decode() for name, _ in scope["headers"]]
        seen = {"path": scope["path"], "headers": names, "size": len(body), "body": body[:99].hex()}
        await send(_start([(b"x-seen", json.dumps(seen).encode()), (b"content-length", b"2")]))
        if self.hold is not None:
            await self.hold.wait()
        await send({"type": "http.response.body", "body": b"ok"})
        self.ended.append("answered")


def _start(headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def request(body: bytes = b"", *more: bytes, method: bytes = b"POST", path: bytes = b"/a") -> bytes:
    """Return a request in full; ``more`` are header lines."""
    head = b"%s %s HTTP/1.1\r\nHost: x\r\n%s" % (method, path, b"".join(more))
    if body:
        head += b"Content-Length: %d\r\n" % len(body)
    return head + b"\r\n" + body


def chunked(*chunks: bytes, headers: bytes = H2C) -> bytes:
    parts = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in (*chunks, b""))
    return b"POST /a HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\n\r\n%s" % (
        headers,
        parts,
    )


async def seen(client: Client) -> dict[str, Any]:
    """Read one answer of ``Echo``."""
    answer = await client.until(b"\r\n\r\nok")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    match = re.search(rb"x-seen: (.*)\r\n", answer)
    assert match is not None
    told: dict[str, Any] = json.loads(match[1])
    return told


# ---------------------------------------------------------- requests that ask for another protocol

BODIES: dict[str, tuple[bytes, bytes]] = {
    "a short body": (request(b"x=1", H2C), b"x=1"),
    "no body": (request(b"", H2C, method=b"GET"), b""),
    "an empty body": (request(b"", H2C, b"Content-Length: 0\r\n"), b""),
    "a large body": (request(b"y" * 1_000_000, H2C), b"y" * 1_000_000),
    "chunks": (chunked(b"abc", b"d" * 70_000), b"abc" + b"d" * 70_000),
    "another protocol": (request(b"z", b"Connection: upgrade\r\nUpgrade: TLS/1.0\r\n"), b"z"),
    "two of them": (request(b"z", b"Connection: upgrade\r\nUpgrade: h2c\r\nUpgrade: a\r\n"), b"z"),
    "a close as well": (request(b"z", b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"), b"z"),
}


@pytest.mark.parametrize("name", sorted(BODIES))
async def test_an_upgrade_is_served_as_if_it_had_not_been_asked_for(name: str) -> None:
    sent, body = BODIES[name]
    async with served(Echo()) as port, connected(port) as client:
        client.send(sent)
        told = await seen(client)
    assert (told["path"], told["size"], told["body"]) == ("/a", len(body), body[:99].hex())
    assert "upgrade" not in told["headers"]
    assert told["headers"][:2] == ["host", "connection"]


@pytest.mark.parametrize("sent", [BODIES["a short body"][0], chunked(b"abc", b"de")])
async def test_such_a_request_may_come_in_any_pieces(sent: bytes) -> None:
    """In process, as TCP joins what is written apart."""
    whole = await _told_in([sent])
    assert whole["size"] > 0
    for cut in range(1, len(sent)):
        assert await _told_in([sent[:cut], sent[cut:]]) == whole
    assert await _told_in([sent[i : i + 1] for i in range(len(sent))]) == whole


async def _told_in(pieces: list[bytes]) -> dict[str, Any]:
    connection, transport = in_process(Echo())
    for piece in pieces:
        connection.data_received(piece)
    answer = await transport.answer()
    connection.connection_lost(None)
    match = re.search(rb"x-seen: (.*)\r\n", answer)
    assert match is not None, answer
    told: dict[str, Any] = json.loads(match[1])
    return told


@pytest.mark.parametrize("together", [True, False])
async def test_what_follows_on_the_connection_is_read_as_ever(*, together: bool) -> None:
    requests = [
        request(b"one", H2C, path=b"/1"),
        request(b"three", path=b"/2"),
        request(b"", H2C, method=b"GET", path=b"/3"),
        request(b"seven..", H2C, path=b"/4"),
    ]
    told = []
    async with served(Echo()) as port, connected(port) as client:
        if together:
            client.send(b"".join(requests))
        for one in requests:
            if not together:
                client.send(one)
            told.append(await seen(client))
    assert [(one["path"], one["size"]) for one in told] == [
        ("/1", 3),
        ("/2", 5),
        ("/3", 0),
        ("/4", 7),
    ]


@pytest.mark.parametrize("behind", [b"", b"\x81\x85\x00\x00\x00\x00hello" * 9])
@pytest.mark.parametrize("body", [b"", b"x" * 1000])
@pytest.mark.parametrize("more", [b"", b"X-Large: %s\r\n" % (b"v" * 60_000)])
async def test_an_upgrade_to_websocket_is_the_applications_to_answer(
    behind: bytes, body: bytes, more: bytes
) -> None:
    """Frames that were sent without waiting don't disturb the answer."""
    echo = Echo()
    async with served(echo) as port, connected(port) as client:
        client.send(request(body, WEBSOCKET, more, method=b"GET") + behind)
        told = await seen(client)
    assert "upgrade" in told["headers"]
    assert told["size"] == len(body)


async def test_a_tunnel_is_not_opened() -> None:
    async with served(Echo()) as port, connected(port) as client:
        client.send(b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n%s\r\nrest" % H2C)
        assert b" 400 " in (await client.rest()).partition(b"\r\n")[0]


# -------------------------------------------------------------------------- clients that are silent


def patient(**seconds: float) -> type[ClientConnection]:
    """Return a protocol that waits for so long, and else for as long as a test can last."""
    given = {"head": 1e6, "body": 1e6, "answer": 1e6} | seconds

    class Patient(ClientConnection):
        patience = Patience(**given)

    return Patient


SILENT_HEADS: dict[str, bytes] = {
    "nothing at all": b"",
    "half a request line": b"POST /a HT",
    "half a head": b"POST /a HTTP/1.1\r\nHost: x\r\nX-A",
    "an upgrade without end": b"POST /a HTTP/1.1\r\nHost: x\r\n" + H2C,
    "a blank line": b"\r\n",
}


@pytest.mark.parametrize("name", sorted(SILENT_HEADS))
async def test_half_a_head_is_not_waited_for(name: str) -> None:
    async with served(Echo(), http=patient(head=0.05)) as port, connected(port) as client:
        client.send(SILENT_HEADS[name])
        assert await client.rest() == b""


async def test_half_a_head_behind_an_answer_is_not_waited_for_either() -> None:
    for half in (b"GET /b HTTP/1.1\r\nHo", b"\r\n"):
        async with served(Echo(), http=patient(head=0.05)) as port, connected(port) as client:
            client.send(request(b"x"))
            await seen(client)
            client.send(half)
            assert await client.rest() == b""


SILENT_BODIES: dict[str, bytes] = {
    "no byte": request(b"x" * 9)[:-9],
    "half of it": request(b"x" * 9)[:-4],
    "half a chunk": chunked(b"abcdef", headers=b"")[:-9],
    "no last chunk": chunked(b"abcdef", headers=b"")[:-5],
    "behind an upgrade": request(b"x" * 9, H2C)[:-4],
}


@pytest.mark.parametrize("name", sorted(SILENT_BODIES))
async def test_half_a_body_is_not_waited_for(name: str) -> None:
    echo = Echo()
    async with served(echo, http=patient(body=0.05)) as port, connected(port) as client:
        client.send(SILENT_BODIES[name])
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"\r\nconnection: close" in head
    error = json.loads(body)["error"]
    assert error["message"] == "no byte of the request body within 0.05 seconds"
    assert echo.ended == ["left"]


async def test_half_a_body_of_a_request_that_has_its_answer_is_not_waited_for() -> None:
    async def hasty(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send(_start([(b"content-length", b"2")]))
        await send({"type": "http.response.body", "body": b"no"})

    async with served(hasty, http=patient(body=0.05)) as port, connected(port) as client:
        client.send(request(b"x" * 9)[:-4])
        await client.until(b"\r\n\r\nno")
        client.send(b"x")
        assert await client.rest() == b""


async def test_an_answer_that_nobody_reads_is_given_up() -> None:
    ended = asyncio.Event()

    async def endless(_scope: Scope, receive: Receive, send: Send) -> None:
        await send(_start([]))
        listening = asyncio.ensure_future(_until_left(receive))
        while not listening.done():
            await send({"type": "http.response.body", "body": b"x" * 60_000, "more_body": True})
        ended.set()

    async with served(endless, http=patient(answer=0.2)) as port, connected(port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's
        client.send(request())
        async with asyncio.timeout(SECONDS):
            await ended.wait()


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -------------------------------------------------------------- clients that are silent, by a clock


class Transport(asyncio.Transport):
    """A socket that is none: keeps what is written, and what was done to it."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.written = b""
        self.unsent = 0
        self.done: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        if not self.done:
            self.done.append("close")

    def write_eof(self) -> None:
        self.done.append("end")

    def abort(self) -> None:
        if not self.done:
            self.done.append("abort")

    def is_closing(self) -> bool:
        return bool(self.done)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent

    async def answer(self) -> bytes:
        async with asyncio.timeout(SECONDS):
            while not self.written.endswith(b"\r\n\r\nok"):  # noqa: ASYNC110 - nothing to wait for
                await asyncio.sleep(0)
        return self.written


class Clock:
    """The loop, but for the time, which only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        handle = self._loop.call_later(1e6, _nothing)
        self._due.append((self.now + delay, call, handle))
        return handle

    def create_task(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return self._loop.create_task(coroutine)

    async def passes(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due meanwhile."""
        end = self.now + seconds
        while due := [one for one in self._due if one[0] <= end]:
            first = min(due, key=lambda one: one[0])
            self._due.remove(first)
            self.now, call, handle = first
            if not handle.cancelled():
                call()
            await asyncio.sleep(0)
        self.now = end


def _nothing() -> None: ...


def in_process(
    app: ASGIApp, clock: Clock | None = None, http: type[ClientConnection] = ClientConnection
) -> tuple[ClientConnection, Transport]:
    """Return a connection without a socket."""
    config = uvicorn.Config(
        app, http=http, lifespan="off", log_config=None, ws="none", timeout_keep_alive=75
    )
    loop = cast("asyncio.AbstractEventLoop | None", clock)
    connection = http(config, ServerState(), {}, loop)
    transport = Transport()
    connection.connection_made(transport)
    return connection, transport


@asynccontextmanager
async def timed(app: ASGIApp) -> AsyncIterator[tuple[ClientConnection, Transport, Clock]]:
    clock = Clock()
    connection, transport = in_process(app, clock)
    yield connection, transport, clock
    connection.connection_lost(None)
    await asyncio.sleep(0)


async def test_a_head_that_drips_has_a_minute_as_a_whole() -> None:
    async with timed(Echo()) as (connection, transport, clock):
        connection.data_received(b"GET /")
        for _ in range(11):
            connection.data_received(b"a")
            await clock.passes(5)
            assert not transport.done
        await clock.passes(30)
        assert transport.done == ["close"]
        assert transport.written == b""


async def test_a_body_that_drips_has_a_minute_for_each_byte() -> None:
    async with timed(Echo()) as (connection, transport, clock):
        connection.data_received(request(b"x" * 9)[:-9])
        for _ in range(9):
            await clock.passes(59)
            assert not transport.done
            connection.data_received(b"x")
        assert b"200 OK" in await transport.answer()


async def test_a_client_whose_answer_is_on_its_way_owes_nothing() -> None:
    echo = Echo()
    echo.hold = asyncio.Event()
    async with timed(echo) as (connection, transport, clock):
        connection.data_received(request(b"x") + b"GET /next HT")
        await clock.passes(10_000)
        assert not transport.done
        echo.hold.set()
        await transport.answer()
        await clock.passes(40)
        assert not transport.done
        await clock.passes(30)
        assert transport.done == ["close"]


async def test_a_client_that_waits_for_a_word_of_ours_owes_nothing() -> None:
    """``Expect: 100-continue``, and an application that doesn't read yet."""
    go = asyncio.Event()
    echo = Echo()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await echo(scope, receive, send)

    for sent in (request(b"x", b"Expect: 100-continue\r\n")[:-1], request(b"x" * 99_999)[:-1]):
        go.clear()
        async with timed(late) as (connection, transport, clock):
            connection.data_received(sent)
            await clock.passes(1000)
            assert not transport.done
            go.set()
            for _ in range(5):
                await asyncio.sleep(0)
            connection.data_received(b"x")
            await transport.answer()


async def test_a_client_that_reads_slowly_is_waited_for() -> None:
    echo = Echo()
    echo.hold = asyncio.Event()
    async with timed(echo) as (connection, transport, clock):
        connection.data_received(request(b"x"))
        for size in range(50_000, 0, -10_000):
            transport.unsent = size
            await clock.passes(590)
        transport.unsent = 60_000
        for _ in range(5):
            connection.resume_writing()
            await clock.passes(590)
        assert not transport.done
        await clock.passes(700)
        assert transport.done == ["abort"]
        echo.hold.set()


# --------------------------------------------------------------------------- what is no HTTP at all


async def test_what_is_no_http_is_told_in_our_shape() -> None:
    for nonsense in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"POST /a HTTP/1.1\r\na b: c\r\n\r\n",
    ):
        async with served(Echo()) as port, connected(port) as client:
            client.send(nonsense)
            head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_a_head_without_end_is_refused() -> None:
    async with served(Echo()) as port, connected(port) as client:
        client.send(b"GET /a HTTP/1.1\r\nHost: x\r\n")
        client.send(b"X-A: bcdefgh\r\n" * (2 * HEAD_BYTES // 14))
        answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"request head exceeded 262144 byte limit" in answer


def head_of(size: int) -> bytes:
    """Return a request that is a head of so many bytes."""
    begin, end = b"GET /a HTTP/1.1\r\nHost: x\r\nX-A: ", b"\r\n\r\n"
    return begin + b"y" * (size - len(begin) - len(end)) + end


@pytest.mark.parametrize("pieces", [4096, 65_536, HEAD_BYTES - 1, HEAD_BYTES, 1 << 30])
@pytest.mark.parametrize("behind", [b"", request(b"x" * 5000), request(b"x", H2C)])
@pytest.mark.parametrize("over", [0, 1, 200_000])
async def test_the_limit_of_a_head_holds_however_it_is_cut(
    pieces: int, behind: bytes, over: int
) -> None:
    sent = behind + head_of(HEAD_BYTES + over)
    async with timed(Echo()) as (connection, transport, _):
        for at in range(0, len(sent), pieces):
            connection.data_received(sent[at : at + pieces])
            await asyncio.sleep(0)
        for _ in range(20):  # turns of the loop: nothing here waits for a socket
            await asyncio.sleep(0)
    served_first, *rest = re.findall(
        rb"HTTP/1.1 (\d+) ", b"- HTTP/1.1 200 " * (not behind) + transport.written
    )
    assert served_first == b"200"
    if not over:
        assert rest == [b"200"]
    elif behind:  # which is told only where the answer in front of it is over
        assert rest in ([], [b"431"])
    else:
        assert rest == [b"431"]


@pytest.mark.parametrize("behind", [b"\x00nonsense", b"GET / HTTP/1.1\r\nX: " + b"y" * 600_000])
async def test_nonsense_behind_a_request_leaves_its_answer_whole(behind: bytes) -> None:
    echo = Echo()
    echo.hold = asyncio.Event()
    async with timed(echo) as (connection, transport, _):
        connection.data_received(request(b"x"))
        for i in range(0, len(behind), 60_000):
            connection.data_received(behind[i : i + 60_000])
        echo.hold.set()
        answer = await transport.answer()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert echo.ended == ["answered"]
    assert transport.done == ["close"]


async def test_a_body_that_is_no_body_is_told() -> None:
    echo = Echo()
    async with served(echo) as port, connected(port) as client:
        client.send(chunked(b"abc", headers=b"")[:-5] + b"zz\r\n")
        answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert echo.ended == ["left"]


# ------------------------------------------------------------------------------------- HTTP/1.0


async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    named = [(b"content-length", b"6")] if scope["path"] == "/sized" else []
    await send(_start(named))
    for piece, more in ((b"one", True), (b"", True), (b"two", False)):
        await send({"type": "http.response.body", "body": piece, "more_body": more})


@pytest.mark.parametrize("asked", [b"", b"Connection: keep-alive\r\n"])
@pytest.mark.parametrize("path", [b"/", b"/sized"])
async def test_without_chunks_an_answer_ends_with_its_connection(path: bytes, asked: bytes) -> None:
    async with served(streaming) as port, connected(port) as client:
        client.send(b"GET %s HTTP/1.0\r\n%s\r\n" % (path, asked))
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert body == b"onetwo"
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert (b"content-length: 6" in head) is (path == b"/sized")


async def test_a_head_alone_has_no_body_without_chunks_either() -> None:
    async with served(streaming) as port, connected(port) as client:
        client.send(b"HEAD / HTTP/1.0\r\n\r\n")
        answer = await client.rest()
    assert answer.endswith(b"connection: close\r\n\r\n")


async def test_with_chunks_it_has_them() -> None:
    async with served(streaming) as port, connected(port) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await client.rest()
    assert answer.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
