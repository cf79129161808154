from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.history import HiddenGroup, hidden_slot, visible_slot
from pipeline.survey import Survey
from recall import records
from recall.entries import Scope
from recall.ledger import (
    ResponseIds,
    find_groups,
    find_response_id,
    save_group,
    save_response_id,
)
from recall.search import run_recall
from recall.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio

NOW = 1_790_000_000.0
DAY = 86_400.0


def call(call_id: str, output: str = "nothing") -> tuple[bytes, bytes]:
    hidden = {"type": "function_call", "call_id": call_id, "name": "recall", "arguments": "{}"}
    answer = {"type": "function_call_output", "call_id": call_id, "output": output}
    return json.dumps(hidden).encode(), json.dumps(answer).encode()


def message(text: str, id_: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "id": id_, "content": content}


def group(call_id: str, text: str = "hi", output: str = "nothing") -> HiddenGroup:
    visible = message(text, f"msg_{call_id}")
    slots = [hidden_slot(each) for each in call(call_id, output)]
    return HiddenGroup((*slots, visible_slot(visible, json.dumps(visible).encode())), ())


def keys_for(*call_ids: str, text: str = "hi") -> list[str]:
    return Survey([message(text, f"msg_{each}") for each in call_ids]).lookup_keys


def digests_of(saved: HiddenGroup) -> list[str]:
    return [key for key in saved.lookup_keys() if key.startswith("sha:")]


async def test_a_group_comes_back_to_who_sends_its_items(store: Store) -> None:
    saved = group("c1")
    assert await save_group(store, "t", saved, NOW, session="s")
    assert await find_groups(store, "t", keys_for("c1")) == [saved]
    assert await find_groups(store, "t", ["call:elsewhere"]) == []
    assert await find_groups(store, "t", []) == []


async def test_a_group_is_its_tenants(store: Store) -> None:
    await save_group(store, "t", group("c1"), NOW)
    assert await find_groups(store, "u", keys_for("c1")) == []
    await save_group(store, "u", group("c2", "other"), NOW)
    assert await find_groups(store, "u", keys_for("c1")) == []


async def test_groups_come_in_the_order_they_were_saved(store: Store) -> None:
    saved = [group(f"c{number}", f"text {number}") for number in range(5)]
    for each in saved:
        await save_group(store, "t", each, NOW)
    keys = [key for each in reversed(saved) for key in each.lookup_keys()]
    assert await find_groups(store, "t", keys) == saved


async def test_a_group_saved_twice_is_kept_once(store: Store) -> None:
    for _ in range(2):
        await save_group(store, "t", group("c1"), NOW, session="s")
    assert len(await find_groups(store, "t", keys_for("c1"))) == 1


async def test_a_key_may_lead_to_several_groups(store: Store) -> None:
    for each in ("c1", "c2"):
        await save_group(store, "t", group(each, "same words"), NOW)
    digests = digests_of(group("c1", "same words"))
    assert len(await find_groups(store, "t", digests)) == 2


async def test_a_key_of_very_many_groups_leads_to_the_newest(store: Store) -> None:
    count = records.GROUPS_PER_KEY + 5
    saved = [group(f"c{number}", "Done.") for number in range(count)]
    for each in saved:
        await save_group(store, "t", each, NOW)
    digests = digests_of(saved[1])
    assert await find_groups(store, "t", digests) == saved[5:]
    assert await find_groups(store, "t", saved[1].lookup_keys()) == [saved[1], *saved[5:]]


async def test_any_key_can_be_asked_for(store: Store) -> None:
    assert await find_groups(store, "t", ["call:\ud83d", "", "x" * 100_000, "a\x00b"]) == []


async def test_a_group_ages_out(store: Store) -> None:
    await save_group(store, "t", group("c1"), NOW)
    await save_group(store, "u", group("c2"), NOW + 29 * DAY)
    assert await find_groups(store, "t", keys_for("c1"))
    await save_group(store, "u", group("c3"), NOW + 31 * DAY)
    assert await find_groups(store, "t", keys_for("c1")) == []
    assert await find_groups(store, "u", keys_for("c2"))


async def test_a_conversation_keeps_its_newest_groups(store: Store) -> None:
    ids = [f"c{number}" for number in range(12)]
    for each in ids:
        large = group(each, each, output=each * 50_000)
        await save_group(store, "t", large, NOW, session="s")
    await save_group(store, "t", group("other", "other"), NOW, session="r")
    kept = [each for each in ids if await find_groups(store, "t", keys_for(each, text=each))]
    assert kept == ids[-len(kept) :]
    assert 4 <= len(kept) < len(ids)
    assert await find_groups(store, "t", keys_for("other", text="other"))
    sizes = store.database.read(
        lambda connection: connection.execute(
            "SELECT sum(bytes), (SELECT count(DISTINCT hidden_group) FROM hidden_key)"
            " FROM hidden_group"
        ).fetchone()
    )
    assert sizes[0] <= records.SESSION_BYTES + 1_000
    assert sizes[1] == len(kept) + 1


async def test_a_group_that_is_too_large_is_not_kept(store: Store) -> None:
    giant = group("c1", output="x" * records.SESSION_BYTES)
    assert not await save_group(store, "t", giant, NOW, session="s")
    assert await find_groups(store, "t", keys_for("c1")) == []


