"""The client's side over a real server and raw sockets: bodies in, responses out, clients gone."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from pipeline.errors import RequestError, UpstreamError
from proxy.downstream import (
    INBOX,
    PIECE_BYTES,
    Channel,
    TurnResponse,
    read_request_body,
    send_error,
    stream_request_body,
)
from tests.proxy.serving import SECONDS, connected, served
from tests.upstreams import LAST_CHUNK, Counter, Gate, chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import Message, Receive, Scope, Send

pytestmark = pytest.mark.both_loops

HEAD = [(b"content-type", b"text/event-stream")]
GET = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"
GET_LAST = b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="uvicorn.error")


class Stage:
    """An application whose driver is a test's; remembers what became of each response."""

    def __init__(self, run: Callable[[Channel], object], **options: object) -> None:
        self.channels: list[Channel] = []
        self.errors: list[Exception] = []
        self.sizes: list[int] = []
        self.returned = Counter("responses returned")
        self._run = run
        self._options = {"on_error": self.errors.append} | options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def measured(message: Message) -> None:
            self.sizes.append(len(message.get("body", b"")))
            await send(message)

        async def run(channel: Channel) -> None:
            self.channels.append(channel)
            await self._run(channel)

        try:
            await TurnResponse(run, **self._options)(scope, receive, measured)
        finally:
            self.returned.add()


