from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall import ingest
from recall.entries import Draft, Scope
from recall.ingest import _ENCODED, Pieces, Told, drafts
from recall.search import run_recall
from recall.store import Store
from recall.text import ENTRIES, ENTRY_CHARS

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio

NOW = 1_790_000_000.0
HERE = Scope("t", "p", "s")
Item = dict[str, Any]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
ITEMS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "reasoning", "function_call_output"]) | JSON,
            "role": st.sampled_from(["user", "assistant", "developer", "system"]) | JSON,
            "content": JSON
            | st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(["input_text", "output_text", "x"]) | JSON},
                    optional={"text": st.text() | JSON},
                )
            ),
        },
    )
    | JSON,
    max_size=6,
)


def said(role: str, *texts: str) -> Item:
    part = "output_text" if role == "assistant" else "input_text"
    content = [{"type": part, "text": text} for text in texts]
    return {"type": "message", "role": role, "content": content}


async def ingest_turn(
    store: Store, scope: Scope, body: Item, output: Sequence[Item], *, now: float
) -> int:
    told = Told(scope, body, output, now)
    return await store.database.write_async(
        lambda connection: ingest.ingest_turns(connection, store.pieces, [told])
    )


def kept(*items: Item, output: Sequence[Item] = ()) -> list[str]:
    return [draft.text for draft in drafts({"input": list(items)}, output)]


def test_what_was_said_is_kept_in_order() -> None:
    body = {"input": [said("user", "hello"), said("assistant", "hi"), said("user", "a", "b")]}
    assert drafts(body, [said("assistant", "bye")]) == [
        Draft("hello", "user"),
        Draft("hi", "assistant"),
        Draft("a\n\nb", "user"),
        Draft("bye", "assistant"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"input": "hello"},
        {"input": [{"role": "user", "content": "hello"}]},
        {"input": [{"role": "user", "content": [{"type": "text", "text": " hello\r\n"}]}]},
    ],
)
def test_every_form_of_input_is_read(body: Item) -> None:
    assert drafts(body, []) == [Draft("hello", "user")]