async def test_what_must_not_be_stored_is_in_memory_only(path: Path) -> None:
    store = Store.open(path)
    saved = group("c1", output="xyzzyplugh")
    await save_group(store, "t", saved, NOW, lasting=False)
    await save_response_id(
        store, "t", "resp_a", ResponseIds(("resp_xyzzyplugh",)), NOW, lasting=False
    )
    assert await find_groups(store, "t", keys_for("c1")) == [saved]
    assert await find_response_id(store, "t", "resp_a") == ResponseIds(("resp_xyzzyplugh",))
    assert await find_response_id(store, "u", "resp_a") is None
    for file in path.parent.iterdir():
        assert b"xyzzyplugh" not in file.read_bytes()
    await store.aclose()
    with Store.open(path) as again:
        assert await find_groups(again, "t", keys_for("c1")) == []


async def test_what_is_in_memory_only_is_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "FLEETING_BYTES", 400_000)
    store = Store.open(path)
    for number in range(20):
        large = group(f"c{number}", f"text {number}", output="x" * 50_000)
        await save_group(store, f"t{number}", large, NOW, lasting=False)
    fleeting = store.fleeting()
    total = fleeting.database.read(
        lambda connection: connection.execute("SELECT sum(bytes) FROM hidden_group").fetchone()
    )
    assert 50_000 <= total[0] <= 400_000
    assert await find_groups(store, "t19", keys_for("c19", text="text 19"))
    await store.aclose()


async def test_a_saved_group_outlives_a_caller_who_left(store: Store) -> None:
    task = asyncio.create_task(save_group(store, "t", group("c1"), NOW))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await save_group(store, "t", group("c2", "other"), NOW)
    assert await find_groups(store, "t", keys_for("c1"))


async def test_another_process_finds_a_group_at_once(path: Path) -> None:
    one, two = Store.open(path), Store.open(path)
    await save_group(one, "t", group("c1"), NOW)
    assert await find_groups(two, "t", keys_for("c1"))
    await one.aclose()
    await two.aclose()


# ----------------------------------------------------------------------------------- response ids


async def test_a_response_id_leads_to_its_hops(store: Store) -> None:
    expected = ResponseIds(("resp_a", "resp_b", "resp_c"), (b'{"output":"\xc3\xa9"}',))
    await save_response_id(store, "t", "resp_a", expected, NOW)
    assert await find_response_id(store, "t", "resp_a") == expected
    assert await find_response_id(store, "t", "resp_b") is None
    assert await find_response_id(store, "u", "resp_a") is None
    await save_response_id(store, "t", "resp_a", ResponseIds(("resp_d",)), NOW)
    assert await find_response_id(store, "t", "resp_a") == ResponseIds(("resp_d",))


async def test_a_response_id_ages_out(store: Store) -> None:
    await save_response_id(store, "t", "resp_a", ResponseIds(("resp_c",)), NOW)
    await save_response_id(store, "t", "resp_b", ResponseIds(("resp_c",)), NOW + 31 * DAY)
    assert await find_response_id(store, "t", "resp_a") is None
    assert await find_response_id(store, "t", "resp_b")


@given(st.text(), st.lists(st.text(), min_size=1))
def test_any_ids_are_kept(public: str, hops: Sequence[str]) -> None:
    async def scenario() -> ResponseIds | None:
        store = Store.open(None)
        try:
            await save_response_id(store, "t", public, ResponseIds(tuple(hops)), NOW)
            return await find_response_id(store, "t", public)
        finally:
            await store.aclose()

    assert asyncio.run(scenario()) == ResponseIds(tuple(hops))


async def test_ids_of_any_characters_are_kept(store: Store) -> None:
    await save_response_id(store, "t", "\ud83d", ResponseIds(("\ud83d",)), NOW)
    assert await find_response_id(store, "t", "\ud83d") == ResponseIds(("\ud83d",))


# ------------------------------------------------------------------------------------- forgetting


async def test_forgetting_an_entry_takes_the_groups_that_showed_it(store: Store) -> None:
    store.add_text("t", "p", "old", "the word is xyzzyplugh", NOW)
    store.add_text("t", "p", "old", "keep this", NOW)
    scope = Scope("t", "p", "new")
    for call_id, query in (("c1", "xyzzyplugh"), ("c2", "nowhere")):
        arguments = json.dumps({"query": query, "limit": 1})
        result = await run_recall(store, scope, arguments, now=NOW, anchor=False)
        shown = group(call_id, call_id, output=result.result_text)
        await save_group(store, "t", shown, NOW, session="new", lasting=call_id == "c1")
    await asyncio.to_thread(store.forget, "t", ids=["m1"])
    assert await find_groups(store, "t", keys_for("c1", text="c1")) == []
    assert await find_groups(store, "t", keys_for("c2", text="c2"))


async def test_forgetting_a_session_takes_its_groups(store: Store) -> None:
    store.add_text("t", "p", "s1", "one", NOW)
    for session in ("s1", "s2"):
        await save_group(store, "t", group(session, session), NOW, session=session)
    await asyncio.to_thread(store.forget, "t", session="s1")
    assert await find_groups(store, "t", keys_for("s1", text="s1")) == []
    assert await find_groups(store, "t", keys_for("s2", text="s2"))
    await asyncio.to_thread(store.forget, "t", session="s2")
    assert await find_groups(store, "t", keys_for("s2", text="s2")) == []


async def test_forgetting_a_tenant_takes_all_it_left(store: Store) -> None:
    for tenant in ("t", "u"):
        await save_group(store, tenant, group(tenant, tenant), NOW)
        await save_response_id(store, tenant, "resp_a", ResponseIds(("resp_b",)), NOW)
    await asyncio.to_thread(store.forget, "t")
    assert await find_groups(store, "t", keys_for("t", text="t")) == []
    assert await find_response_id(store, "t", "resp_a") is None
    assert await find_groups(store, "u", keys_for("u", text="u"))
    assert await find_response_id(store, "u", "resp_a")
