from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.identity import is_minted_id, mint_id
from pipeline.items import join_keys
from pipeline.survey import Survey
from tests.jsontexts import hostile, hostile_objects

KEY = b"k" * 32
MINTED = mint_id(KEY, "msg", "resp_1", 0)

types = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "x",
        [],
        1,
    ]
)
items = st.fixed_dictionaries(
    {},
    optional={
        "type": types,
        "role": st.sampled_from(["user", "assistant", None, [], {}]),
        "call_id": st.sampled_from(["a", "b", "", "a:b", None, 3, []]),
        "id": st.sampled_from(["a", "fc_1", "msg_1", "", MINTED, None, 3, {}]),
    },
)


@given(st.lists(items | hostile | hostile_objects, max_size=8))
def test_items_are_found_by_what_names_them(history: list[Any]) -> None:
    survey = Survey(history, KEY)
    named: dict[str, list[int]] = {}
    for at, item in enumerate(history):
        for key in join_keys(item, digest=False) if isinstance(item, dict) else ():
            named.setdefault(key, []).append(at)
    for key, places in named.items():
        assert (survey.first.get(key), [*survey.find_all(key)]) == (places[0], places)
    for key in ("call:", "id:", "result:none", "sha:a", "call", ""):
        assert (survey.first.get(key), [*survey.find_all(key)]) == (None, [])
    assert survey.minted == [
        at
        for at, item in enumerate(history)
        if isinstance(item, dict) and is_minted_id(KEY, item.get("id"))
    ]
    assert Survey(history).minted == []


@given(st.lists(items, max_size=8))
def test_only_what_was_answered_is_asked_for(history: list[Any]) -> None:
    asked = Survey(history).lookup_keys
    known = [key for item in history for key in join_keys(item)]
    assert len(set(asked)) == len(asked)
    assert set(asked) <= set(known)
    assert not any(key.startswith("result:") for key in asked)
