"""The exchange without a network: every chunking of a response, every rubbish, one outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UpstreamError
from proxy.connection import Connection
from proxy.exchange import Stage, request_head
from tests.upstreams import LAST_CHUNK, Step, chunk, head, response

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proxy.exchange import Headers


class Wire(asyncio.Transport):
    """A socket that only remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert not self.closed

    def resume_reading(self) -> None:
        assert not self.closed


class Outcome:
    """What became of an exchange that was fed some bytes and then the end of the connection."""

    def __init__(self, pieces: Iterable[bytes], *, method: str = "GET") -> None:
        self.ends: list[bool] = []
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.error: str | None = None
        asyncio.run(self._run(list(pieces), method))

    async def _run(self, pieces: list[bytes], method: str) -> None:
        wire = Wire()
        connection = Connection("the provider", on_lost=lambda _: None)
        connection.connection_made(wire)
        exchange = connection.begin(method=method, on_end=self.ends.append)
        exchange.send(b"head", b"", size=0)
        for piece in pieces:
            connection.data_received(piece)
        if not wire.closed:
            self.idle = exchange.stage is Stage.COMPLETE
            connection.connection_lost(None)
        try:
            await exchange.head()
            self.status, self.headers = exchange.status, exchange.headers
            while (piece := await exchange.read()) is not None:
                self.body += piece
        except UpstreamError as error:
            self.error = error.message


def flat(steps: list[Step]) -> bytes:
    return b"".join(step for step in steps if isinstance(step, bytes))


REPLIES = {
    "length": flat(response(200, b"hello", b"world", headers=[("x", "1"), ("X", "2")])),
    "chunked": flat(response(201, b"hello", b"", b"w" * 300, framing="chunked")),
    "trailer": head(200, [("transfer-encoding", "chunked")]) + chunk(b"ok") + b"0\r\nt: 1\r\n\r\n",
    "close": head(404) + b"as long as it lasts",
    "informational": head(100) + head(103, [("link", "x")]) + flat(response(200, b"ok")),
    "empty": flat(response(200)),
    "no content": head(204),
    "surplus": flat(response(200, b"ok")) + b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad",
    "bare": b"HTTP/1.1 200\ncontent-length: 2\n\nok",
}


@pytest.mark.parametrize("name", REPLIES)
def test_byte_by_byte_and_every_single_cut(name: str) -> None:
    reply = REPLIES[name]
    whole = Outcome([reply])
    assert whole.error is None
    assert whole.status
    assert len(whole.ends) == 1
    byte_by_byte = [reply[at : at + 1] for at in range(len(reply))]
    for pieces in (byte_by_byte, *([reply[:at], reply[at:]] for at in range(len(reply)))):
        cut = Outcome(piece for piece in pieces if piece)
        assert (cut.status, cut.headers, cut.body) == (whole.status, whole.headers, whole.body)
        assert cut.error is None
        assert len(cut.ends) == 1


@given(reply=st.sampled_from(sorted(REPLIES)), data=st.data())
def test_cut_short_it_is_an_error_or_still_whole(reply: str, data: st.DataObject) -> None:
    whole = Outcome([REPLIES[reply]])
    end = data.draw(st.integers(0, len(REPLIES[reply])))
    cut = Outcome([REPLIES[reply][:end]] if end else [])
    assert whole.body.startswith(cut.body)
    assert len(cut.ends) == 1
    if cut.error is None:
        assert cut.body == whole.body or reply == "close"
    else:
        assert cut.ends == [False]


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_rubbish_ends_in_an_error_of_ours(pieces: list[bytes]) -> None:
    outcome = Outcome(pieces)
    assert outcome.error is not None
    assert outcome.ends == [False]


@given(
    st.lists(
        st.sampled_from(
            [
                b"HTTP/1.1 200 OK\r\n",
                b"HTTP/1.0 204 X\r\n",
                b"HTTP/1.1 101 Up\r\n",
                b"content-length: 3\r\n",
                b"transfer-encoding: chunked\r\n",
                b"connection: upgrade, close\r\nupgrade: x\r\n",
                b"\r\n",
                b"\n",
                b"3\r\nabc\r\n",
                LAST_CHUNK,
                b"abc",
                b"ffffffffffffffffffffff\r\n",
                b":\0\x80",
            ]
        ),
        max_size=12,
    ),
    st.sampled_from(["GET", "HEAD", "CONNECT"]),
)
def test_nearly_http_ends_exactly_once(pieces: list[bytes], method: str) -> None:
    outcome = Outcome(pieces, method=method)
    assert len(outcome.ends) == 1
    if method != "GET" and outcome.status:
        assert outcome.body == b""


NAMES = st.from_regex(rb"\A[A-Za-z][A-Za-z0-9-]{0,10}\Z")
VALUES = st.binary(max_size=20).filter(lambda value: not set(value) & set(b"\r\n\0"))


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), st.binary(max_size=5))
def test_a_head_carries_every_header_in_order(headers: Headers, content: bytes) -> None:
    framing = {b"content-length", b"transfer-encoding", b"host"}
    kept = [(name, value) for name, value in headers if name.lower() not in framing]
    written, size = request_head("POST", b"/x", b"h", kept, content)
    lines = written.split(b"\r\n")
    assert lines[:2] == [b"POST /x HTTP/1.1", b"host: h"]
    assert lines[2:-3] == [b"%b: %b" % header for header in kept]
    assert lines[-3:] == [b"content-length: %d" % len(content), b"", b""]
    assert size == len(content)
