"""What a provider stores, as its client may see it."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from pipeline.history import hidden_group, hidden_slot, keys_if_hidden, visible_slot
from pipeline.jsontext import dumps, loads
from pipeline.request import HiddenTool
from pipeline.shown import Concealed, declared_names, shown_response
from recall.tool import DECLARATION, NAME
from tests.builders import CLIENT_TOOL, function_call, message, output, reasoning, recall_call

OURS: Final = loads(DECLARATION)
TOOLS: Final = (HiddenTool(NAME, DECLARATION),)
CALL: Final = recall_call("call_1", {"query": "x"})
RESULT: Final = output("call_1", "y")
THOUGHT: Final = reasoning("hidden", encrypted="zz")
SHOWN: Final = reasoning("shown", encrypted="zz")
GROUP: Final = hidden_group(
    [],
    [
        hidden_slot(dumps(THOUGHT)),
        hidden_slot(dumps(CALL)),
        hidden_slot(dumps(RESULT)),
        visible_slot({k: v for k, v in SHOWN.items() if k[0] != "e"}, dumps(SHOWN), withheld=True),
        visible_slot(message("hi"), dumps(message("hi"))),
    ],
)


def test_a_group_is_found_by_what_it_hides() -> None:
    for item in (THOUGHT, CALL, RESULT, SHOWN):
        assert not set(keys_if_hidden([item])).isdisjoint(GROUP.hidden_keys())
        assert set(GROUP.hidden_keys()).isdisjoint(GROUP.lookup_keys())
    assert set(keys_if_hidden([message("hi"), "odd"])).isdisjoint(GROUP.hidden_keys())


def test_hidden_items_are_cut_out_and_the_rest_is_as_it_came() -> None:
    own = function_call("call_1", "shell", {})
    page: dict[str, Any] = {"data": [THOUGHT, CALL, RESULT, own, SHOWN, message("hi"), None]}
    data = json.dumps(page, indent=1).encode()
    text, value = Concealed([GROUP]).shown(data, page, "data")
    withheld = {key: one for key, one in SHOWN.items() if key != "encrypted_content"}
    assert value == {"data": [own, withheld, message("hi"), None]} == loads(text)
    assert text.startswith(b'{\n "data": [\n  {\n   "id"')
    same = {"data": [message("hi")]}
    assert Concealed([GROUP]).shown(data, same, "data") == (data, same)
    assert Concealed([GROUP]).shown(data, {"data": 1}, "data") == (data, {"data": 1})


def test_calls_are_hidden_by_name_where_no_group_is_left() -> None:
    page: dict[str, Any] = {"data": [CALL, RESULT, output("call_2", "z")]}
    _, value = Concealed((), {NAME}).shown(dumps(page), page, "data")
    assert value["data"] == [output("call_2", "z")]
    assert Concealed([GROUP]).names([CALL, message("hi")]) == {NAME}


@pytest.mark.parametrize(
    ("tool", "ours"),
    [
        (OURS, True),
        (OURS | {"strict": None}, True),
        (OURS | {"parameters": None}, True),
        (OURS | {"description": ""}, True),
        (OURS | {"parameters": {}, "description": "Mine."}, False),
        (OURS | {"name": "shell"}, False),
        ({"type": "function", "name": NAME}, False),
        (CLIENT_TOOL, False),
    ],
)
def test_our_tool_is_known_by_what_it_declares(tool: dict[str, Any], *, ours: bool) -> None:
    for tools in ([tool], [{"type": "namespace", "name": "n", "tools": [tool]}]):
        assert declared_names({"tools": tools}, TOOLS) == ({NAME} if ours else set())


def test_a_response_has_neither_our_tool_nor_our_ids() -> None:
    response = {
        "id": "resp_C",
        "previous_response_id": "resp_B",
        "tools": [CLIENT_TOOL, OURS],
        "output": [CALL, message("hi")],
    }
    data = json.dumps(response).encode()
    text, value = shown_response(
        data,
        response,
        names={NAME},
        concealed=Concealed((), {NAME}),
        continues=("resp_A", "resp_B"),
    )
    shown = {"tools": [CLIENT_TOOL], "output": [message("hi")], "previous_response_id": "resp_A"}
    assert value == response | shown == loads(text)
    text, _ = shown_response(data, response, names=(), concealed=Concealed())
    assert text is data
