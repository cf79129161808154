"""Chat clients before an upstream that speaks Responses: the real ``openai`` SDK, real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests import builders
from tests.builders import function_call, item_events, message, numbered, opening, recall_call
from tests.dialects import CHAT, DIALECTS
from tests.e2e import checks
from tests.e2e.replies import ANSWER, ANSWERED, HIDDEN, says
from tests.upstreams import Reset, answer, response, stream

if TYPE_CHECKING:
    from tests.dialects import Dialect
    from tests.e2e.conftest import Lab, StartLab
    from tests.upstreams import Reply

TOOLS: Any = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
USER: Any = {"role": "user", "content": "hi"}


def as_json(*items: builders.Item, response_id: str = "resp_A", **members: Any) -> Reply:
    echo = builders.request()
    return answer(
        builders.response(response_id, "completed", echo=echo, output=[*items], **members)
    )


JSON: dict[str, tuple[Reply, ...]] = {
    "without a recall": (as_json(ANSWER, usage=builders.usage(250, 15, cached=130)),),
    "with a recall": (
        as_json(HIDDEN, usage=builders.usage(100, 10, cached=40)),
        as_json(ANSWER, response_id="resp_B", usage=builders.usage(150, 5, cached=90)),
    ),
}


def whole(completion: Any) -> None:  # the SDK's model of a completion
    """Check a final value: complete, and without a word of the recall."""
    assert completion.id == "chatcmpl-A"
    choice = completion.choices[0]
    assert choice.message.content == "你好🙂, it is fine."
    assert not choice.message.tool_calls
    assert choice.finish_reason == "stop"
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (250, 15, 265)
    assert usage.prompt_tokens_details.cached_tokens == 130
    assert "recall" not in completion.to_json()
    assert "call_hidden_1" not in completion.to_json()


@pytest.mark.parametrize("name", sorted(ANSWERED))
def test_create_with_stream(shared_lab: Lab, client: openai.OpenAI, name: str) -> None:
    shared_lab.provider.script(ANSWERED[name])
    with client.chat.completions.create(
        model="m",
        messages=[USER],
        tools=TOOLS,
        stream=True,
        stream_options={"include_usage": True},
    ) as events:
        chunks = list(events)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "你好🙂, it is fine."
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == ["stop"]
    usage: Any = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (250, 15)
    assert "recall" not in "".join(chunk.to_json() for chunk in chunks)


@pytest.mark.parametrize("name", sorted(ANSWERED))
def test_the_stream_helper(shared_lab: Lab, client: openai.OpenAI, name: str) -> None:
    shared_lab.provider.script(ANSWERED[name])
    with client.chat.completions.stream(
        model="m", messages=[USER], tools=TOOLS, stream_options={"include_usage": True}
    ) as events:
        whole(events.get_final_completion())


@pytest.mark.parametrize("name", sorted(JSON))
def test_create_in_json(shared_lab: Lab, client: openai.OpenAI, name: str) -> None:
    shared_lab.provider.script(JSON[name])
    whole(client.chat.completions.create(model="m", messages=[USER], tools=TOOLS))
    assert all(not request.json()["stream"] for request in shared_lab.provider.requests)
    assert {request.target for request in shared_lab.provider.requests} == {b"/v1/responses"}


def test_a_round_of_the_clients_tool(lab: Lab) -> None:
    """The next request has the hidden pair in its place, and the client's own round behind it."""
    call = function_call("call_1", "shell", {"command": "ls"})
    with lab.proxy.sdk() as client:
        lab.provider.script([says(message("Let me see."), HIDDEN), says(call)])
        with client.chat.completions.stream(model="m", messages=[USER], tools=TOOLS) as events:
            asked = events.get_final_completion().choices[0].message
        assert asked.content == "Let me see."
        assert asked.tool_calls is not None
        assert json.loads(asked.tool_calls[0].function.arguments) == {"command": "ls"}
        before = lab.seen().json()["input"]
        lab.provider.script([says(ANSWER)])
        back: list[Any] = [
            USER,
            asked.model_dump(exclude_none=True, exclude={"parsed"}),
            {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"},
        ]
        with client.chat.completions.create(
            model="m", messages=back, tools=TOOLS, stream=True
        ) as chunks:
            list(chunks)
    sent = lab.seen().json()["input"]
    assert [item["type"] for item in sent] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
    ]
    assert sent[2:4] == before[2:4]
    assert [item.get("call_id") for item in sent[4:]] == ["call_1", "call_1"]