@pytest.mark.anyio
class TestResponses:
    async def test_a_response_is_delivered_and_its_connection_used_again(self) -> None:
        async def run(channel: Channel) -> None:
            assert not channel.started
            await channel.start(201, HEAD)
            assert channel.started
            await channel.send(b"one", more=True)
            assert not channel.delivered
            await channel.send(b"two", more=False)
            assert channel.delivered
            assert channel.ended

        stage = Stage(run)
        async with served(stage) as port, connected(port) as client:
            for _ in range(2):
                client.send(GET)
                head = await client.until(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 201 Created\r\n")
                assert await client.until(LAST_CHUNK) == chunk(b"one") + chunk(b"two") + LAST_CHUNK
            await stage.returned.reaches(2)
            assert [channel.status for channel in stage.channels] == [201, 201]
            assert stage.errors == []

    async def test_no_send_is_longer_than_a_piece(self) -> None:
        body = bytes(range(256)) * 4096

        async def run(channel: Channel) -> None:
            await channel.start(200, [(b"content-length", b"%d" % (len(body) + 1))])
            await channel.send(b"x", more=True)
            await channel.send(body, more=False)

        stage = Stage(run)
        async with served(stage) as port, connected(port) as client:
            client.send(GET)
            await client.until(b"\r\n\r\n")
            assert await client.reader.readexactly(len(body) + 1) == b"x" + body
        assert max(stage.sizes) == PIECE_BYTES

    async def test_a_client_that_does_not_read_blocks_the_driver(self) -> None:
        stopped = Gate()
        sent: list[int] = []

        async def run(channel: Channel) -> None:
            await channel.start(200, HEAD)
            while not stopped.is_open:
                sent.append(1)
                await channel.send(bytes(PIECE_BYTES), more=True)
                assert not channel.blocked
            await channel.send(b"", more=False)

        stage = Stage(run)
        async with served(stage) as port, connected(port, limit=1 << 10) as client:
            client.send(GET_LAST)
            await client.until(b"\r\n\r\n")
            count = -1
            async with asyncio.timeout(SECONDS):
                while not (stage.channels[0].blocked and count == len(sent)):
                    count = len(sent)
                    await asyncio.sleep(0.01)
            assert len(sent) < 1000
            stopped.open()
            assert (await client.rest()).endswith(LAST_CHUNK)
            await stage.returned.reaches(1)
            assert stage.channels[0].delivered


@pytest.mark.anyio
class TestDisconnects:
    @pytest.mark.parametrize("how", ["close", "reset"])
    @pytest.mark.parametrize("started", [False, True])
    async def test_the_driver_is_cancelled_at_once_and_cleans_up(
        self, how: str, *, started: bool
    ) -> None:
        waiting, cleaning, cleaned = Gate("waiting"), Gate("cleaning"), Gate("cleaned")

        async def run(channel: Channel) -> None:
            if started:
                await channel.start(200, HEAD)
                await channel.send(b"first", more=True)
            waiting.open()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                assert channel.disconnected
                await cleaning.reaches(1)
                cleaned.open()

        stage = Stage(run)
        async with served(stage) as port, connected(port) as client:
            client.send(GET)
            await waiting.reaches(1)
            if started:
                await client.until(chunk(b"first"))
            getattr(client, how)()
            await asyncio.sleep(0)
            assert stage.returned.value == 0
            cleaning.open()
            await stage.returned.reaches(1)
            assert cleaned.is_open
            channel = stage.channels[0]
            assert (channel.disconnected, channel.delivered) == (True, False)
            assert stage.errors == []

    async def test_a_blocked_send_is_cancelled_too(self) -> None:
        async def run(channel: Channel) -> None:
            await channel.start(200, HEAD)
            while True:
                await channel.send(bytes(PIECE_BYTES), more=True)

        stage = Stage(run)
        async with served(stage) as port, connected(port, limit=1 << 10) as client:
            client.send(GET)
            await client.until(b"\r\n\r\n")
            async with asyncio.timeout(SECONDS):
                while not stage.channels[0].blocked:  # noqa: ASYNC110 - no event for it
                    await asyncio.sleep(0)
            client.reset()
            await stage.returned.reaches(1)
            assert stage.channels[0].disconnected

    async def test_after_the_end_the_client_may_leave(self) -> None:
        ended, gate, settled = Gate("ended"), Gate("gate"), Gate("settled")

        async def run(channel: Channel) -> None:
            await channel.start(200, HEAD)
            await channel.send(b"terminal", more=False)
            ended.open()
            await gate.reaches(1)
            settled.open()

        stage = Stage(run)
        async with served(stage) as port, connected(port) as client:
            client.send(GET)
            await client.until(LAST_CHUNK)
            await ended.reaches(1)
            client.close()
            await client.writer.wait_closed()
            gate.open()
            await stage.returned.reaches(1)
            assert settled.is_open
            channel = stage.channels[0]
            assert (channel.delivered, channel.disconnected) == (True, False)

    async def test_a_driver_that_answers_its_cancellation_with_an_error(self) -> None:
        waiting = Gate()

        async def run(_channel: Channel) -> None:
            waiting.open()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                raise UpstreamError("closed while it was open") from None

        stage = Stage(run)
        async with served(stage) as port, connected(port) as client:
            client.send(GET)
            await waiting.reaches(1)
            client.close()
            await stage.returned.reaches(1)
            assert stage.channels[0].disconnected

    async def test_the_server_may_cancel_the_response(self) -> None:
        waiting, cleaned = Gate("waiting"), Gate("cleaned")

        async def run(_channel: Channel) -> None:
            waiting.open()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cleaned.open()

        async def receive() -> Message:
            return await asyncio.get_running_loop().create_future()

        async def send(_message: Message) -> None:
            raise AssertionError

        task = asyncio.ensure_future(TurnResponse(run)({}, receive, send))
        await waiting.reaches(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned.is_open
        assert asyncio.all_tasks() <= {asyncio.current_task(), *runner_tasks()}


def runner_tasks() -> set[asyncio.Task[object]]:
    """Tasks of the test runner itself."""
    return {task for task in asyncio.all_tasks() if "anyio" in repr(task)}


@pytest.mark.anyio
class TestErrors:
    async def answered(self, stage: Stage) -> tuple[int, dict[bytes, bytes], bytes]:
        async with served(stage) as port, connected(port) as client:
            client.send(GET_LAST)
            answer = await client.rest()
            await stage.returned.reaches(1)
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *fields = head.split(b"\r\n")
        headers = dict(field.split(b": ", 1) for field in fields)
        return int(status.split()[1]), headers, body

    async def test_an_error_of_ours_before_the_head(self) -> None:
        async def run(_channel: Channel) -> None:
            raise UpstreamError("no head in time", status=504)

        stage = Stage(run, error_headers=[(b"x-sottovoce-turn", b"t1")])
        status, headers, body = await self.answered(stage)
        assert (status, headers[b"content-type"]) == (504, b"application/json")
        assert headers[b"x-sottovoce-turn"] == b"t1"
        assert json.loads(body) == UpstreamError("no head in time").body()
        assert stage.errors == []
        assert stage.channels[0].delivered

    async def test_a_refusal_by_the_driver_itself(self) -> None:
        async def run(channel: Channel) -> None:
            await channel.refuse(RequestError("not like this", status=422), [(b"x", b"1")])
            assert channel.delivered

        status, headers, body = await self.answered(Stage(run))
        assert headers[b"x"] == b"1"
        assert (status, json.loads(body)["error"]["message"]) == (422, "not like this")

    async def test_any_other_error_before_the_head(self) -> None:
        async def run(_channel: Channel) -> None:
            raise KeyError("secret")

        stage = Stage(run)
        status, _, body = await self.answered(stage)
        assert status == 502
        assert json.loads(body)["error"]["code"] == "unexpected"
        assert b"secret" not in body
        assert [type(error) for error in stage.errors] == [KeyError]

    @pytest.mark.parametrize("error", [KeyError("secret"), UpstreamError("cut"), None])
    async def test_after_the_head_the_connection_is_cut(self, error: Exception | None) -> None:
        async def run(channel: Channel) -> None:
            await channel.start(200, HEAD)
            await channel.send(b"some", more=True)
            if error is not None:
                raise error

        stage = Stage(run)
        status, _, body = await self.answered(stage)
        assert (status, body) == (200, chunk(b"some"))
        assert len(stage.errors) == 1
        assert not stage.channels[0].delivered

    async def test_a_driver_that_sends_nothing(self) -> None:
        async def run(_channel: Channel) -> None:
            pass

        stage = Stage(run)
        status, _, body = await self.answered(stage)
        assert (status, json.loads(body)["error"]["code"]) == (502, "unexpected")
        assert [type(error) for error in stage.errors] == [RuntimeError]

    async def test_without_a_callback_the_server_gets_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def run(_channel: Channel) -> None:
            raise KeyError("what")

        caplog.set_level(logging.ERROR, logger="uvicorn.error")
        status, _, _ = await self.answered(Stage(run, on_error=None))
        assert status == 502
        assert "Exception in ASGI application" in caplog.text

    async def test_errors_where_there_is_no_channel(self) -> None:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await send_error(send, RequestError("no", status=403), [(b"x", b"1")])
        assert sent[0]["status"] == 403
        assert (b"x", b"1") in sent[0]["headers"]
        assert json.loads(sent[1]["body"])["error"]["message"] == "no"
        assert sent[1]["more_body"] is False


def post(*pieces: bytes) -> list[bytes]:
    head = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *(chunk(piece) for piece in pieces), LAST_CHUNK]


@pytest.mark.anyio
class TestBodiesInsideOfAResponse:
    async def test_it_streams_while_the_client_is_watched(self) -> None:
        seen = Counter("pieces seen")

        async def run(channel: Channel) -> None:
            body = b""
            async for piece in stream_request_body(channel.receive):
                body += piece
                seen.add(len(piece))
            await channel.start(200, [(b"content-length", b"%d" % len(body))])
            await channel.send(body, more=False)

        stage = Stage(run)
        async with served(stage) as port, connected(port) as client:
            for total, part in enumerate(post(b"a", b"b", b"c")):
                client.send(part)
                await seen.reaches(min(total, 3))
            await client.until(b"\r\n\r\n")
            assert await client.reader.readexactly(3) == b"abc"

    @pytest.mark.parametrize("parts", [0, 1])
    async def test_the_client_leaves_in_the_middle(self, parts: int) -> None:
        reading = Gate()

        async def run(channel: Channel) -> None:
            reading.open()
            await read_request_body(channel.receive, [], limit=100)
            raise AssertionError

        stage = Stage(run)
        async with served(stage) as port, connected(port) as client:
            for part in post(b"a", b"b")[: 1 + parts]:
                client.send(part)
            await reading.reaches(1)
            client.close()
            await stage.returned.reaches(1)
            assert stage.channels[0].disconnected
            assert stage.errors == []

    async def test_without_a_reader_no_more_than_the_inbox_is_taken(self) -> None:
        taken = Counter("messages taken")
        gate = Gate()
        messages = [{"type": "http.request", "body": b"x", "more_body": n < 9} for n in range(10)]

        async def receive() -> Message:
            if taken.value == 10:
                return await asyncio.get_running_loop().create_future()
            taken.add()
            return messages[taken.value - 1]

        async def send(_message: Message) -> None:
            pass

        async def run(channel: Channel) -> None:
            await gate.reaches(1)
            body = b"".join([piece async for piece in stream_request_body(channel.receive)])
            assert body == b"x" * 10
            await channel.start(200, [])
            await channel.send(b"", more=False)

        task = asyncio.ensure_future(TurnResponse(run)({}, receive, send))
        await taken.reaches(INBOX)
        for _ in range(20):
            await asyncio.sleep(0)
        assert taken.value == INBOX
        gate.open()
        await task


def messages(pieces: Iterable[bytes], *, ends: bool = True) -> Receive:
    """Return a server's receive that yields a body in these pieces, then a disconnect."""
    queue: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
    ]
    if ends:
        queue.append({"type": "http.request", "body": b"", "more_body": False})
    queue.append({"type": "http.disconnect"})

    async def receive() -> Message:
        return queue.pop(0)

    return receive


