"""What is special about the transport over httpx: where it differs, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.abc import SocketAttribute

from pipeline.errors import UpstreamError
from proxy.config import Config
from proxy.dial import tls_context
from proxy.exchange import HIGH_WATER
from proxy.httpx_exchange import HEAD_BYTES
from proxy.httpx_transport import HttpxTransport
from proxy.upstream import Transport, UpstreamRequest
from proxy.upstreams import Upstreams
from tests import pki
from tests.proxy.transports import endless, transport, whole
from tests.upstreams import (
    Close,
    Early,
    Gate,
    Read,
    Reset,
    ScriptedProvider,
    Stall,
    Step,
    Tunnel,
    head,
    response,
    stream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from anyio.abc import SocketStream

    from tests.proxy.transports import AnyTransport

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.both_loops,
    pytest.mark.usefixtures("kind"),
    pytest.mark.parametrize("kind", ["httpx"], indirect=True),
]

SECONDS = 20.0


async def fetch(client: AnyTransport, provider: ScriptedProvider) -> bytes:
    return await whole(await client.open(UpstreamRequest("GET", provider.url)))


class TestNothingStays:
    @pytest.mark.parametrize("moment", ["opening", "waiting for a head", "reading", "not reading"])
    async def test_two_hundred_cancelled_streams_with_one_slot(self, moment: str) -> None:
        silent = moment == "waiting for a head"
        reply: list[Step] = [Stall()] if silent else stream(b"first", Stall())
        async with ScriptedProvider(default=reply) as provider:
            async with transport(max_connections=1) as client:
                for number in range(200):
                    await self.cancelled(client, provider, moment, number)
                    assert client.pool.in_use == 0
                provider.default = response(200, b"ok")
                assert await fetch(client, provider) == b"ok"
            await provider.connections_closed.reaches(provider.connections_opened.value)
        await no_task_is_left()

    @pytest.mark.parametrize("proxied", [False, True])
    async def test_a_cancelled_handshake(self, tmp_path: Path, *, proxied: bool) -> None:
        serving = pki.serving(tmp_path)
        context = tls_context(ca_file=tmp_path / "ca.pem")
        async with ScriptedProvider(default=response(200, b"ok"), tls=serving) as far:
            tunnel: list[Step] = [head(200), Tunnel(far.port)]
            async with ScriptedProvider(default=tunnel, tls=serving) as near:
                environment = {"https_proxy": f"https://localhost:{near.port}"} if proxied else {}
                url = "https://provider.test" if proxied else f"https://localhost:{far.port}"
                async with transport(
                    max_connections=1, tls=context, environment=environment
                ) as client:
                    for steps in range(60):
                        opening = asyncio.ensure_future(client.open(UpstreamRequest("GET", url)))
                        for _ in range(steps):
                            await asyncio.sleep(0)
                        opening.cancel()
                        if not (await asyncio.wait({opening}))[0].pop().cancelled():
                            await opening.result().close()
                        assert client.pool.in_use == 0
                await near.connections_closed.reaches(near.connections_opened.value)
            await far.connections_closed.reaches(far.connections_opened.value)
        await no_task_is_left()

    async def cancelled(
        self, client: AnyTransport, provider: ScriptedProvider, moment: str, number: int
    ) -> None:
        """Cancel a request at a moment."""
        read = Gate()

        async def use() -> None:
            answer = await client.open(UpstreamRequest("POST", provider.url, [], b"body"))
            try:
                assert await answer.read() == b"first"
                read.open()
                await (answer.read() if moment == "reading" else Gate().reaches(1))
            finally:
                await answer.close()

        task = asyncio.ensure_future(use())
        if moment == "opening":
            for _ in range(number % 40):
                await asyncio.sleep(0)
        elif moment == "waiting for a head":
            await provider.requests_seen.reaches(number + 1)
        else:
            await read.reaches(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_a_response_that_is_left_while_more_waits_than_is_read(self) -> None:
        reply = response(200, *[bytes(1 << 20)] * 64)
        async with ScriptedProvider([reply, response(200, b"ok")]) as provider:
            async with transport(max_connections=1) as client:
                answer = await client.open(UpstreamRequest("GET", provider.url))
                exchange = answer._exchange
                async with asyncio.timeout(SECONDS):
                    while exchange._room.is_set():  # noqa: ASYNC110 - no event
                        await asyncio.sleep(0)
                assert exchange._waiting <= HIGH_WATER + (1 << 16)
                assert provider.replies_sent.value == 0
                await answer.close()
                assert await fetch(client, provider) == b"ok"
            await provider.connections_closed.reaches(2)
        await no_task_is_left()

    async def test_a_slow_reader_loses_nothing(self) -> None:
        reply = response(200, *[b"x" * (1 << 20)] * 8)
        async with ScriptedProvider([reply]) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("GET", provider.url))
            size = 0
            while (piece := await answer.read()) is not None:
                size += len(piece)
                await asyncio.sleep(0)
            assert size == 8 << 20

    async def test_closing_while_a_request_waits_for_a_slot(self) -> None:
        async with ScriptedProvider([stream(Stall())]) as provider:
            client = HttpxTransport(max_connections=1, head_seconds=SECONDS, environment={})
            await client.open(UpstreamRequest("GET", provider.url))
            waiting = asyncio.ensure_future(fetch(client, provider))
            async with asyncio.timeout(SECONDS):
                while not client.pool.queued:  # noqa: ASYNC110 - the pool has no event for it
                    await asyncio.sleep(0)
            await client.close()
            with pytest.raises(UpstreamError, match="shutting down"):
                await waiting
            assert client.pool.in_use == 0


async def no_task_is_left() -> None:
    """What httpx left to the loop may take a moment; then only the test's own tasks run."""
    async with asyncio.timeout(SECONDS):
        while any("httpx" in repr(task) for task in asyncio.all_tasks()):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)


