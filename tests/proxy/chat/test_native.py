from __future__ import annotations

import json
from typing import Any

from pipeline.continuation import follow_up
from pipeline.history import Insertion
from pipeline.jsontext import dumps
from pipeline.reader import StreamMode
from pipeline.recovery import restrict_tools
from pipeline.request import Request, declare
from pipeline.restore import restore
from proxy.chat.native import NativeRequest, encoding
from proxy.chat.request import Manner, Translation, read_chat_request, translate
from proxy.providers.kinds import make_provider
from recall.tool import NAME
from tests.builders import message, recall_call
from tests.playbook import TOOL

PROVIDER = make_provider("openai_compat", "http://localhost:8000/v1")
ENCODE = encoding(lambda request: PROVIDER.encode(request, StreamMode.SSE).body)
USER = {"role": "user", "content": "hi", "name": "ann"}
FUNCTION = {"type": "function", "function": {"name": "shell"}, "cache_control": {"a": 1}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
HIDDEN = recall_call("call_h", {"query": "x"})
RESULT = {"type": "function_call_output", "call_id": "call_h", "output": "found"}
ASKED = {
    "id": "call_h",
    "type": "function",
    "function": {"name": NAME, "arguments": '{"query":"x"}'},
}
TOLD = {"role": "tool", "tool_call_id": "call_h", "content": "found"}


def case(*messages: object, **members: object) -> tuple[Request, Translation, NativeRequest]:
    whole = {"messages": list(messages) or [USER], "model": "m", "tools": [FUNCTION]}
    body = {**whole, "stream": True, "stop": ["x"], "vendor": {"k": 1.50}, **members}
    chat = read_chat_request(json.dumps(body).encode())
    translation = translate(chat, Manner.CHAT)
    return chat, translation, NativeRequest(chat, translation)


def put(native: NativeRequest, request: Request) -> dict[str, Any]:
    value = json.loads(native.put(request, ENCODE))
    assert isinstance(value, dict)
    return value


def names(body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in body["tools"]]


def test_the_tool_is_added_to_the_clients_own_words() -> None:
    chat, translation, native = case()
    body = put(native, declare(translation.request, TOOL).request)
    assert names(body) == ["shell", NAME]
    assert body["tools"][0] == FUNCTION
    assert body["stream_options"] == {"include_usage": True}
    rest = {k: v for k, v in body.items() if k not in ("tools", "stream_options")}
    assert rest == {k: v for k, v in chat.body.items() if k != "tools"}


def test_a_request_that_needs_nothing_stays_as_it_came() -> None:
    chat, translation, native = case(stream_options={"include_usage": True})
    assert native.put(translation.request, ENCODE) == chat.text


def test_what_a_hop_brought_follows() -> None:
    _, translation, native = case(max_tokens=100)
    declared = declare(translation.request, TOOL).request
    items = [dumps(message("Let me look.")), dumps(HIDDEN), dumps(RESULT)]
    body = put(native, follow_up(declared, items=items, max_output_tokens=60))
    said = {"role": "assistant", "content": "Let me look.", "tool_calls": [ASKED]}
    assert body["messages"] == [USER, said, TOLD]
    assert body["max_tokens"] == 60
    assert body["stop"] == ["x"]


def test_a_recovery_leaves_the_tool_out() -> None:
    _, translation, native = case(tool_choice="auto")
    restricted = restrict_tools(declare(translation.request, TOOL).request, frozenset({NAME}))
    body = put(native, restricted)
    assert names(body) == ["shell"]
    assert body["tool_choice"] == "auto"


def test_allowed_tools_are_widened() -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "shell"}}]}
    _, translation, native = case(tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    body = put(native, declare(translation.request, TOOL).request)
    tools = body["tool_choice"]["allowed_tools"]["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["shell", NAME]


def restored(native: NativeRequest, translation: Translation, *inserted: Any) -> list[Any]:
    insertions = [Insertion(at, tuple(map(dumps, items))) for at, items in inserted]
    messages = put(native, restore(translation.request, insertions))["messages"]
    assert isinstance(messages, list)
    return messages


def test_a_hidden_pair_goes_back_in_front_of_its_answer() -> None:
    answer = {"role": "assistant", "content": "Found.", "reasoning_content": "Hm."}
    system = {"role": "system", "content": "s"}
    _, translation, native = case(system, USER, answer, USER)
    said = {"role": "assistant", "content": None, "tool_calls": [ASKED]}
    assert restored(native, translation, (1, [HIDDEN, RESULT])) == [
        system,
        USER,
        said,
        TOLD,
        answer,
        USER,
    ]


def test_a_hidden_call_goes_back_beside_the_clients() -> None:
    """Upstream order: the hidden call first, its result in front of the client's."""
    asking = {"role": "assistant", "content": None, "tool_calls": [CALL], "vendor": 1}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}
    _, translation, native = case(USER, asking, result)
    assert restored(native, translation, (1, [HIDDEN]), (2, [RESULT])) == [
        USER,
        {**asking, "tool_calls": [ASKED, CALL]},
        TOLD,
        result,
    ]


def test_a_hidden_call_goes_back_behind_the_clients() -> None:
    asking = {"role": "assistant", "content": "Both.", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}
    _, translation, native = case(USER, asking, result)
    assert restored(native, translation, (3, [HIDDEN, RESULT])) == [
        USER,
        {**asking, "tool_calls": [CALL, ASKED]},
        TOLD,
        result,
    ]