def read(pieces: Iterable[bytes], *codings: bytes, limit: int = 1000) -> bytes:
    headers = [(b"content-encoding", coding) for coding in codings]
    return asyncio.run(read_request_body(messages(pieces), headers, limit=limit))


class TestReadRequestBody:
    @given(st.lists(st.binary(max_size=50), max_size=10))
    def test_plain(self, pieces: list[bytes]) -> None:
        assert read(pieces) == b"".join(pieces)

    @given(st.binary(max_size=500), st.integers(1, 40))
    def test_encoded_twice_in_any_pieces(self, body: bytes, size: int) -> None:
        encoded = zlib.compress(gzip.compress(body, mtime=0))
        pieces = [encoded[at : at + size] for at in range(0, len(encoded), size)]
        assert read(pieces, b"gzip, deflate") == read(pieces, b"GZIP", b"identity,deflate") == body

    @pytest.mark.parametrize("encode", [bytes, gzip.compress])
    def test_the_limit_is_exact(self, encode: Callable[[bytes], bytes]) -> None:
        codings = [b"gzip"] if encode is gzip.compress else []
        assert len(read([encode(bytes(1000))], *codings)) == 1000
        with pytest.raises(RequestError) as caught:
            read([encode(bytes(1001))], *codings)
        assert caught.value.status == 413
        assert caught.value.message == "request body exceeded 1000 byte limit"

    def test_a_declared_length_is_believed_before_a_byte_is_read(self) -> None:
        async def never() -> Message:
            raise AssertionError

        headers = [(b"Content-Length", b"1001")]
        with pytest.raises(RequestError, match="exceeded 1000 byte limit"):
            asyncio.run(read_request_body(never, headers, limit=1000))

    def test_what_is_not_compressible_may_grow_a_little_but_not_for_ever(self) -> None:
        body = bytes(range(256)) * 3
        assert read([gzip.compress(body, 0, mtime=0)], b"gzip", limit=len(body)) == body
        padding = gzip.compress(b"", mtime=0)[:3] + b"\x10" + gzip.compress(b"")[4:10] + b"c" * 5000
        with pytest.raises(RequestError, match="exceeded 1000 byte limit"):
            read([padding[at : at + 100] for at in range(0, 5000, 100)], b"gzip")

    def test_a_bomb(self) -> None:
        bomb = gzip.compress(gzip.compress(bytes(64 << 20)))
        with pytest.raises(RequestError, match="exceeded 1048576 byte limit"):
            read([bomb], b"gzip, gzip", limit=1 << 20)

    @pytest.mark.parametrize("coding", [b"lzma", b"gzip, compress", b"gzip," * 5])
    def test_encodings_that_are_not_accepted(self, coding: bytes) -> None:
        with pytest.raises(RequestError, match=r"send one of gzip, .*zstd.*, identity") as caught:
            read([b"x"], coding)
        assert caught.value.status == 415

    @pytest.mark.parametrize(
        ("body", "what"),
        [
            (b"rubbish", "is corrupt"),
            (gzip.compress(b"hello", mtime=0)[:-1], "ends too early"),
            (gzip.compress(b"hello", mtime=0) + b"rubbish", "is corrupt"),
        ],
    )
    def test_bodies_that_are_not_what_they_say(self, body: bytes, what: str) -> None:
        with pytest.raises(RequestError, match=f"can't be decoded: the gzip body {what}") as caught:
            read([body], b"gzip")
        assert caught.value.status == 400

    @given(st.lists(st.binary(max_size=30), max_size=5))
    def test_a_client_that_leaves(self, pieces: list[bytes]) -> None:
        async def main() -> None:
            with pytest.raises(ClientDisconnect):
                await read_request_body(messages(pieces, ends=False), [], limit=1000)

        asyncio.run(main())


@given(st.integers(0, 4 * PIECE_BYTES), st.booleans())
def test_every_length_is_cut_into_pieces_and_ends_once(length: int, more: bool) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    body = bytes(length)
    channel = Channel(send)
    asyncio.run(channel.send(body, more=more))
    assert b"".join(message["body"] for message in sent) == body
    assert [message["more_body"] for message in sent] == [True] * (len(sent) - 1) + [more]
    assert len(sent) == max(1, -(-length // PIECE_BYTES))
    assert channel.delivered is not more
