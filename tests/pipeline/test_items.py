from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.items import canonical, join_keys, keys_match, same_item
from pipeline.jsontext import dumps, loads
from tests.jsontexts import objects, texts

if TYPE_CHECKING:
    from pipeline.jsonspans import Json

SENT = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "phase": None,
    "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}


@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "content": "hi"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hi"}],
        },
        {**SENT, "id": None, "status": None},
        {**SENT, "content": [{"text": "hi", "type": "input_text", "annotations": [1]}]},
    ],
)
def test_what_clients_leave_out_changes_nothing(item: dict[str, Json]) -> None:
    assert canonical(item) == canonical(SENT)
    assert same_item(item, SENT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SENT, {**SENT, "role": "user"}),
        (SENT, {**SENT, "content": "ho"}),
        (SENT, {**SENT, "id": "msg_2"}),
        (SENT, {**SENT, "content": [{"type": "refusal", "refusal": "hi"}]}),
        (CALL, {**CALL, "call_id": "d"}),
        (CALL, {**CALL, "name": "g"}),
        (CALL, {**CALL, "arguments": "{ }"}),
        (THOUGHT, {**THOUGHT, "encrypted_content": "y"}),
        (THOUGHT, {**THOUGHT, "encrypted_content": None}),
        (THOUGHT, {**THOUGHT, "summary": [{"type": "summary_text", "text": "a"}]}),
        ({"type": "new", "x": 0}, {"type": "new", "x": 1}),
        ({"type": "new", "x": False}, {"type": "new"}),
    ],
)
def test_what_makes_another_item(one: dict[str, Json], other: dict[str, Json]) -> None:
    assert not same_item(one, other)
    assert same_item(one, dict(one))


@given(texts(objects))
def test_any_object_is_an_item(data: bytes) -> None:
    item = loads(data)
    assert canonical(item) == canonical(loads(dumps(item)))
    assert keys_match(join_keys(item), join_keys(loads(dumps(item)))) or not join_keys(item)


@pytest.mark.parametrize(
    ("item", "keys"),
    [
        (CALL, ("call:c", "id:fc_1")),
        ({"type": "function_call_output", "call_id": "c"}, ("result:c",)),
        ({"type": "item_reference", "id": "msg_1"}, ("id:msg_1", "sha:")),
        (THOUGHT, ("id:rs_1", "sha:")),
        ({"role": "user", "id": "msg_1", "content": "x"}, ("sha:",)),
        ({"call_id": None, "id": ""}, ("sha:",)),
    ],
)
def test_join_keys(item: dict[str, Json], keys: tuple[str, ...]) -> None:
    got = join_keys(item)
    assert [key[: len(start)] for key, start in zip(got, keys, strict=True)] == list(keys)
    assert join_keys(item, digest=False) == tuple(key for key in got if key[:4] != "sha:")


def test_ciphertext_tells_nothing() -> None:
    assert join_keys(THOUGHT) == join_keys({**THOUGHT, "encrypted_content": "again"})
    assert join_keys(THOUGHT) == join_keys({**THOUGHT, "encrypted_content": None})


@pytest.mark.parametrize(
    ("known", "keys", "same"),
    [
        (("call:a",), ("call:a", "id:x"), True),
        (("call:a", "id:fc_1"), ("call:b", "id:fc_1"), False),
        (("call:a", "id:fc_1"), ("id:fc_1", "sha:1"), True),
        (("id:msg_1", "sha:1"), ("id:msg_1", "sha:2"), True),
        (("id:msg_1", "sha:1"), ("sha:1",), True),
        (("id:msg_1", "sha:1"), ("id:msg_2", "sha:1"), False),
        (("id:odd", "sha:1"), ("id:msg_2", "sha:1"), True),
        (("sha:1",), ("id:msg_2", "sha:1"), True),
        (("sha:1",), ("sha:2",), False),
        ((), ("sha:1",), False),
        (("sha:1",), (), False),
    ],
)
def test_keys_match(known: tuple[str, ...], keys: tuple[str, ...], *, same: bool) -> None:
    assert keys_match(known, keys) is same


SAID = st.text(st.characters(), max_size=5)  # lone surrogates among them
PARTS = st.lists(st.builds(lambda text: {"type": "input_text", "text": text}, SAID) | SAID)


@given(st.sampled_from(["user", "assistant", None, 1]), SAID | PARTS | st.none() | st.integers())
@example("user", "x" * 20_000)
def test_a_digest_is_that_of_the_canonical_form(role: Json, content: Json) -> None:
    text = dumps({"role": role, "content": content})
    digest = "sha:" + hashlib.sha256(canonical(loads(text))).hexdigest()[:32]
    for _ in range(2):  # the second time it may be remembered
        assert join_keys(loads(text)) == (digest,)
