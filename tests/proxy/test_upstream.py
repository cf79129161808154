"""One exchange with a provider: bytes out, bytes in, every way to fail. On both event loops."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import SSEStreamLimitError, UpstreamError
from proxy.exchange import HEAD_BYTES, HIGH_WATER
from proxy.upstream import UpstreamRequest
from tests.proxy.transports import AnyTransport, connections, endless, only_own, transport, whole
from tests.upstreams import (
    Close,
    Early,
    Gate,
    Reset,
    ScriptedProvider,
    Stall,
    Step,
    chunk,
    head,
    response,
    stream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops, pytest.mark.usefixtures("kind")]

SECONDS = 20.0
"""A bound that only a failing test reaches."""


async def tasks_are_gone() -> None:
    """Only the test itself and the runner's own tasks may be left."""
    for _ in range(3):
        await asyncio.sleep(0)
    left = [repr(task) for task in asyncio.all_tasks() if "Exchange" in repr(task)]
    assert left == []


async def ask(
    provider: ScriptedProvider, client: AnyTransport, method: str = "POST", path: str = "/"
) -> tuple[int, bytes]:
    answer = await client.open(UpstreamRequest(method, provider.url + path, [], b""))
    return answer.status, await whole(answer)


class TestRequest:
    @pytest.mark.parametrize(
        "target",
        [
            "/v1/a%2Fb//c/;d=1;e/%20x/%e4%BD%a0/./../f",
            "/v1/x?b=2&a=1&a=&%20=+&q=%2B~'()*!@:,$",
            "/v1/x?",
            "//v1",
            "/v1?a=b?c=d/e",
        ],
    )
    async def test_the_target_leaves_as_it_is(self, target: str) -> None:
        async with ScriptedProvider([response()]) as provider, transport() as client:
            url = (provider.url + target).encode()
            await whole(await client.open(UpstreamRequest("POST", url)))
            assert provider.requests[0].target == target.encode()

    @only_own
    async def test_a_target_may_have_any_byte(self) -> None:
        async with ScriptedProvider([response()]) as provider, transport() as client:
            url = (provider.url + "/\xff/你好").encode()
            await whole(await client.open(UpstreamRequest("POST", url)))
            assert provider.requests[0].target == "/\xff/你好".encode()

    async def test_a_url_without_path_asks_for_the_root(self) -> None:
        async with ScriptedProvider(default=response()) as provider, transport() as client:
            for url in ["", "/", "#top", "?a"]:
                await whole(await client.open(UpstreamRequest("GET", provider.url + url)))
            assert [request.target for request in provider.requests] == [b"/", b"/", b"/", b"/?a"]

    async def test_no_header_is_added_changed_or_reordered(self) -> None:
        headers = [
            (b"X-Odd", b"1"),
            (b"authorization", b"Bearer secret"),
            (b"x-odd", b"2"),
            (b"x-bytes", b"\xe4\xbd\xa0 \xff"),
            (b"x-empty", b""),
            (b"x-long", b"v" * 65536),
        ]
        async with ScriptedProvider(default=response()) as provider, transport() as client:
            url = provider.url + "/x"
            await whole(await client.open(UpstreamRequest("GET", url, headers)))
            host = (b"host", f"127.0.0.1:{provider.port}".encode())
            assert provider.requests[0].headers == [host, *headers]
            await whole(await client.open(UpstreamRequest("DELETE", url, [(b"Host", b"me")])))
            assert provider.requests[1].headers == [(b"Host", b"me")]

    async def test_framing_headers_are_what_the_content_needs(self) -> None:
        wrong = [(b"Content-Length", b"7"), (b"transfer-encoding", b"gzip")]
        async with ScriptedProvider(default=response()) as provider, transport() as client:
            for method, content in [("POST", b""), ("POST", b"four"), ("GET", b""), ("GET", b"q")]:
                await whole(await client.open(UpstreamRequest(method, provider.url, [], content)))
            await whole(await client.open(UpstreamRequest("POST", provider.url, wrong, b"four")))
            sizes = [request.header("content-length") for request in provider.requests]
            assert sizes == [b"0", b"4", None, b"1", b"4"]
            assert provider.requests[4].header("transfer-encoding") is None
            assert [request.body for request in provider.requests][1:] == [
                b"four",
                b"",
                b"q",
                b"four",
            ]

    async def test_an_iterator_is_sent_in_chunks_or_with_its_declared_size(self, kind: str) -> None:
        async def content() -> AsyncIterator[bytes]:
            for piece in (b"ab", b"", b"c" * 100_000):
                yield piece

        async with ScriptedProvider(default=response()) as provider, transport() as client:
            sized = [(b"content-length", b"100002")]
            await whole(await client.open(UpstreamRequest("PUT", provider.url, [], content())))
            await whole(await client.open(UpstreamRequest("PUT", provider.url, sized, content())))
            chunked, whole_ = provider.requests
            assert chunked.header("transfer-encoding") == b"chunked"
            assert whole_.header("content-length") == b"100002"
            assert chunked.body == whole_.body == b"ab" + b"c" * 100_000
            assert provider.connections_opened.value == connections(kind, 2)

    async def test_a_large_body_arrives_whole_without_a_warning(self) -> None:
        body = bytes(range(256)) * 4 * (64 << 10)
        async with ScriptedProvider([response()]) as provider, transport() as client:
            await whole(await client.open(UpstreamRequest("POST", provider.url, [], body)))
            assert len(provider.requests[0].body) == 64 << 20
            assert provider.requests[0].body == body

    @pytest.mark.parametrize("declared", [b"2", b"4"])
    async def test_an_iterator_that_is_not_as_long_as_declared(self, declared: bytes) -> None:
        async def content() -> AsyncIterator[bytes]:
            yield b"abc"

        async with ScriptedProvider() as provider, transport() as client:
            request = UpstreamRequest(
                "PUT", provider.url, [(b"content-length", declared)], content()
            )
            with pytest.raises(UpstreamError, match="not as long as"):
                await client.open(request)
            await provider.connections_closed.reaches(1)
            assert provider.requests_seen.value == 0

    async def test_what_the_content_raises_open_raises(self) -> None:
        closed = Gate()

        async def content() -> AsyncIterator[bytes]:
            try:
                yield b"abc"
                raise TimeoutError("the client is too slow")
            finally:
                closed.open()

        async with ScriptedProvider() as provider, transport() as client:
            with pytest.raises(TimeoutError, match="the client is too slow"):
                await client.open(UpstreamRequest("POST", provider.url, [], content()))
            assert closed.is_open
            await provider.connections_closed.reaches(1)

    @only_own
    async def test_an_answer_before_the_upload_is_over_ends_it(self) -> None:
        closed = Gate()
        early = Early([*response(413, b"too much"), Stall()], read=False)
        async with ScriptedProvider([early]) as provider, transport(max_connections=1) as client:
            answer = await client.open(UpstreamRequest("POST", provider.url, [], endless(closed)))
            assert (answer.status, await whole(answer)) == (413, b"too much")
            assert closed.is_open

    @pytest.mark.parametrize(
        "headers",
        [
            [(b"x", b"1\r\nx-injected: 2")],
            [(b"x", b"1\n2")],
            [(b"x\r\ny", b"1")],
            [(b"x", b"1\r")],
            [(b"x", b"\0")],
        ],
    )
    async def test_a_header_can_not_break_out(self, headers: list[tuple[bytes, bytes]]) -> None:
        async with ScriptedProvider() as provider, transport() as client:
            with pytest.raises(UpstreamError, match="line break") as caught:
                await client.open(UpstreamRequest("GET", provider.url, headers))
            assert "injected" not in caught.value.message
            assert provider.connections_opened.value == 0


