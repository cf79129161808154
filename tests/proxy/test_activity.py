"""Following the hidden calls of a turn: by its tenant alone, and without their content."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Never

import pytest

from pipeline.errors import RequestError
from proxy.activity import Activity, TurnActivity
from recall.tool import RecallResult

pytestmark = pytest.mark.anyio


async def told(activity: TurnActivity) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in activity.follow()]


async def finds(arguments: str) -> RecallResult:
    await asyncio.sleep(0)
    return RecallResult(None, f"canary {arguments}", ("canary",))


async def breaks(_: str) -> Never:
    raise RuntimeError("canary")


async def test_a_call_is_told_when_it_starts_and_when_it_ends() -> None:
    activity = Activity().begin("turn_1", "local")
    following = asyncio.ensure_future(told(activity))
    runners = activity.runners({"recall": finds, "clock": breaks})
    assert (await runners["recall"]("canary")).coverage == ("canary",)
    with pytest.raises(RuntimeError):
        await runners["clock"]("{}")
    activity.end()
    lines = await following
    assert [(line["tool"], line["state"]) for line in lines] == [
        ("recall", "started"),
        ("recall", "ended"),
        ("clock", "started"),
        ("clock", "ended"),
    ]
    assert "canary" not in json.dumps(lines)


async def test_who_comes_late_gets_all_of_it() -> None:
    activity = Activity().begin("turn_1", "local")
    activity.add(tool="recall", state="started")
    activity.end()
    assert await told(activity) == await told(activity) == [{"tool": "recall", "state": "started"}]


async def test_two_may_follow() -> None:
    activity = Activity().begin("turn_1", "local")
    both = [asyncio.ensure_future(told(activity)) for _ in range(2)]
    await asyncio.sleep(0)
    activity.add(tool="recall", state="started")
    await asyncio.sleep(0)
    activity.end()
    assert [len(lines) for lines in await asyncio.gather(*both)] == [1, 1]


@pytest.mark.parametrize(("turn", "tenant"), [("turn_2", "local"), ("turn_1", "other")])
async def test_nobody_follows_what_is_not_theirs(turn: str, tenant: str) -> None:
    activity = Activity()
    activity.begin("turn_1", "local")
    with pytest.raises(RequestError) as caught:
        activity.find(turn, tenant)
    assert caught.value.status == 404


async def test_the_oldest_turn_is_forgotten_first() -> None:
    activity = Activity(turns=2)
    first = activity.begin("turn_1", "local")
    for number in (2, 3):
        activity.begin(f"turn_{number}", "local")
    assert await told(first) == []
    with pytest.raises(RequestError):
        activity.find("turn_1", "local")
    assert activity.find("turn_3", "local").tenant == "local"
