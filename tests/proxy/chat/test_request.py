from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RequestError
from proxy.chat.messages import UntranslatableError
from proxy.chat.request import Manner, read_chat_request, translate

USER = {"role": "user", "content": "hi"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "shell", "arguments": '{"command": "ls"}'},
}


def translated(*messages: object, manner: Manner = Manner.ANY, **members: object) -> dict[str, Any]:
    body = {"model": "m", "messages": list(messages) or [USER], **members}
    request = translate(read_chat_request(json.dumps(body).encode()), manner).request
    assert json.loads(request.text) == request.body
    return request.body


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    part = {"type": kind, "text": text}
    if role == "assistant":
        part |= {"annotations": []}  # type: ignore[dict-item]  # a part is no map of texts
    return {"type": "message", "role": role, "content": [part]}


def test_the_least() -> None:
    assert translated() == {
        "model": "m",
        "store": False,
        "stream": False,
        "input": [said("user", "hi")],
    }


def test_system_messages_at_the_beginning_are_instructions() -> None:
    body = translated(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        USER,
        {"role": "developer", "content": "Be quick."},
    )
    assert body["instructions"] == "Be brief.\n\nBe kind."
    assert body["input"] == [said("user", "hi"), said("developer", "Be quick.")]


def test_a_round_of_tools() -> None:
    body = translated(
        USER,
        {"role": "assistant", "content": "Looking.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"},
        tools=[{"type": "function", "function": {"name": "shell", "description": "Run."}}],
        tool_choice={"type": "function", "function": {"name": "shell"}},
        parallel_tool_calls=False,
    )
    assert body["input"][1:] == [
        said("assistant", "Looking."),
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "shell",
            "arguments": '{"command": "ls"}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
    ]
    assert body["tools"] == [
        {
            "type": "function",
            "name": "shell",
            "description": "Run.",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
    ]
    assert body["tool_choice"] == {"type": "function", "name": "shell"}
    assert body["parallel_tool_calls"] is False


def test_custom_tools() -> None:
    grammar = {"syntax": "lark", "definition": "start: /a+/"}
    call = {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "x"}}
    body = translated(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_2", "content": "ok"},
        tools=[
            {
                "type": "custom",
                "custom": {"name": "patch", "format": {"type": "grammar", "grammar": grammar}},
            }
        ],
        tool_choice={
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "custom", "custom": {"name": "patch"}}],
            },
        },
    )
    assert body["input"][1:] == [
        {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"},
    ]
    assert body["tools"][0]["format"] == {"type": "grammar", **grammar}
    allowed = [{"type": "custom", "name": "patch"}]
    assert body["tool_choice"] == {"type": "allowed_tools", "mode": "auto", "tools": allowed}


def test_parts() -> None:
    url = "data:image/png;base64,AA=="
    body = translated(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
                {"type": "file", "file": {"file_data": "AA==", "filename": "a.pdf"}},
            ],
        }
    )
    assert body["input"][0]["content"] == [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": url, "detail": "auto"},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "input_file", "file_data": "AA==", "filename": "a.pdf"},
    ]


def test_settings() -> None:
    schema = {"name": "answer", "strict": True, "schema": {"type": "object"}}
    body = translated(
        max_tokens=7,
        max_completion_tokens=9,
        temperature=0.5,
        reasoning_effort="low",
        verbosity="low",
        response_format={"type": "json_schema", "json_schema": schema},
        logprobs=True,
        top_logprobs=2,
        store=True,
        stream=True,
        seed=4,
    )
    assert body["max_output_tokens"] == 9
    assert body["reasoning"] == {"effort": "low"}
    assert body["text"] == {"verbosity": "low", "format": {"type": "json_schema", **schema}}
    assert body["include"] == ["message.output_text.logprobs"]
    assert (body["store"], body["stream"], body["temperature"]) == (True, True, 0.5)
    assert "seed" not in body


def test_codex_backends_take_fewer_members() -> None:
    body = translated(manner=Manner.CODEX, max_tokens=7, temperature=0.5, user="u")
    assert body.keys() == {"model", "store", "stream", "input"}


