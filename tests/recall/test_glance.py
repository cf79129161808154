"""Two processes on one memory file are two stores here: they share the file and its mark alone."""

from __future__ import annotations

import asyncio
import json
import stat
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.history import HiddenGroup, hidden_slot, visible_slot
from recall.glance import Glance, Mark
from recall.ledger import find_groups, save_group
from recall.records import key_digests
from recall.store import Store

pytestmark = pytest.mark.anyio

NOW = 1_790_000_000.0


def group(name: str) -> HiddenGroup:
    call = {"type": "function_call", "call_id": f"hidden_{name}", "name": "recall"}
    seen = {"type": "function_call", "call_id": name, "name": "shell"}
    slots = (hidden_slot(json.dumps(call).encode()), visible_slot(seen, b"{}"))
    return HiddenGroup(slots, ())


async def found(store: Store, *names: str, tenant: str = "t") -> list[HiddenGroup]:
    return await find_groups(store, tenant, [f"call:{name}" for name in names])


class Asked:
    """Counts how often a memory's file is read."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        read = store.database.read_async

        async def counted(work: object, **options: object) -> object:
            self.times += 1
            return await read(work, **options)  # type: ignore[arg-type]  # as it came

        monkeypatch.setattr(store.database, "read_async", counted)


async def test_a_memory_without_the_keys_is_asked_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(store, monkeypatch)
    for number in range(5):
        assert await found(store, "a", f"b{number}") == []
    assert asked.times == 1
    await save_group(store, "t", group("a"), NOW)
    for _ in range(3):
        assert await found(store, "b1", "b2") == []
        assert await found(store, "b1", "b2", tenant="nobody") == []
    assert asked.times == 2
    assert await found(store, "a", "b1") == [group("a")]
    assert asked.times == 3


async def test_groups_are_read_once_between_two_writes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await save_group(store, "t", group("a"), NOW)
    await save_group(store, "t", group("b"), NOW)
    asked = Asked(store, monkeypatch)
    for number in range(5):
        assert await found(store, "a", f"c{number}") == [group("a")]
        assert await found(store, "a", "b") == [group("a"), group("b")]
        assert await found(store, "a", tenant="u") == []
    assert asked.times == 3
    await save_group(store, "t", group("c0"), NOW)
    assert await found(store, "a", "c0") == [group("a"), group("c0")]
    assert await found(store, "a") == [group("a")]
    assert await found(store, "a") == [group("a")]
    assert asked.times == 5


async def test_what_is_remembered_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [str(number) for number in range(8)]
    for name in names:
        await save_group(store, "t", group(name), NOW)
    size = len(group("0").to_json()) + 1024
    monkeypatch.setattr(store, "glance", Glance(Mark(None), most_bytes=4 * size))
    for name in names:
        assert await found(store, name) == [group(name)]
    asked = Asked(store, monkeypatch)
    for name in [*names[4:], *names[4:]]:
        assert await found(store, name) == [group(name)]
    assert asked.times == 0
    assert await found(store, names[0]) == [group(names[0])]
    assert asked.times == 1
    assert await found(store, names[5]) == [group(names[5])]
    assert asked.times == 1
    assert await found(store, names[4]) == [group(names[4])]
    assert asked.times == 2


async def test_a_group_that_is_larger_than_all_is_read_every_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await save_group(store, "t", group("a"), NOW)
    monkeypatch.setattr(store, "glance", Glance(Mark(None), most_bytes=1))
    asked = Asked(store, monkeypatch)
    for _ in range(3):
        assert await found(store, "a") == [group("a")]
    assert asked.times == 3


async def test_an_answer_that_a_write_overtook_is_not_remembered(path: Path) -> None:
    with Store.open(path) as here, Store.open(path) as there:
        await save_group(here, "t", group("a"), NOW)
        glance = here.glance
        before = glance.mark()
        await save_group(there, "t", group("b"), NOW)
        assert await found(here, "a") == [group("a")]
        [digest] = key_digests(["call:b"])
        glance.remember(before, "t", [digest], [], 0)
        assert await found(here, "b") == [group("b")]


async def test_what_another_process_wrote_is_found(path: Path) -> None:
    with Store.open(path) as here, Store.open(path) as there:
        assert await found(here, "a") == []
        await save_group(there, "t", group("a"), NOW)
        assert await found(here, "a") == [group("a")]
        await save_group(here, "t", group("b"), NOW)
        assert await found(there, "a", "b") == [group("a"), group("b")]
        assert await found(here, "a", "b") == [group("a"), group("b")]
        assert await found(here, "b", tenant="u") == []


async def test_what_was_forgotten_elsewhere_is_not_found(path: Path) -> None:
    with Store.open(path) as here, Store.open(path) as there:
        await save_group(here, "t", group("a"), NOW)
        for _ in range(2):
            assert await found(here, "a") == [group("a")]
        await asyncio.to_thread(there.forget, "t")
        assert await found(here, "a") == []


async def test_a_write_that_nobody_waits_for_is_told(path: Path) -> None:
    with Store.open(path) as here:
        with Store.open(path) as there:
            assert await found(here, "a") == []
            saving = asyncio.create_task(save_group(there, "t", group("a"), NOW))
            await asyncio.sleep(0)
            saving.cancel()
            await asyncio.wait({saving})
        assert await found(here, "a") == [group("a")]


async def test_a_memory_with_too_many_keys_is_asked_every_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "glance", Glance(Mark(None), most=4))  # two of each group
    asked = Asked(store, monkeypatch)
    for name in "ab":
        await save_group(store, "t", group(name), NOW)
        assert await found(store, name) == [group(name)]
        assert await found(store, "z") == []
    assert asked.times == 2
    for name in "cde":
        await save_group(store, "t", group(name), NOW)
        assert await found(store, name) == [group(name)]
        assert await found(store, "z") == []
    assert asked.times == 2 + 6


async def test_a_memory_that_can_have_no_mark_is_asked_every_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir(mode=0o700)
    path.with_name(f"{path.name}-mark").mkdir()
    with Store.open(path) as store:
        asked = Asked(store, monkeypatch)
        assert await found(store, "a") == []
        await save_group(store, "t", group("a"), NOW)
        assert await found(store, "a") == [group("a")]
        assert asked.times == 2


async def test_the_mark_is_for_its_owner_alone(path: Path) -> None:
    with Store.open(path):
        mark = path.with_name(f"{path.name}-mark")
        assert stat.S_IMODE(mark.stat().st_mode) == 0o600


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["save", "find"]), st.integers(0, 1), st.frozensets(st.integers(0, 5))
    ),
    max_size=12,
)


@given(STEPS)
def test_every_process_finds_what_any_has_written(
    steps: list[tuple[str, int, frozenset[int]]],
) -> None:
    async def play(stores: list[Store]) -> None:
        written: list[int] = []
        for kind, at, numbers in steps:
            if kind == "save":
                for number in sorted(numbers - {*written}):
                    await save_group(stores[at], "t", group(str(number)), NOW)
                    written.append(number)
            else:
                expected = [group(str(number)) for number in written if number in numbers]
                assert await found(stores[at], *map(str, numbers)) == expected

    with TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "memory.db"
        asyncio.run(play([stack.enter_context(Store.open(path)) for _ in range(2)]))
