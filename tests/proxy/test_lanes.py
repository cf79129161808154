"""One turn at a time per conversation, and a limit to how many wait."""

from __future__ import annotations

import asyncio

import pytest

from proxy.lanes import BusyError, Lanes
from proxy.sessions import Identity, identify

pytestmark = pytest.mark.anyio


def conversation(name: str, tenant: str = "local") -> Identity:
    return identify([(b"x-sottovoce-session", name.encode())], {}, tenant, codex_path=False)


class Turns:
    """Turns that run until they are told to end."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.running: list[str] = []
        self.over: dict[str, asyncio.Event] = {}

    async def start(self, name: str, identity: Identity) -> asyncio.Task[None]:
        self.over[name] = asyncio.Event()
        task = asyncio.ensure_future(self._turn(name, identity))
        await asyncio.sleep(0)
        return task

    async def _turn(self, name: str, identity: Identity) -> None:
        async with self.lanes.turn(identity):
            self.running.append(name)
            await self.over[name].wait()
            self.running.remove(name)


async def test_a_conversation_has_one_turn_at_a_time_in_order() -> None:
    turns = Turns(Lanes(switched_on=True))
    one, other = conversation("one"), conversation("other")
    tasks = [await turns.start(name, one) for name in "abc"]
    tasks += [await turns.start("d", other), await turns.start("e", conversation("one", "t2"))]
    assert turns.running == ["a", "d", "e"]
    turns.over["a"].set()
    await tasks[0]
    await asyncio.sleep(0)
    assert turns.running == ["d", "e", "b"]
    for event in turns.over.values():
        event.set()
    await asyncio.gather(*tasks)
    assert len(turns.lanes) == 0


async def test_only_so_many_wait() -> None:
    lanes = Lanes(switched_on=True, waiting=1)
    turns, one = Turns(lanes), conversation("one")
    tasks = [await turns.start(name, one) for name in "ab"]
    with pytest.raises(BusyError) as caught:
        async with lanes.turn(one):
            pass
    assert caught.value.status == 429
    tasks[1].cancel()
    await asyncio.wait({tasks[1]})
    tasks.append(await turns.start("c", one))
    for event in turns.over.values():
        event.set()
    await asyncio.wait(tasks)
    assert len(lanes) == 0


async def test_switched_off_nobody_waits() -> None:
    turns = Turns(Lanes(switched_on=False, waiting=0))
    tasks = [await turns.start(name, conversation("one")) for name in "abc"]
    assert turns.running == ["a", "b", "c"]
    for event in turns.over.values():
        event.set()
    await asyncio.gather(*tasks)