class TestDifferences:
    """What the table in docs/performance.md says of it."""

    async def test_a_connection_for_every_request(self) -> None:
        surplus = [b"".join([*response(200, b"one"), *response(200, b"of somebody else")])]
        replies = [surplus, response(200, b"two")]
        async with ScriptedProvider(replies) as provider, transport() as client:
            assert [await fetch(client, provider) for _ in range(2)] == [b"one", b"two"]
            assert provider.connections_opened.value == 2

    @pytest.mark.parametrize("end", [Close(), Reset()])
    async def test_nothing_is_sent_twice(self, end: Step) -> None:
        replies = [response(200, b"a"), [end], response(200, b"b")]
        async with ScriptedProvider(replies) as provider, transport() as client:
            assert await fetch(client, provider) == b"a"
            with pytest.raises(UpstreamError, match="the connection before its answer"):
                await fetch(client, provider)
            assert provider.requests_seen.value == 2

    @pytest.mark.parametrize(
        ("method", "target", "headers"),
        [
            ("GET", "/\xff/你好", []),
            ("GET", "/", [(b"x y", b"secret")]),
            ("G T", "/", []),
        ],
    )
    async def test_what_it_does_not_send(
        self, method: str, target: str, headers: list[tuple[bytes, bytes]]
    ) -> None:
        async with ScriptedProvider() as provider, transport() as client:
            with pytest.raises(UpstreamError, match="can't be sent a method, target") as caught:
                await client.open(UpstreamRequest(method, provider.url + target, headers))
            assert "sec" not in caught.value.message
            await provider.connections_closed.reaches(1)
            assert provider.requests_seen.value == 0

    async def test_heads_up_to_its_own_limit(self) -> None:
        replies = [
            response(200, b"ok", headers=[("x", "v" * 65536), *[("y", "z")] * 500]),
            [head(200, [("x", "v" * 3 * HEAD_BYTES)]), Stall()],
        ]
        async with ScriptedProvider(replies) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("GET", provider.url))
            assert len(answer.headers) == 502
            assert await answer.read_body(9) == b"ok"
            await answer.close()
            with pytest.raises(UpstreamError, match=f"response head above {HEAD_BYTES}"):
                await fetch(client, provider)

    async def test_an_answer_before_the_upload_is_over_is_not_seen(self) -> None:
        closed = Gate()
        early = Early([*response(413, b"too much"), Stall()], read=False)
        async with ScriptedProvider([early]) as provider, transport(seconds=0.5) as client:
            with pytest.raises(UpstreamError, match="sent no answer") as caught:
                await client.open(UpstreamRequest("POST", provider.url, [], endless(closed)))
            assert caught.value.status == 504
            assert closed.is_open

    async def test_it_is_seen_when_the_upload_is_over(self) -> None:
        async def content() -> AsyncIterator[bytes]:
            for _ in range(256):
                yield bytes(65536)

        early = Early([*response(413, b"too much"), Read(), Stall()], read=False)
        async with ScriptedProvider([early]) as provider, transport() as client:
            answer = await client.open(UpstreamRequest("POST", provider.url, [], content()))
            assert (answer.status, await answer.read_body(9)) == (413, b"too much")
            await answer.close()

    @pytest.mark.parametrize(
        "reply",
        [
            [b"SSH-2.0-OpenSSH\r\n", Stall()],
            [b"HTTP/1.1 2", Stall()],
        ],
    )
    async def test_what_is_not_http_is_seen_at_a_blank_line(self, reply: list[Step]) -> None:
        async with ScriptedProvider([reply]) as provider, transport(seconds=0.1) as client:
            with pytest.raises(UpstreamError, match="sent no answer"):
                await fetch(client, provider)

    async def test_another_protocol_is_not_http(self) -> None:
        reply = [head(101, [("connection", "upgrade"), ("upgrade", "x")])]
        async with ScriptedProvider(default=reply) as provider, transport() as client:
            with pytest.raises(UpstreamError, match="sent what is not HTTP"):
                await fetch(client, provider)
            asked = [(b"connection", b"upgrade"), (b"upgrade", b"x")]
            with pytest.raises(UpstreamError, match="switched to another protocol"):
                await client.open(UpstreamRequest("GET", provider.url, asked))

    async def test_words_of_the_provider_are_in_no_error(self) -> None:
        reply = [b"HTTP/1.1 secret\r\n\r\n"]
        async with ScriptedProvider([reply]) as provider, transport() as client:
            with pytest.raises(UpstreamError, match="sent what is not HTTP") as caught:
                await fetch(client, provider)
            assert "secret" not in caught.value.message