class TestResponse:
    @pytest.mark.parametrize("framing", ["length", "chunked", "close"])
    async def test_every_framing(self, framing: str) -> None:
        reply = response(200, b"one", b"two" * 50_000, framing=framing)
        async with ScriptedProvider([reply]) as provider, transport() as client:
            assert await ask(provider, client) == (200, b"one" + b"two" * 50_000)

    async def test_raw_headers_in_order_and_case(self) -> None:
        fields = [("X-B", "1"), ("set-cookie", "a=1"), ("x-b", "\xe4\xff"), ("X-A", "")]
        reply = response(418, b"tea", headers=fields)
        async with ScriptedProvider(default=reply) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("GET", provider.url))
            assert answer.status == 418
            assert answer.headers == [
                *((name.encode(), value.encode("latin-1")) for name, value in fields),
                (b"content-length", b"3"),
            ]
            assert await whole(answer) == b"tea"
            await whole(await client.open(UpstreamRequest("GET", provider.url)))
            assert provider.requests[1].header("cookie") is None

    async def test_redirects_are_handed_on(self) -> None:
        reply = response(307, headers=[("location", "/elsewhere")])
        async with ScriptedProvider([reply]) as provider, transport() as client:
            assert await ask(provider, client) == (307, b"")
            assert provider.requests_seen.value == 1

    async def test_informational_heads_come_and_go(self, kind: str) -> None:
        early = head(103, [("link", "</x>")]) + head(100)
        reply = [early, *response(200, b"ok", headers=[("x", "1")])]
        async with ScriptedProvider([reply, response()]) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("GET", provider.url))
            assert answer.headers == [(b"x", b"1"), (b"content-length", b"2")]
            assert await whole(answer) == b"ok"
            await ask(provider, client)
            assert provider.connections_opened.value == connections(kind, 2)

    @pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
    async def test_responses_without_a_body(self, kind: str, method: str, status: int) -> None:
        reply = [head(status, [("content-length", "1234")])]
        async with ScriptedProvider([reply, response()]) as provider, transport() as client:
            assert await ask(provider, client, method) == (status, b"")
            await ask(provider, client)
            assert provider.connections_opened.value == connections(kind, 2)

    @only_own
    async def test_huge_heads_up_to_the_limit(self) -> None:
        fields = [(f"x-{n}", "v" * 65536) for n in range(3)] + [("y", "z")] * 500
        replies = [
            response(200, b"ok", headers=fields),
            [head(200, [("x", "v" * 3 * HEAD_BYTES)]), Stall()],
        ]
        async with ScriptedProvider(replies) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("GET", provider.url))
            assert len(answer.headers) == 504
            assert await whole(answer) == b"ok"
            with pytest.raises(UpstreamError, match="response head above"):
                await ask(provider, client)

    async def test_small_sins_are_forgiven(self) -> None:
        bare = b"HTTP/1.1 200\nx: 1\ncontent-length: 2\n\nok"
        trailer = [
            head(200, [("transfer-encoding", "chunked")]),
            chunk(b"ok"),
            b"0\r\nt: 1\r\n\r\n",
        ]
        async with ScriptedProvider([[bare], trailer]) as provider, transport() as client:
            assert await ask(provider, client) == (200, b"ok")
            answer = await client.open(UpstreamRequest("GET", provider.url))
            assert await whole(answer) == b"ok"
            assert answer.headers == [(b"transfer-encoding", b"chunked")]

    async def test_pieces_are_read_as_they_come(self) -> None:
        gate = Gate()
        reply = stream(b"first", gate, b"second")
        async with ScriptedProvider([reply]) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("POST", provider.url))
            assert await answer.read() == b"first"
            waiting = asyncio.ensure_future(answer.read())
            await asyncio.sleep(0)
            assert not waiting.done()
            gate.open()
            assert await waiting == b"second"
            assert await answer.read() is None
            assert await answer.read() is None
            await answer.close()

    async def test_a_cancelled_read_loses_nothing(self) -> None:
        gate = Gate()
        async with (
            ScriptedProvider([stream(gate, b"data")]) as provider,
            transport() as client,
        ):
            answer = await client.open(UpstreamRequest("POST", provider.url))
            waiting = asyncio.ensure_future(answer.read())
            await asyncio.sleep(0)
            waiting.cancel()
            gate.open()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await whole(answer) == b"data"

    @only_own
    async def test_a_slow_reader_slows_the_provider_down(self) -> None:
        sent = bytes(1 << 20)
        reply = response(200, *[sent] * 64)
        async with ScriptedProvider([reply]) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("GET", provider.url))
            async with asyncio.timeout(SECONDS):
                while not answer._exchange._connection._paused:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0)
            assert answer._exchange._waiting < HIGH_WATER + (1 << 20)
            assert provider.replies_sent.value == 0
            assert len(await whole(answer)) == 64 << 20

    async def test_close_in_the_middle_closes_the_connection_at_once(self) -> None:
        reply = stream(b"first", Stall())
        async with ScriptedProvider([reply]) as provider, transport(max_connections=1) as client:
            answer = await client.open(UpstreamRequest("POST", provider.url))
            await answer.read()
            await answer.close()
            await answer.close()
            assert client.pool.in_use == 0
            await provider.connections_closed.reaches(1)
            assert provider.connections[0].by_peer
            with pytest.raises(UpstreamError):
                await answer.read()

    async def test_read_body_cuts(self) -> None:
        reply = response(500, b"x" * 100_000)
        async with ScriptedProvider(default=reply) as provider, transport() as client:
            for limit, size in [(100_001, 100_000), (100_000, 100_000), (10, 10)]:
                answer = await client.open(UpstreamRequest("GET", provider.url))
                assert len(await answer.read_body(limit)) == size
                await answer.close()


