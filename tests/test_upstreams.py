"""The scripted provider itself: what it sends, records and notices, over raw sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.upstreams import (
    LAST_CHUNK,
    Close,
    Early,
    Gate,
    Read,
    Received,
    Reset,
    ScriptedProvider,
    Stall,
    Step,
    Tunnel,
    answer,
    chunk,
    head,
    response,
    stream,
)

REQUEST = (
    b"POST /v1/%2Fx?b=1&a HTTP/1.1\r\nHost: h\r\nX-Two: 1\r\nx-two: 2\r\n"
    b"content-length: 3\r\n\r\nabc"
)


async def talk(provider: ScriptedProvider, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(provider.host, provider.port)
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_it_records_the_raw_request_and_sends_the_exact_bytes() -> None:
    async def main() -> None:
        async with ScriptedProvider([[head(200), b"raw", Close()]]) as provider:
            assert await talk(provider, REQUEST) == b"HTTP/1.1 200 Scripted\r\n\r\nraw"
            request = provider.requests[0]
            assert (request.method, request.target) == ("POST", b"/v1/%2Fx?b=1&a")
            assert request.headers[0] == (b"Host", b"h")
            assert request.values("x-two") == [b"1", b"2"]
            assert request.body == b"abc"
            await provider.connections_closed.reaches(1)
            assert not provider.connections[0].by_peer

    asyncio.run(main())


def test_chunked_requests_expectations_and_reuse_of_a_connection() -> None:
    async def main() -> None:
        async with ScriptedProvider([answer({"n": 1}), response(200, framing="close")]) as provider:
            first = b"PUT / HTTP/1.1\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
            got = await talk(provider, first + chunk(b"ab") + chunk(b"c") + LAST_CHUNK + REQUEST)
            assert got.startswith(head(100))
            assert got.count(b"HTTP/1.1 200") == 2
            assert [request.body for request in provider.requests] == [b"abc", b"abc"]
            assert provider.connections[0].requests == 2

    asyncio.run(main())


def test_a_gate_holds_the_reply_back_and_the_peers_close_is_noticed() -> None:
    async def main() -> None:
        gate = Gate()
        async with ScriptedProvider([stream(b"one", gate, b"two", Stall())]) as provider:
            reader, writer = await asyncio.open_connection(provider.host, provider.port)
            writer.write(REQUEST)
            await reader.readuntil(chunk(b"one"))
            gate.open()
            assert await reader.readexactly(8) == chunk(b"two")
            writer.close()
            await provider.connections_closed.reaches(1)
            assert provider.connections[0].by_peer

    asyncio.run(main())


@pytest.mark.parametrize("step", [Reset(), Close()])
def test_a_reset_is_not_a_close(step: Step) -> None:
    async def main() -> None:
        async with ScriptedProvider([[b"HTTP/1.1 2", step]]) as provider:
            if isinstance(step, Reset):
                with pytest.raises(ConnectionResetError):
                    await talk(provider, REQUEST)
            else:
                assert await talk(provider, REQUEST) == b"HTTP/1.1 2"

    asyncio.run(main())


def test_an_early_reply_comes_before_the_body_was_read() -> None:
    async def main() -> None:
        gate = Gate()
        early = Early([head(413), gate, Read(), Stall()], read=False)
        async with ScriptedProvider([early]) as provider:
            reader, writer = await asyncio.open_connection(provider.host, provider.port)
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: 9999999\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == head(413)
            writer.close()
            gate.open()
            await provider.connections[0].closed.reaches(1)

    asyncio.run(main())


def test_replies_may_depend_on_the_request_and_their_errors_reach_the_test() -> None:
    def reply(request: Received) -> list[Step]:
        return response(200, b"echo " + request.body, framing="close")

    async def main() -> None:
        async with ScriptedProvider(default=reply) as provider:
            assert (await talk(provider, REQUEST)).endswith(b"echo abc")
        with pytest.raises(ZeroDivisionError):
            async with ScriptedProvider([lambda _: [b"%d" % (1 // 0)]]) as provider:
                await talk(provider, REQUEST)

    asyncio.run(main())


def test_a_tunnel_joins_two_providers() -> None:
    async def main() -> None:
        async with ScriptedProvider([response(200, b"far", framing="close")]) as far:
            async with ScriptedProvider([[head(200), Tunnel(far.port)]]) as near:
                got = await talk(near, b"CONNECT far:1 HTTP/1.1\r\n\r\n" + REQUEST)
            assert got.endswith(b"far")
            assert far.requests[0].body == b"abc"

    asyncio.run(main())


def test_it_serves_from_a_thread() -> None:
    with ScriptedProvider([response(200, b"ok", framing="close")]) as provider:
        with socket.create_connection((provider.host, provider.port)) as client:
            client.sendall(REQUEST)
            provider.requests_seen.wait_for(1)
            received = b""
            while data := client.recv(4096):
                received += data
        provider.connections_closed.wait_for(1)
    assert received.endswith(b"ok")