def test_hidden_and_client_calls_in_one_answer(lab: Lab) -> None:
    call = function_call("call_1", "shell", {"command": "ls"})
    with lab.proxy.sdk() as client:
        lab.provider.script([says(HIDDEN, call)])
        with client.chat.completions.stream(model="m", messages=[USER], tools=TOOLS) as events:
            asked = events.get_final_completion().choices[0].message
        assert asked.tool_calls is not None
        assert [one.id for one in asked.tool_calls] == ["call_1"]
        lab.provider.script([says(ANSWER)])
        back: list[Any] = [
            USER,
            asked.model_dump(exclude_none=True, exclude={"parsed"}),
            {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"},
        ]
        with client.chat.completions.create(
            model="m", messages=back, tools=TOOLS, stream=True
        ) as chunks:
            list(chunks)
    sent = lab.seen().json()["input"][1:]
    assert [item["call_id"] for item in sent] == ["call_hidden_1", "call_1", *_results(sent)]
    assert sorted(_results(sent)) == ["call_1", "call_hidden_1"]


def _results(items: list[Any]) -> list[str]:
    return [item["call_id"] for item in items if item["type"] == "function_call_output"]


def test_what_was_said_is_remembered(lab: Lab) -> None:
    fact = "The launch word of the harbour crane is marmalade."
    with lab.proxy.sdk() as client:
        lab.provider.script([says(message("Noted."))])
        told: Any = {"role": "user", "content": fact}
        with client.chat.completions.create(
            model="m", messages=[told], tools=TOOLS, stream=True
        ) as chunks:
            list(chunks)
        lab.is_idle()
        lab.provider.script([says(recall_call("c", {"query": "crane"})), says(ANSWER)])
        with client.chat.completions.create(
            model="m", messages=[USER], tools=TOOLS, stream=True
        ) as chunks:
            list(chunks)
    assert fact in lab.seen().json()["input"][-1]["output"]


def test_without_tools_the_bytes_pass(shared_lab: Lab) -> None:
    body = b'{"messages": [{"role":"user","content":"hi"}] ,"model":"m", "stream": true,"x":1}'
    chunks = b'data: {"choices":[],"vendor":true}\r\n\r\ndata: {"choices":[{"delta":{}}] }\r\n\r\n'
    reply = b": odd\r\n\r\n" + chunks + b"data: [DONE]\r\n\r\n"
    with shared_lab.post(body, stream(reply), target="/v1/chat/completions") as exchange:
        assert exchange.body() == reply
    assert shared_lab.seen().target == b"/v1/chat/completions"
    assert shared_lab.seen().body == body


def test_what_passes_is_remembered_and_counted(lab: Lab) -> None:
    fact = "The launch word of the harbour crane is marmalade."
    told: Any = {"role": "user", "content": fact}
    chunks = [
        {"model": "m-1", "choices": [{"index": 0, "delta": {"content": "Noted: heron."}}]},
        {"model": "m-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    lines = [f"data: {json.dumps(one)}\n\n".encode() for one in chunks]
    with lab.proxy.sdk() as client:
        lab.provider.script([stream(*lines, b"data: [DONE]\n\n")])
        with client.chat.completions.create(model="m", messages=[told], stream=True) as got:
            assert len(list(got)) == 2
        lab.proxy.reaches(1, "turns_total", protocol="chat", outcome="completed")
        lab.proxy.reaches(1, "recall_undeclared_total", reason="no_client_tool")
        lab.proxy.reaches(2, "ingested_entries_total")
        lab.provider.script([says(recall_call("c", {"query": "crane heron"})), says(ANSWER)])
        with client.chat.completions.create(
            model="m", messages=[USER], tools=TOOLS, stream=True
        ) as got:
            list(got)
    found = lab.seen().json()["input"][-1]["output"]
    assert fact in found
    assert "Noted: heron." in found


def test_an_empty_completion_that_passes_is_told(lab: Lab) -> None:
    empty = {"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "stop"}]}
    body = builders.compact({"messages": [USER], "model": "m"}).encode()
    with lab.post(body, answer(empty), target="/v1/chat/completions") as exchange:
        assert exchange.json() == empty
        assert exchange.headers["x-sottovoce-turn"].startswith("turn_")
    lab.proxy.reaches(1, "empty_completions_total", protocol="chat")


def test_what_responses_lacks_passes_to_who_may_have_it(shared_lab: Lab) -> None:
    body = builders.compact({"messages": [USER], "model": "m", "tools": TOOLS, "n": 2}).encode()
    with shared_lab.post(body, answer({"choices": []}), target="/v1/chat/completions") as exchange:
        assert exchange.json() == {"choices": []}
    assert shared_lab.seen().body == body


# ------------------------------------------------------------------- upstreams of other kinds


@pytest.mark.parametrize("dialect", DIALECTS, ids=[one.kind for one in DIALECTS])
def test_a_recall_over_every_kind(start_lab: StartLab, dialect: Dialect) -> None:
    lab = start_lab(config=_upstream(dialect.kind))
    with lab.proxy.sdk() as client:
        form = [("content-type", dialect.form)]
        bodies = [dialect.stream(HIDDEN), dialect.stream(ANSWER)]
        lab.provider.script([response(200, body, headers=form) for body in bodies])
        with client.chat.completions.stream(model="m", messages=[USER], tools=TOOLS) as events:
            completion = events.get_final_completion()
        assert completion.choices[0].message.content == "你好🙂, it is fine."
        assert "recall" not in completion.to_json()
        back: list[Any] = [
            USER,
            completion.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"}),
            {"role": "user", "content": "And then?"},
        ]
        form = [("content-type", "application/json")]
        body = dialect.whole(message("Then this."))
        lab.provider.script([response(200, body, headers=form)])
        then = client.chat.completions.create(model="m", messages=back, tools=TOOLS)
        assert then.choices[0].message.content == "Then this."
    turns = dialect.heard(lab.seen().json()).turns
    assert [turn[0] for turn in turns] == ["user", "assistant", "results", "assistant", "user"]
    assert turns[1][3][0][0] == "recall"


def _upstream(kind: str) -> str:
    return f'[[upstream]]\nkind = "{kind}"\nbase_url = "{{url}}"\napi_key = "sk-ant-k"\n'


def test_a_chat_upstream_gets_the_clients_own_request(start_lab: StartLab) -> None:
    """Members that only the two of them know are in every hop's request."""
    lab = start_lab(config=_upstream("openai_compat"))
    form = [("content-type", "text/event-stream")]
    body = {"messages": [{**USER, "name": "ann"}], "model": "m", "tools": TOOLS, "stream": True}
    vendor = {"stop": ["x"], "seed": 7, "top_k": 40, "provider": {"order": ["a"]}}
    hops = [response(200, CHAT.stream(item), headers=form) for item in (HIDDEN, ANSWER)]
    with lab.post(body | vendor, *hops, target="/v1/chat/completions") as exchange:
        data = exchange.body()
    checks.knows_nothing_of(data, "canary", "call_hidden_1")
    assert data.endswith(b"data: [DONE]\n\n")
    assert data.count(b'finish_reason":"') == 1
    first, second = (request.json() for request in lab.provider.requests)
    for sent in (first, second):
        assert vendor.items() <= sent.items()
        assert sent["messages"][0] == {**USER, "name": "ann"}
        assert [tool["function"]["name"] for tool in sent["tools"]] == ["shell", "recall"]
    assert [one["role"] for one in second["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("streamed", [True, False])
def test_what_a_chat_upstream_keeps_has_nothing_hidden(
    start_lab: StartLab, *, streamed: bool
) -> None:
    """Its client can read stored completions and their messages there."""
    lab = start_lab(config=_upstream("openai_compat"))
    asked: dict[str, Any] = {"messages": [USER], "model": "m", "tools": TOOLS, "stream": streamed}
    form = [("content-type", "text/event-stream" if streamed else "application/json")]
    write = CHAT.stream if streamed else CHAT.whole
    hops = [response(200, write(item), headers=form) for item in (HIDDEN, ANSWER)]
    with lab.post(asked, *hops, target="/v1/chat/completions") as exchange:
        checks.knows_nothing_of(exchange.body(), "canary", "call_hidden_1")
    said = {"role": "assistant", "content": "你好🙂, it is fine."}
    kept = asked | {"store": True, "messages": [USER, said, USER]}
    body = builders.compact(kept).encode()
    then = response(200, write(message("Bye.")), headers=form)
    with lab.post(body, then, target="/v1/chat/completions") as exchange:
        assert b"Bye." in exchange.body()
    assert lab.seen().body == body
    lab.proxy.reaches(1, "recall_undeclared_total", reason="stored")


def test_without_tools_the_bytes_pass_to_a_chat_upstream(start_lab: StartLab) -> None:
    lab = start_lab(config=_upstream("openai_compat"))
    body = b'{"messages": [{"role":"user","content":"hi"}] ,"model":"m", "stop":["x"]}'
    with lab.post(body, answer({"choices": []}), target="/v1/chat/completions") as exchange:
        assert exchange.json() == {"choices": []}
    assert lab.seen().target == b"/v1/chat/completions"
    assert lab.seen().body == body
    assert lab.seen().header("authorization") == b"Bearer sk-ant-k"


def test_a_codex_backend_has_no_chat_of_its_own(start_lab: StartLab) -> None:
    lab = start_lab(kind="codex")
    with lab.proxy.sdk() as client:
        lab.provider.script([says(ANSWER, sparse=True)])
        completion = client.chat.completions.create(model="m", messages=[USER], max_tokens=9)
        assert completion.choices[0].message.content == "你好🙂, it is fine."
        assert lab.seen().json()["stream"] is True
        assert "max_output_tokens" not in lab.seen().json()
        with pytest.raises(openai.BadRequestError, match="'n' can't be translated"):
            client.chat.completions.create(model="m", messages=[USER], n=2)


def test_a_stream_that_breaks_is_no_silent_end(shared_lab: Lab, client: openai.OpenAI) -> None:
    frames = builders.frames(numbered([*opening(), *item_events(ANSWER, 0)]))
    shared_lab.provider.script([stream(*frames[:6], Reset())])
    with (
        client.chat.completions.create(
            model="m", messages=[USER], tools=TOOLS, stream=True
        ) as chunks,
        pytest.raises(openai.APIError, match="reset"),
    ):
        list(chunks)


def test_errors_have_their_class(shared_lab: Lab, client: openai.OpenAI) -> None:
    body = {"error": {"message": "Key?", "type": "t", "code": "invalid_api_key", "param": None}}
    shared_lab.provider.script([answer(body, status=401)])
    with pytest.raises(openai.AuthenticationError) as caught:
        client.chat.completions.create(model="m", messages=[USER], tools=TOOLS, stream=True)
    assert caught.value.code == "invalid_api_key"


def test_a_request_that_cannot_be_read(shared_lab: Lab) -> None:
    with shared_lab.post(b'{"messages": []}', target="/v1/chat/completions") as exchange:
        assert exchange.status == 400
        assert "'messages'" in exchange.json()["error"]["message"]
    assert shared_lab.provider.requests == []


def test_the_turn_is_counted_as_chat(lab: Lab) -> None:
    body = {"messages": [USER], "model": "m", "tools": TOOLS, "stream": True}
    with lab.post(body, says(HIDDEN), says(ANSWER), target="/v1/chat/completions") as exchange:
        data = exchange.body()
        assert exchange.headers["x-sottovoce-turn"].startswith("turn_")
    checks.knows_nothing_of(data, "canary", "call_hidden_1")
    lab.proxy.reaches(1, "turns_total", protocol="chat")
