from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pipeline.errors import UpstreamError
from pipeline.events import KeepAliveDue
from pipeline.join import OneMessageJoin
from pipeline.options import ClientForm
from pipeline.outcome import Ending
from pipeline.reader import StreamMode
from proxy.chat.completion import Fallback
from proxy.chat.render import ChatAnswer, ChatStream
from tests import builders, strategies
from tests.builders import function_call, message, reasoning, recall_call, refusal, usage
from tests.playbook import Answer, Playbook, chunk, limits, opened, run_turn, says, turn
from tests.proxy.chat.chunks import read_chunks

if TYPE_CHECKING:
    from tests.builders import Item
    from tests.playbook import Played
    from tests.proxy.chat.chunks import Completion

FALLBACK = Fallback("m-asked", 7)
STREAM = ClientForm(partial(ChatStream, include_usage=True, fallback=FALLBACK), OneMessageJoin)
JSON = ClientForm(partial(ChatAnswer, fallback=FALLBACK), OneMessageJoin)
HIDDEN = recall_call("call_hidden", {"query": "canary"})
SHELL = function_call("call_1", "shell", {"command": "ls"})
IDENTITY = {"object": "chat.completion.chunk", "id": "chatcmpl-A", "model": "gpt-test"}


def streamed(*hops: Any, **options: Any) -> Played:  # as run_turn takes them
    return run_turn(hops=hops, form=STREAM, **options)


def completion(played: Played) -> Completion:
    read = read_chunks(played.client_bytes)
    for one in read.chunks:
        if '"custom"' not in json.dumps(one):  # the SDK's type lacks them, not its reader
            ChatCompletionChunk.model_validate(one, strict=True)
    return read


def text_of(items: list[Item]) -> str:
    texts = [
        "".join(part.get("text", "") for part in item["content"])
        for item in items
        if item["type"] == "message"
    ]
    return "\n\n".join(text for text in texts if text)


def calls_of(items: list[Item]) -> list[dict[str, str]]:
    return [
        {
            "id": item["call_id"],
            "type": "custom" if item["type"] == "custom_tool_call" else "function",
            "name": item["name"],
            "said": item["input"] if item["type"] == "custom_tool_call" else item["arguments"],
        }
        for item in items
        if "call_id" in item
    ]


# ----------------------------------------------------------------------------------- streams


def test_a_turn_without_a_recall() -> None:
    read = completion(streamed(says(message("Hello there."), usage=usage(10, 5))))
    assert read.content == "Hello there."
    assert read.reasons == ["stop"]
    assert read.done
    assert read.usage is not None
    assert (read.usage["prompt_tokens"], read.usage["completion_tokens"]) == (10, 5)
    assert all(one.items() >= IDENTITY.items() for one in read.chunks)
    assert all(one["created"] == builders.CREATED_AT for one in read.chunks)


@pytest.mark.parametrize("form", [STREAM, JSON], ids=["stream", "json"])
def test_what_the_upstream_does_not_tell_is_the_requests(form: ClientForm) -> None:
    """Sparse Codex streams begin with nothing but an id."""
    bare: Any = {"response": {"id": "resp_A"}}
    events = [
        {"type": "response.created", **bare},
        builders.item_done(message("hi")),
        {"type": "response.completed", **bare},
    ]
    client: Any = "stream" if form is STREAM else "json"
    played = run_turn(hops=[events], form=form, client=client, mode=StreamMode.SSE)
    told = completion(played).chunks if form is STREAM else [json.loads(played.client_bytes)]
    assert {(one["id"], one["model"], one["created"]) for one in told} == {
        ("chatcmpl-A", "m-asked", 7)
    }


def test_the_hidden_call_leaves_no_trace() -> None:
    played = streamed(
        says(message("Let me look."), HIDDEN, usage=usage(100, 10, cached=40)),
        says(reasoning("Hm."), message("Found."), SHELL, usage=usage(150, 5, cached=90)),
    )
    read = completion(played)
    assert read.content == "Let me look.\n\nFound."
    assert read.reasoning == "Hm."
    assert list(read.calls.values()) == calls_of([SHELL])
    assert read.reasons == ["tool_calls"]
    assert read.usage is not None
    assert read.usage["total_tokens"] == 265
    assert read.usage["prompt_tokens_details"] == {"cached_tokens": 130}
    for word in (b"recall", b"call_hidden", b"canary"):
        assert word not in played.client_bytes
    assert all(one.items() >= IDENTITY.items() for one in read.chunks)


def test_usage_is_told_only_if_asked_for() -> None:
    form = ClientForm(partial(ChatStream, include_usage=False, fallback=FALLBACK), OneMessageJoin)
    played = run_turn(hops=[says(message("hi"))], form=form)
    assert b"usage" not in played.client_bytes
    assert read_chunks(played.client_bytes).done


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("odd", "length")],
)
def test_an_incomplete_response_says_why(reason: str, finish: str) -> None:
    extra = {"incomplete_details": {"reason": reason}}
    events = [
        *builders.opening(),
        *builders.item_events(message("Hel"), 0),
        builders.terminal("resp_A", "incomplete", output=[message("Hel")], **extra),
    ]
    read = completion(streamed(builders.numbered(events)))
    assert read.content == "Hel"
    assert read.reasons == [finish]


