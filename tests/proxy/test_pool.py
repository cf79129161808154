"""Connections: reused where they can be, never leaked, whatever is cancelled when."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import UpstreamError
from proxy.upstream import UpstreamRequest
from tests.proxy.transports import (
    AnyTransport,
    chosen_class,
    connections,
    only_own,
    transport,
    whole,
)
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
    from collections.abc import AsyncIterator, Coroutine

    from proxy.upstream import UpstreamResponse

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops, pytest.mark.usefixtures("kind")]

SECONDS = 20.0


async def get(client: AnyTransport, provider: ScriptedProvider) -> UpstreamResponse:
    return await client.open(UpstreamRequest("GET", provider.url))


async def fetch(client: AnyTransport, provider: ScriptedProvider) -> bytes:
    return await whole(await get(client, provider))


async def spin(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def until_idle(client: AnyTransport) -> None:
    async with asyncio.timeout(SECONDS):
        while client.pool.in_use:  # noqa: ASYNC110 - the pool has no event for it
            await asyncio.sleep(0)


class TestReuse:
    @only_own
    async def test_one_connection_for_one_request_after_the_other(self) -> None:
        replies = [response(200, b"a"), stream(b"b"), response(500, b"c"), response(204)]
        async with ScriptedProvider(replies) as provider, transport() as client:
            assert [await fetch(client, provider) for _ in range(3)] == [b"a", b"b", b"c"]
            answer = await get(client, provider)
            assert answer.reused
            await answer.close()
            assert provider.connections_opened.value == 1

    @pytest.mark.parametrize(
        "reply",
        [
            response(200, b"ok", headers=[("Connection", "Keep-Alive, CLOSE")]),
            response(200, b"ok", framing="close"),
            [b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"],
            [*response(200, b"ok"), b"surplus"],
            [*response(200, b"ok"), *response(200, b"nobody asked")],
            [head(200, [("transfer-encoding", "chunked")]), chunk(b"ok"), b"0\r\n\r\n\0"],
        ],
    )
    async def test_not_where_the_provider_ends_it(self, reply: list[Step]) -> None:
        replies = [[b"".join(step for step in reply if isinstance(step, bytes))], response()]
        if Close() in reply:
            replies[0].append(Close())
        async with ScriptedProvider(replies) as provider, transport(max_connections=1) as client:
            assert await fetch(client, provider) == b"ok"
            await provider.connections_closed.reaches(1)
            assert await fetch(client, provider) == b""
            assert provider.connections_opened.value == 2

    @only_own
    async def test_keep_alive_of_old_servers(self) -> None:
        old = b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok"
        async with ScriptedProvider([[old], [old]]) as provider, transport() as client:
            assert [await fetch(client, provider) for _ in range(2)] == [b"ok", b"ok"]
            assert provider.connections_opened.value == 1

    async def test_an_end_that_was_not_read_yet_frees_the_connection(self, kind: str) -> None:
        async with ScriptedProvider(default=stream(b"data")) as provider, transport() as client:
            first = await get(client, provider)
            await until_idle(client)
            assert await fetch(client, provider) == b"data"
            assert await first.read_body(100) == b"data"
            assert provider.connections_opened.value == connections(kind, 2)

    @only_own
    async def test_an_idle_connection_that_the_provider_closes_is_forgotten(self) -> None:
        gate = Gate()
        reply = [*response(200, b"a"), gate, Close()]
        async with (
            ScriptedProvider([reply, response(200, b"b")]) as provider,
            transport() as client,
        ):
            assert await fetch(client, provider) == b"a"
            assert client.pool.idle == 1
            gate.open()
            await provider.connections_closed.reaches(1)
            async with asyncio.timeout(SECONDS):
                while client.pool.idle:  # noqa: ASYNC110 - the pool has no event for it
                    await asyncio.sleep(0)
            assert await fetch(client, provider) == b"b"

    async def test_an_idle_connection_that_says_something_is_closed(self) -> None:
        gate = Gate()
        reply = [*response(200, b"a"), gate, *response(408), Stall()]
        async with ScriptedProvider([reply]) as provider, transport() as client:
            assert await fetch(client, provider) == b"a"
            gate.open()
            await provider.connections_closed.reaches(1)
            assert provider.connections[0].by_peer


class TestStaleConnections:
    @only_own
    @pytest.mark.parametrize("end", [Close(), Reset()])
    async def test_a_request_that_met_a_closed_connection_goes_out_again(self, end: Step) -> None:
        replies = [response(200, b"a"), [end], response(200, b"b")]
        async with ScriptedProvider(replies) as provider, transport(max_connections=1) as client:
            assert await fetch(client, provider) == b"a"
            answer = await client.open(UpstreamRequest("POST", provider.url, [], b"body"))
            assert (await answer.read_body(9), answer.reused) == (b"b", False)
            assert [request.body for request in provider.requests] == [b"", b"body", b"body"]
            assert provider.connections_opened.value == 2

    @only_own
    async def test_only_once(self) -> None:
        replies = [response(200, b"a"), [Close()], [Close()], response(200, b"b")]
        async with ScriptedProvider(replies) as provider, transport(max_connections=1) as client:
            assert await fetch(client, provider) == b"a"
            with pytest.raises(UpstreamError, match="closed the connection before"):
                await fetch(client, provider)
            assert provider.requests_seen.value == 3

    async def test_not_after_a_byte_of_an_answer(self) -> None:
        replies = [response(200, b"a"), [b"H", Close()], response(200, b"b")]
        async with ScriptedProvider(replies) as provider, transport(max_connections=1) as client:
            assert await fetch(client, provider) == b"a"
            with pytest.raises(UpstreamError, match="closed the connection before"):
                await fetch(client, provider)
            assert provider.requests_seen.value == 2

    async def test_not_with_a_body_that_can_be_sent_only_once(self) -> None:
        async def content() -> AsyncIterator[bytes]:
            yield b"body"

        replies = [response(200, b"a"), [Close()], response(200, b"b")]
        async with ScriptedProvider(replies) as provider, transport(max_connections=1) as client:
            assert await fetch(client, provider) == b"a"
            with pytest.raises(UpstreamError, match="closed the connection before"):
                await client.open(UpstreamRequest("POST", provider.url, [], content()))


class TestDrain:
    async def test_a_body_that_ends_in_time_frees_its_connection(self, kind: str) -> None:
        gate = Gate()
        replies = [stream(b"terminal", gate, b"the rest"), response(200, b"b")]
        async with ScriptedProvider(replies) as provider, transport(max_connections=1) as client:
            answer = await get(client, provider)
            assert await answer.read() == b"terminal"
            answer.drain(SECONDS)
            await answer.close()
            second = asyncio.ensure_future(fetch(client, provider))
            await spin(3)
            assert (client.pool.in_use, client.pool.queued) == (1, 1)
            gate.open()
            assert await second == b"b"
            assert provider.connections_opened.value == connections(kind, 2)

    async def test_a_body_that_does_not_loses_it(self) -> None:
        replies = [stream(b"terminal", Stall()), response(200, b"b")]
        async with ScriptedProvider(replies) as provider, transport(max_connections=1) as client:
            answer = await get(client, provider)
            assert await answer.read() == b"terminal"
            answer.drain(0.01)
            assert await fetch(client, provider) == b"b"
            await provider.connections_closed.reaches(1)
            assert provider.connections[0].by_peer

    async def test_a_body_that_never_ends_is_dropped_as_it_comes(self) -> None:
        replies = [stream(b"terminal", *[bytes(1 << 20)] * 64, Stall()), response()]
        async with ScriptedProvider(replies) as provider, transport(max_connections=1) as client:
            answer = await get(client, provider)
            await answer.read()
            answer.drain(0.05)
            exchange = answer._exchange
            while client.pool.in_use:
                assert not exchange._parts
                await asyncio.sleep(0)

    async def test_after_the_end_there_is_nothing_to_do(self, kind: str) -> None:
        async with (
            ScriptedProvider(default=response(200, b"a")) as provider,
            transport() as client,
        ):
            answer = await get(client, provider)
            assert await answer.read_body(9) == b"a"
            answer.drain(SECONDS)
            await answer.close()
            assert await fetch(client, provider) == b"a"
            assert provider.connections_opened.value == connections(kind, 2)


class TestSlots:
    async def test_never_more_than_allowed_and_first_come_first_served(self, kind: str) -> None:
        gates = [Gate(f"gate {n}") for n in range(6)]
        replies = [stream(gate, b"x") for gate in gates]

        async with ScriptedProvider(replies) as provider, transport(max_connections=2) as client:

            async def one(number: int) -> None:
                answer = await client.open(UpstreamRequest("GET", f"{provider.url}/{number}"))
                assert await answer.read_body(9) == b"x"
                await answer.close()

            tasks = [asyncio.ensure_future(one(n)) for n in range(6)]
            await provider.requests_seen.reaches(2)
            for seen, gate in enumerate(gates, start=3):
                assert client.pool.in_use <= 2
                gate.open()
                await provider.requests_seen.reaches(min(seen, 6))
            await asyncio.gather(*tasks)
            came = [request.target for request in provider.requests]
            assert sorted(came[:2]) == [b"/0", b"/1"]  # over two connections, at the same time
            assert came[2:] == [b"/2", b"/3", b"/4", b"/5"]
            assert provider.connections_opened.value == (2 if kind == "own" else 6)

    async def test_waiting_for_a_slot_has_an_end(self) -> None:
        async with (
            ScriptedProvider([stream(b"x", Stall())]) as provider,
            transport(max_connections=1, seconds=0.05) as client,
        ):
            answer = await get(client, provider)
            with pytest.raises(UpstreamError, match="had no connection free") as caught:
                await fetch(client, provider)
            assert caught.value.status == 504
            await answer.close()

    @only_own
    async def test_an_idle_connection_makes_room_for_another_provider(self) -> None:
        ok = response(200, b"ok")
        async with (
            ScriptedProvider(default=ok) as one,
            ScriptedProvider(default=ok) as two,
            transport(max_connections=1) as client,
        ):
            for provider in (one, two, one):
                assert await fetch(client, provider) == b"ok"
            await one.connections_closed.reaches(1)
            await two.connections_closed.reaches(1)
            assert client.pool.idle == 1

    async def test_a_slot_given_to_a_request_in_the_moment_of_its_cancellation(self) -> None:
        async with (
            ScriptedProvider(default=stream(b"x")) as provider,
            transport(max_connections=1) as client,
        ):
            await client.pool.acquire()
            waiting = [asyncio.ensure_future(fetch(client, provider)) for _ in range(3)]
            await spin(2)
            client.pool.free()
            waiting[0].cancel()
            assert await waiting[1] == await waiting[2] == b"x"
            with pytest.raises(asyncio.CancelledError):
                await waiting[0]

    async def test_close_ends_everything(self) -> None:
        async with ScriptedProvider([response(200, b"a"), stream(Stall())]) as provider:
            client = chosen_class()(max_connections=2, head_seconds=SECONDS, environment={})
            answer = await get(client, provider)
            second = await get(client, provider)
            assert await answer.read_body(9) == b"a"
            await client.close()
            await provider.connections_closed.reaches(len(provider.connections))
            with pytest.raises(UpstreamError):
                await second.read()
            with pytest.raises(UpstreamError, match="shutting down") as caught:
                await get(client, provider)
            assert caught.value.status == 503


async def upload() -> AsyncIterator[bytes]:
    while True:
        yield bytes(1 << 16)


class TestCancellation:
    @pytest.mark.parametrize("reused", [False, True])
    async def test_at_every_step_of_a_request(self, *, reused: bool) -> None:
        """One connection, fifty requests cancelled a step later each: the next one works."""
        async with ScriptedProvider(default=stream(b"x" * 1000)) as provider:
            async with transport(max_connections=1) as client:

                async def use() -> None:
                    answer = await get(client, provider)
                    try:
                        while await answer.read():
                            await spin(1)
                    finally:
                        await answer.close()

                for steps in range(50):
                    if reused:
                        assert await fetch(client, provider) == b"x" * 1000
                    await cancelled_after(steps, use())
                    assert client.pool.in_use == 0
                assert await fetch(client, provider) == b"x" * 1000
            await provider.connections_closed.reaches(provider.connections_opened.value)

    @pytest.mark.parametrize(
        "reply",
        [
            [Stall()],
            [head(200, [("content-length", "9")]), Stall()],
            stream(b"x", Stall()),
            Early([Stall()], read=False),
        ],
    )
    async def test_while_it_waits(self, reply: list[Step] | Early) -> None:
        async with (
            ScriptedProvider([reply, response(200, b"ok")]) as provider,
            transport(max_connections=1) as client,
        ):
            content = upload() if isinstance(reply, Early) else b""
            request = UpstreamRequest("POST", provider.url, [], content)

            async def use() -> None:
                answer = await client.open(request)
                try:
                    while await answer.read() is not None:
                        pass
                finally:
                    await answer.close()

            task = asyncio.ensure_future(use())
            await provider.requests_seen.reaches(1)
            await spin(20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client.pool.in_use == 0
            assert await fetch(client, provider) == b"ok"
            tasks = [repr(task) for task in asyncio.all_tasks()]
            assert not [task for task in tasks if "_upload" in task]

    async def test_many_at_once(self) -> None:
        gate = Gate()
        async with (
            ScriptedProvider(default=stream(b"x", gate, b"y")) as provider,
            transport(max_connections=3) as client,
        ):
            tasks = [asyncio.ensure_future(fetch(client, provider)) for _ in range(30)]
            for turn, task in enumerate(tasks):
                await spin(turn % 7)
                if turn % 3:
                    task.cancel()
            gate.open()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [result for result in results if result == b"xy"] == [b"xy"] * 10
            assert client.pool.in_use == 0


async def cancelled_after(steps: int, coroutine: Coroutine[object, object, None]) -> None:
    task = asyncio.ensure_future(coroutine)
    await spin(steps)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
