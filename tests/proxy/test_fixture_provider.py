"""A fixture served as a provider: over a real socket, cut where the fixture cuts."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest
import uvicorn

from proxy.fixture import FixtureError, parse_fixture
from proxy.fixture_provider import FixtureProvider, answers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

FIXTURE = parse_fixture(
    [
        b'{"fixture":1,"about":"two answers"}',
        b'{"in":"request","body":{"n":1}}',
        b'{"out":"upstream","hop":1,"body":{"n":1}}',
        b'{"in":"head","headers":{"X-Codex-Turn-State":"s"}}',
        b'{"in":"event","event":{"type":"a","n":1}}',
        b'{"out":"event","event":{"type":"a","n":1}}',
        b'{"in":"bytes","text":": hm\\n\\n"}',
        b'{"in":"end"}',
        b'{"in":"request","body":{"n":2}}',
        b'{"in":"head","status":400,"content_type":"application/json"}',
        b'{"in":"bytes","text":"{}"}',
        b'{"in":"head","content_type":null}',
        b'{"in":"bytes","text":"data: cu"}',
        b'{"in":"failure","error":"reset"}',
    ]
)


@asynccontextmanager
async def served(provider: FixtureProvider) -> AsyncIterator[httpx.AsyncClient]:
    config = uvicorn.Config(provider, lifespan="off", log_level="critical", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        task = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            yield client
        server.should_exit = True
        await task


async def test_answers_come_in_order_and_again() -> None:
    provider = FixtureProvider(FIXTURE)
    async with served(provider) as client:
        for _ in range(2):
            first = await client.post("/v1/responses", json={"n": 1})
            assert first.headers["content-type"] == "text/event-stream"
            assert first.headers["x-codex-turn-state"] == "s"
            assert first.content == b'event: a\ndata: {"type":"a","n":1}\n\n: hm\n\n'
            second = await client.post("/v1/responses", json={"n": 2})
            assert (second.status_code, second.json()) == (400, {})
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post("/v1/responses", json={"n": 3})
    assert [json.loads(body)["n"] for body in provider.requests] == [1, 2, 3, 1, 2, 3]


async def test_other_requests_take_no_answer() -> None:
    provider = FixtureProvider(FIXTURE)
    async with served(provider) as client:
        assert (await client.get("/v1/models")).status_code == 404
    assert provider.requests == []


async def test_pauses_are_the_differences_of_the_times() -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    fixture = parse_fixture(
        [
            b'{"fixture":1}',
            b'{"in":"head","t":1000}',
            b'{"in":"bytes","text":"a","t":1250}',
            b'{"in":"bytes","text":"b"}',
            b'{"in":"bytes","text":"c","t":1300}',
        ]
    )
    async with served(FixtureProvider(fixture, pause=pause)) as client:
        assert (await client.post("/")).content == b"abc"
    assert pauses == [0.25, 0.05]


def test_a_fixture_without_answers_serves_nothing() -> None:
    with pytest.raises(FixtureError, match="no answer"):
        answers(parse_fixture([b'{"fixture":1}', b'{"in":"request","body":{}}']))