def test_a_refusal_is_one() -> None:
    read = completion(streamed(says(refusal("I can't."))))
    assert (read.content, read.refusal) == ("", "I can't.")


def test_an_error_before_any_chunk_is_an_answer_of_its_own() -> None:
    events = [
        *builders.opening(),
        builders.terminal(
            "resp_A", "failed", error={"code": "rate_limit_exceeded", "message": "Slow down."}
        ),
    ]
    played = streamed(builders.numbered(events))
    assert played.error.status == 429
    assert played.error.message == "Slow down."


def test_an_error_behind_a_chunk_ends_the_stream() -> None:
    events = builders.numbered([*builders.opening(), *builders.item_events(message("Hello"), 0)])
    cut = Answer(builders.body(events[:6]), cut=UpstreamError("the provider reset the connection"))
    played = streamed(cut)
    read = read_chunks(played.client_bytes)
    assert read.error is not None
    assert read.error["message"] == "the provider reset the connection"
    assert read.error["code"] == "server_error"
    assert not read.done
    assert played.outcome.ending is Ending.FAILED


def test_frames_are_counted_once() -> None:
    """Every delta of a read is a chunk of its own, and a frame of the upstream's once."""
    events = builders.stream(message("word " * 200))
    played = streamed(events, limits=limits(frames=len(events)))
    assert played.outcome.message is None
    assert played.turn.hop.frames == len(events)


def test_a_broken_first_try_is_not_noticed() -> None:
    events = builders.numbered(builders.opening())
    cut = Answer(builders.body(events), cut=UpstreamError("reset"))
    read = completion(streamed(cut, says(message("hi"), response_id="resp_B")))
    assert read.content == "hi"
    assert {one["id"] for one in read.chunks} == {"chatcmpl-B"}


def test_silence_is_filled_with_comments() -> None:
    script = Playbook(turn(form=STREAM)).skip()
    script.feed(opened(), KeepAliveDue())
    assert script.sent() == b": keep-alive\n\n"
    script.feed(chunk(builders.body(builders.numbered(builders.opening()))), KeepAliveDue())
    assert script.sent() == b": keep-alive\n\n"


def test_text_beside_a_hidden_call_does_not_spoil_a_schema() -> None:
    played = streamed(says(message('{"a":'), HIDDEN), says(message('{"a": 1}')), hold_text=True)
    assert json.loads(completion(played).content) == {"a": 1}


@given(data=st.data())
def test_a_chat_client_gets_what_a_responses_client_would(data: st.DataObject) -> None:
    script = data.draw(strategies.scripts(mixed=data.draw(st.booleans())))
    played = streamed(
        *script.hops, results=script.results, chunking=data.draw(strategies.chunkings())
    )
    read = completion(played)
    assert read.content == text_of(script.visible)
    assert list(read.calls.values()) == calls_of(script.visible)
    assert read.reasons == ["tool_calls" if read.calls else "stop"]
    assert read.done
    assert len({one["id"] for one in read.chunks}) == 1


# -------------------------------------------------------------------------------------- JSON


def answered(played: Played) -> dict[str, Any]:
    value = json.loads(played.client_bytes)
    ChatCompletion.model_validate(value, strict=True)
    assert isinstance(value, dict)
    return value


def test_a_completion() -> None:
    played = run_turn(
        hops=[
            says(message("Let me look."), HIDDEN, usage=usage(100, 10)),
            says(reasoning("Hm."), message("Found."), SHELL, usage=usage(150, 5)),
        ],
        client="json",
        form=JSON,
    )
    value = answered(played)
    assert value["id"] == "chatcmpl-A"
    choice = value["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look.\n\nFound."
    assert choice["message"]["reasoning_content"] == "Hm."
    function = {"name": "shell", "arguments": '{"command":"ls"}'}
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": function}
    ]
    assert value["usage"]["total_tokens"] == 265
    assert b"recall" not in played.client_bytes


def test_a_completion_over_a_streamed_upstream() -> None:
    played = run_turn(
        {**builders.request(), "stream": False},
        hops=[says(HIDDEN, sparse=True), says(message("hi"), sparse=True)],
        form=JSON,
        streamed=False,
        mode=StreamMode.SSE,
    )
    assert answered(played)["choices"][0]["message"]["content"] == "hi"


def test_a_failed_response_is_no_completion() -> None:
    failed = builders.response(
        "resp_A", "failed", error={"code": "server_is_overloaded", "message": "Busy."}
    )
    body = builders.compact(failed).encode()
    played = run_turn(hops=[body], client="json", form=JSON)
    assert (played.error.status, played.error.message) == (503, "Busy.")


# ------------------------------------------------------------------------------------ ledger


def test_the_record_knows_a_turn_as_one_message() -> None:
    played = streamed(
        says(reasoning("Look.", encrypted="gAAA"), message("Let me look."), HIDDEN),
        says(reasoning("Hm."), message("Found."), SHELL),
    )
    group = played.performer.saved[0].group
    assert group is not None
    kinds = [
        "message/call" if slot.hidden is None else json.loads(slot.hidden)["type"]
        for slot in group.slots
    ]
    hidden = ["reasoning", "message", "function_call", "function_call_output"]
    assert kinds == [*hidden, "message/call", "message/call"]


def test_a_turn_without_hidden_calls_leaves_no_record() -> None:
    assert streamed(says(reasoning("Hm.", encrypted="gAAA"), message("hi"))).performer.saved == []
