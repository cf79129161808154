"""Server, response, transport and provider together: whenever a client leaves, nothing stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from proxy.downstream import TurnResponse, stream_request_body
from proxy.upstream import UpstreamRequest
from tests.proxy.serving import SECONDS, connected, served
from tests.proxy.transports import chosen_class
from tests.upstreams import LAST_CHUNK, Counter, ScriptedProvider, Stall, chunk, stream

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from proxy.downstream import Channel

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops, pytest.mark.usefixtures("kind")]

POST = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\nbody"


class Relay:
    """The smallest proxy there is."""

    def __init__(self, url: str) -> None:
        self.transport = chosen_class()(max_connections=1, head_seconds=SECONDS, environment={})
        self.returned = Counter("responses returned")
        self._url = url

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await TurnResponse(self._run)(_scope, receive, send)
        finally:
            self.returned.add()

    async def _run(self, channel: Channel) -> None:
        content = stream_request_body(channel.receive)
        response = await self.transport.open(UpstreamRequest("POST", self._url, [], content))
        try:
            await channel.start(response.status, [])
            while (piece := await response.read()) is not None:
                await channel.send(piece, more=True)
            await channel.send(b"", more=False)
        finally:
            await response.close()


async def test_thirty_clients_leave_at_thirty_moments_and_the_next_is_served() -> None:
    async with ScriptedProvider(default=stream(b"first", Stall())) as provider:
        relay = Relay(provider.url)
        async with served(relay) as port:
            for moment in range(30):
                async with connected(port) as client:
                    client.send(POST[: len(POST) - moment % 3])
                    for _ in range(moment):
                        await asyncio.sleep(0)
                    if moment > 20 and moment % 3 == 0:
                        await client.until(b"first")
                    (client.reset if moment % 2 else client.close)()
            provider.default = stream(b"first", b"last")
            async with connected(port) as client:
                client.send(POST)
                await client.until(b"\r\n\r\n")
                body = await client.until(LAST_CHUNK)
                assert body in {
                    chunk(b"first") + chunk(b"last") + LAST_CHUNK,
                    chunk(b"firstlast") + LAST_CHUNK,
                }
            assert relay.transport.pool.in_use == 0
        await relay.transport.close()
        await provider.connections_closed.reaches(provider.connections_opened.value)


async def test_the_provider_sees_a_client_leave_at_once() -> None:
    async with ScriptedProvider([stream(b"first", Stall())]) as provider:
        relay = Relay(provider.url)
        async with served(relay) as port, connected(port) as client:
            client.send(POST)
            await client.until(chunk(b"first"))
            client.close()
            await provider.connections_closed.reaches(1)
            assert provider.connections[0].by_peer
            await relay.returned.reaches(1)
            assert relay.transport.pool.in_use == 0
        await relay.transport.close()