@pytest.mark.parametrize(
    "item",
    [
        said("developer", "secret"),
        said("system", "secret"),
        said("tool", "secret"),
        {"type": "reasoning", "encrypted_content": "secret", "summary": []},
        {"type": "function_call", "name": "shell", "arguments": "secret", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "secret"},
        {"type": "additional_tools", "role": "developer", "tools": ["secret"]},
        {"type": "compaction", "encrypted_content": "secret"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_image", "image_url": "secret"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]},
    ],
)
def test_what_nobody_said_is_left_out(item: Item) -> None:
    assert kept(item, said("user", "kept")) == ["kept"]
    assert drafts({"instructions": "secret", "input": []}, []) == []


@pytest.mark.parametrize(
    "block",
    [
        "<environment_context>\n  <cwd>/work</cwd>\n</environment_context>",
        "<user_instructions>\nBe nice.\n</user_instructions>",
        "# AGENTS.md instructions for /work\n\n<INSTRUCTIONS>\nBe nice.\n</INSTRUCTIONS>",
        "<permissions instructions>\nAsk.\n</permissions instructions>",
        '<codex_internal_context source="goal">\nx\n</codex_internal_context>',
        "<user_shell_command>\n<command>ls</command>\n</user_shell_command>",
        "<turn_aborted>\nThe user interrupted.\n</turn_aborted>",
        "<system-reminder>\nDon't forget.\n</system-reminder>",
        "<some_future_block>\nx\n</some_future_block>",
    ],
)
def test_a_clients_blocks_are_left_out(block: str) -> None:
    assert kept(said("user", block)) == []
    assert kept(said("user", block, "question")) == ["question"]
    if "future" not in block:
        assert kept(said("user", f"before\n{block}\nafter")) == ["before\n\nafter"]


@pytest.mark.parametrize(
    "text",
    [
        "<div>\n<b>make</b> this a card\n</div>",
        "fix the <environment_context> tag in the parser",
        "an <some_element>x</some_element> of mine",
        "<skill> is never closed",
    ],
)
def test_markup_of_the_user_is_kept(text: str) -> None:
    assert kept(said("user", text)) == [text]


def test_the_assistant_may_write_about_blocks() -> None:
    text = "Send this:\n<environment_context>\nx\n</environment_context>"
    assert kept(said("assistant", text)) == [text]


@pytest.mark.parametrize(
    "encoded",
    [
        f"data:image/png;base64,{base64.b64encode(bytes(600)).decode()}",
        "data:text/plain;charset=utf-8;base64,SGVsbG8=",
        base64.b64encode(bytes(range(256))).decode(),
        base64.encodebytes(bytes(range(256)) * 2).decode(),
        "f0" * 128,
    ],
)
def test_encoded_data_is_left_out(encoded: str) -> None:
    (text,) = kept(said("user", f"look at ({encoded}) please"))
    assert text.startswith("look at ([data]")
    assert text.endswith(") please")
    assert len(text) < 40


@pytest.mark.parametrize(
    "text",
    [
        "a sentence " * 40,
        f"the commit {'a1' * 20} and /a/path/of/many/parts/that/is/long.txt",
        "你好" * 300,
        "data: none",
    ],
)
def test_what_only_looks_encoded_is_kept(text: str) -> None:
    assert kept(said("user", text)) == [text.strip()]


async def test_an_answer_of_recall_is_not_stored_again(store: Store) -> None:
    store.add_text("t", "p", "old", "the word is xyzzyplugh", NOW)
    result = await run_recall(store, HERE, '{"query":"word"}', now=NOW, anchor=False)
    for quoted in (result.result_text, result.result_text.replace("\n", "\n| ")):
        text = f"Memory says:\n{quoted}\nSo there."
        (draft,) = drafts({"input": []}, [said("assistant", text)])
        assert "xyzzyplugh" not in draft.text
        assert draft.text.endswith("So there.")


def test_a_long_text_becomes_several_entries() -> None:
    pieces = kept(said("user", "\n\n".join(f"paragraph {n} " + "x " * 400 for n in range(9))))
    assert len(pieces) > 3
    assert all(len(piece) <= ENTRY_CHARS for piece in pieces)
    assert len(kept(said("user", "word " * 1_000_000))) == ENTRIES


@given(
    st.sampled_from(["<skill>", "<a_b>\n", "\n<INSTRUCTIONS>", "data:", "a" * 199 + " ", "A+/\n"])
)
def test_no_text_costs_its_square(piece: str) -> None:
    pieces = kept(said("user", piece * (400_000 // len(piece))))
    assert len(pieces) <= ENTRIES
    assert all(len(piece) <= ENTRY_CHARS for piece in pieces)


@given(ITEMS | JSON, ITEMS)
def test_any_items_can_be_read(items: object, output: list[Any]) -> None:
    for draft in drafts({"input": items}, output):
        assert draft.role in {"user", "assistant"}
        assert 0 < len(draft.text) <= ENTRY_CHARS


# -------------------------------------------------------------------------------- into the store


async def test_a_turn_is_stored_once(store: Store) -> None:
    body = {"input": [said("user", "which port?")]}
    output = [said("assistant", "7688")]
    assert await ingest_turn(store, HERE, body, output, now=NOW) == 2
    assert await ingest_turn(store, HERE, body, output, now=NOW) == 0


async def test_a_later_turn_adds_only_what_is_new(store: Store) -> None:
    first = [said("user", "which port?"), said("assistant", "7688")]
    await ingest_turn(store, HERE, {"input": first[:1]}, first[1:], now=NOW)
    history = [*first, said("user", "and the host?")]
    answer = [said("assistant", "loopback")]
    assert await ingest_turn(store, HERE, {"input": history}, answer, now=NOW + 60) == 2
    entries = store.list("t", 9)[::-1]
    assert [entry.text for entry in entries] == ["which port?", "7688", "and the host?", "loopback"]
    assert [entry.position for entry in entries] == [1, 2, 3, 4]
    assert [entry.created for entry in entries] == [int(NOW)] * 2 + [int(NOW) + 60] * 2


async def test_retries_beside_each_other_store_once(store: Store) -> None:
    body = {"input": [said("user", f"message {number}") for number in range(20)]}
    counts = await asyncio.gather(*(ingest_turn(store, HERE, body, [], now=NOW) for _ in range(5)))
    assert sorted(counts) == [0, 0, 0, 0, 20]


async def test_a_history_that_comes_again_is_stored_where_it_is_lacking(store: Store) -> None:
    body = {"input": [said("user", "which port?", "and why?"), said("assistant", "7688")]}
    other = Scope("t", "p", "another")
    assert await ingest_turn(store, HERE, body, [], now=NOW) == 2
    assert await ingest_turn(store, other, body, [], now=NOW) == 2
    await asyncio.to_thread(store.forget, "t", ids=["m2"])
    assert await ingest_turn(store, HERE, body, [], now=NOW) == 1
    assert [entry.text for entry in store.list("t", 9)] == [
        *("7688", "7688", "which port?\n\nand why?", "which port?\n\nand why?")
    ]


def test_messages_are_told_apart_by_role_and_parts() -> None:
    pieces = Pieces()
    messages: list[tuple[str, list[str]]] = [
        *(("user", ["ab"]), ("assistant", ["ab"]), ("user", ["a", "b"]), ("user", ["a\n\nb"])),
        *(("user", ["1:a"]), ("user", ["a1:"]), ("user", []), ("user", [""])),
    ]
    assert [pieces.digests(*each) for each in messages] == [
        Pieces().digests(*each) for each in messages
    ]
    assert len({pieces.digests(*each) for each in messages}) == 6


def test_only_messages_of_late_are_remembered() -> None:
    pieces = Pieces(2)
    for text in ("a", "b", "a", "c"):
        pieces.digests("user", [text])
    assert len(pieces) == 2


async def test_what_was_said_is_found_in_another_conversation_of_the_tenant(store: Store) -> None:
    body = {"input": [said("user", "my favourite colour is vermilion")]}
    await ingest_turn(store, HERE, body, [], now=NOW)
    for tenant, found in (("t", True), ("u", False)):
        scope = Scope(tenant, "p", "later")
        result = await run_recall(store, scope, '{"query":"colour"}', now=NOW, anchor=False)
        assert ("vermilion" in result.result_text) is found


async def test_nothing_said_stores_nothing(store: Store) -> None:
    assert await ingest_turn(store, HERE, {"input": None}, [], now=NOW) == 0
    assert await ingest_turn(store, HERE, {}, [], now=NOW) == 0
    assert store.count() == 0


@given(ITEMS, ITEMS)
def test_ingest_is_idempotent(items: list[Any], output: list[Any]) -> None:
    async def scenario() -> tuple[int, int, list[str]]:
        store = Store.open(None)
        try:
            new = await ingest_turn(store, HERE, {"input": items}, output, now=NOW)
            again = await ingest_turn(store, HERE, {"input": items}, output, now=NOW)
            return new - store.count("t"), again, store.integrity()
        finally:
            await store.aclose()

    assert asyncio.run(scenario()) == (0, 0, [])


@given(
    st.text("aZ09+/_- é\n", max_size=12),
    st.integers(50, 230),
    st.sampled_from("aZ0+_-"),
    st.sampled_from(("", "=", "==")),
    st.integers(1, 4),
)
def test_data_is_left_out_wherever_it_stands_in_a_text(
    around: str, size: int, character: str, end: str, lines: int
) -> None:
    data = (character * size + end + "\n") * lines
    text = f"before {around}\n{data}\n{around} after"
    (found,) = kept(said("user", text))
    assert (character * 200 in found) is False
    assert ("[data]" in found) is (_ENCODED.search(text) is not None)