class TestChoice:
    async def test_an_upstream_says_which(self) -> None:
        config = Config.model_validate(
            {
                "upstream": [
                    {"name": "one", "base_url": "http://127.0.0.1:1/v1"},
                    {"name": "two", "base_url": "http://127.0.0.1:1/v1", "transport": "httpx"},
                ]
            }
        )
        upstreams = Upstreams(config)
        one, two = upstreams.group(codex=False)
        assert type(one.transport) is Transport
        assert type(two.transport) is HttpxTransport
        with pytest.raises(UpstreamError, match="refused the connection"):
            await two.open(UpstreamRequest("GET", "http://127.0.0.1:1/"))
        await upstreams.close()

    async def test_httpx_is_not_imported_where_nobody_wants_it(self) -> None:
        code = (
            "import sys, proxy.upstreams; from proxy.config import Config;"
            "u = proxy.upstreams.Upstreams(Config()); u.choose(codex=False).transport;"
            "sys.exit('httpx' in sys.modules)"
        )
        done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=False)
        assert done.returncode == 0


async def test_the_socket_is_probed_while_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[SocketStream] = []
    connect = anyio.connect_tcp

    async def connecting(*args: object, **options: object) -> SocketStream:
        streams.append(await connect(*args, **options))
        return streams[-1]

    monkeypatch.setattr(anyio, "connect_tcp", connecting)
    async with ScriptedProvider([stream(Stall())]) as provider, transport() as client:
        answer = await client.open(UpstreamRequest("GET", provider.url))
        raw = streams[0].extra(SocketAttribute.raw_socket)  # noqa: S610 - no Django
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        await answer.close()