def test_usage_is_sent_to_who_asks() -> None:
    for options, wanted in (({}, False), ({"include_usage": True}, True), (None, False)):
        body = {"model": "m", "messages": [USER], "stream": True, "stream_options": options}
        chat = read_chat_request(json.dumps(body).encode())
        assert translate(chat).include_usage is wanted


@pytest.mark.parametrize(
    "members",
    [
        {"n": 2},
        {"stop": ["x"]},
        {"stop": False},
        {"web_search_options": {}},
        {"prediction": {}},
        {"audio": {}},
        {"function_call": {}},
        {"modalities": ["text", "audio"]},
        {"functions": [{"name": "f"}]},
        {"logit_bias": {"1": 1}},
        {"response_format": {"type": "new"}},
        {"tools": [{"type": "new"}]},
        {"messages": [{"role": "function", "name": "f", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "new"}]}]},
        {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
    ],
)
def test_what_responses_lacks_is_told(members: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [USER], **members}
    with pytest.raises(UntranslatableError):
        translate(read_chat_request(json.dumps(body).encode()))


@pytest.mark.parametrize("name", ["audio", "prediction", "web_search_options", "stop", "n"])
def test_null_is_as_good_as_absent(name: str) -> None:
    assert translated(**{name: None}) == translated()


@pytest.mark.parametrize("members", [{"stop": []}, {"logit_bias": {}}, {"functions": []}])
def test_lists_without_entries_ask_for_nothing(members: dict[str, Any]) -> None:
    assert translated(**members) == translated()


@pytest.mark.parametrize(
    "members",
    [
        {"messages": None},
        {"messages": []},
        {"messages": ["hi"]},
        {"messages": [{"role": "user", "content": 1}]},
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
        {"tool_choice": {"type": "function"}},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": 5}]},
        {"stream": "yes"},
        {"stream_options": 5},
        {"stream_options": []},
        {"tools": "x"},
        {"tools": {}},
        {"store": "yes"},
        {"logprobs": 5},
        {"parallel_tool_calls": 0},
    ],
)
def test_what_cannot_be_read_is_told(members: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [USER], **members}
    with pytest.raises(RequestError) as caught:
        translate(read_chat_request(json.dumps(body).encode()))
    assert caught.value.status == 400
    assert "Send" in caught.value.message


def test_arguments_that_were_parsed_are_a_text_again() -> None:
    call = {**CALL, "function": {"name": "shell", "arguments": {"command": "ls"}}}
    body = translated(USER, {"role": "assistant", "tool_calls": [call]})
    assert body["input"][1]["arguments"] == '{"command":"ls"}'


# -------------------------------------------------------------------------------- round trips

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
calls = st.builds(
    lambda name, arguments: {"name": name, "arguments": arguments}, st.sampled_from("fg"), texts
)
turns = st.lists(
    st.one_of(
        st.tuples(st.just("user"), texts, st.just([])),
        st.tuples(st.just("assistant"), texts | st.none(), st.lists(calls, max_size=3)),
    ),
    min_size=1,
    max_size=6,
)


def back(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that items stand for."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match item["type"]:
            case "message":
                text = "".join(part["text"] for part in item["content"])
                messages.append({"role": item["role"], "content": text})
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                last = messages[-1] if messages else {}
                if last.get("role") != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(call)
            case _:
                output = {"tool_call_id": item["call_id"], "content": item["output"]}
                messages.append({"role": "tool", **output})
    return messages


@given(turns)
def test_messages_and_back(drawn: list[tuple[str, str | None, list[dict[str, str]]]]) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "start"}]
    for number, (role, text, functions) in enumerate(drawn):
        if role == "assistant" and messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": "go on"})
        message: dict[str, Any] = {"role": role, "content": text}
        named = [
            {"id": f"call_{number}_{at}", "type": "function", "function": function}
            for at, function in enumerate(functions)
        ]
        if named:
            message["tool_calls"] = named
        if role == "assistant" and text is None and not named:
            continue
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": "x"} for c in named]
    body = {"model": "m", "messages": messages}
    translation = translate(read_chat_request(json.dumps(body).encode()))
    items = translation.request.body["input"]
    assert back(items) == messages
    assert len(translation.origins) == len(items)
    assert sorted(set(translation.origins)) == list(range(len(messages)))
    assert list(translation.origins) == sorted(translation.origins)