class TestDecoding:
    ENCODED = gzip.compress(b"hello " * 20_000)

    def encoded(self, *pieces: bytes, coding: str = "gzip") -> list[Step]:
        return stream(*pieces, headers=[("content-encoding", coding)])

    async def test_raw_unless_asked(self) -> None:
        reply = self.encoded(self.ENCODED)
        async with ScriptedProvider([reply]) as provider, transport() as client:
            assert await ask(provider, client) == (200, self.ENCODED)

    async def test_decoded_when_asked(self) -> None:
        pieces = [self.ENCODED[:7], self.ENCODED[7:50], self.ENCODED[50:]]
        replies = [self.encoded(*pieces), stream(b"plain")]
        async with ScriptedProvider(replies) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("POST", provider.url))
            answer.decode(limit=120_000)
            assert await whole(answer) == b"hello " * 20_000
            answer = await client.open(UpstreamRequest("POST", provider.url))
            answer.decode(limit=None)
            assert await whole(answer) == b"plain"

    async def test_what_can_not_be_decoded(self) -> None:
        replies = [
            self.encoded(self.ENCODED, coding="lzma"),
            self.encoded(b"rubbish"),
            self.encoded(self.ENCODED[:-1]),
            self.encoded(self.ENCODED),
        ]
        async with ScriptedProvider(replies) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("POST", provider.url))
            with pytest.raises(UpstreamError, match="unknown content encoding 'lzma'"):
                answer.decode(limit=None)
            await answer.close()
            for what in ["is corrupt", "ends too early"]:
                answer = await client.open(UpstreamRequest("POST", provider.url))
                answer.decode(limit=None)
                with pytest.raises(UpstreamError, match=what):
                    await whole(answer)
            answer = await client.open(UpstreamRequest("POST", provider.url))
            answer.decode(limit=1000)
            with pytest.raises(SSEStreamLimitError, match="Responses stream exceeded byte limit"):
                await whole(answer)


class TestFailures:
    @pytest.mark.parametrize(
        ("reply", "message"),
        [
            ([Close()], "closed the connection before its answer"),
            ([Reset()], "reset the connection before its answer"),
            ([b"HTTP/1.1 200", Close()], "closed the connection before its answer"),
            ([head(103), Close()], "closed the connection before its answer"),
            ([b"SSH-2.0-OpenSSH\r\n\r\n"], "sent what is not HTTP"),
            ([head(200, [("content-length", "-1")])], "sent what is not HTTP"),
        ],
    )
    async def test_no_head(self, reply: list[Step], message: str) -> None:
        async with ScriptedProvider([reply]) as provider, transport() as client:
            with pytest.raises(UpstreamError, match=message) as caught:
                await ask(provider, client)
            assert caught.value.status == 502
            assert f"127.0.0.1:{provider.port}" in caught.value.message

    @only_own
    @pytest.mark.parametrize(
        ("reply", "message"),
        [
            ([b"SSH-2.0-OpenSSH\r\n"], "sent what is not HTTP"),
            (
                [head(101, [("connection", "upgrade"), ("upgrade", "x")])],
                "switched to another protocol",
            ),
        ],
    )
    async def test_no_http_at_the_first_line(self, reply: list[Step], message: str) -> None:
        async with ScriptedProvider([reply]) as provider, transport() as client:
            with pytest.raises(UpstreamError, match=message) as caught:
                await ask(provider, client)
            assert caught.value.status == 502

    @pytest.mark.parametrize(
        ("reply", "message"),
        [
            ([head(200, [("content-length", "9")]), b"some", Close()], "closed the connection in"),
            ([head(200, [("transfer-encoding", "chunked")]), chunk(b"some"), Close()], "closed"),
            ([head(200, [("transfer-encoding", "chunked")]), b"9\r\nsome", Close()], "closed"),
            ([head(200, [("content-length", "9")]), b"some", Gate(), Reset()], "reset"),
            ([head(200), b"some", Gate(), Reset()], "reset"),
            (
                [head(200, [("transfer-encoding", "chunked")]), chunk(b"some"), b"zz\r\n"],
                "sent what is not HTTP",
            ),
        ],
    )
    async def test_cut_in_the_middle(self, reply: list[Step], message: str) -> None:
        gates = [step for step in reply if isinstance(step, Gate)]
        async with ScriptedProvider([reply]) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("POST", provider.url))
            assert await answer.read() == b"some"
            for gate in gates:
                gate.open()
            with pytest.raises(UpstreamError, match=message) as caught:
                await answer.read()
            assert caught.value.status == 502
            assert client.pool.in_use == 0
            await answer.close()

    async def test_nobody_listens(self) -> None:
        async with ScriptedProvider() as provider:
            pass
        async with transport() as client:
            with pytest.raises(UpstreamError, match="refused the connection") as caught:
                await ask(provider, client)
            assert caught.value.status == 502

    async def test_no_head_in_time(self) -> None:
        async with ScriptedProvider([[Stall()]]) as provider, transport(seconds=0.05) as client:
            with pytest.raises(UpstreamError, match=r"sent no answer within 0.05 s") as caught:
                await ask(provider, client)
            assert caught.value.status == 504
            await provider.connections_closed.reaches(1)

    @pytest.mark.parametrize(
        "url",
        [
            "http://",
            "http:///x",
            "/v1/x",
            "ftp://x/",
            "http://x:port/",
            "http://x:99999/",
            "http://user:secret@x/",
            "http://[::1/",
            "http://a..b/",
            "http://x/a b",
            "http://x/a\r\nb",
        ],
    )
    async def test_urls_that_can_not_be_requested(self, url: str) -> None:
        async with transport() as client:
            with pytest.raises(UpstreamError, match="URL") as caught:
                await client.open(UpstreamRequest("GET", url))
            assert "secret" not in caught.value.message
