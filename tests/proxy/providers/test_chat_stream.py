"""Chat completions as real upstreams stream them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ProtocolError
from proxy.providers.replay import unwrap
from tests import builders
from tests.builders import function_call, message
from tests.dialects import CHAT, USAGE, chat_chunk, chat_stream, chat_usage, sse, usage
from tests.proxy.providers.reading import drain, essences, outcome, read, reader_of

if TYPE_CHECKING:
    from tests.builders import Event, Item

Delta = dict[str, Any]
LS = json.dumps({"command": "ls"})


def completion(*chunks: object, end: bool = True) -> list[Event]:
    """Read a stream of these chunks."""
    return read(CHAT, sse(*chunks, *(["[DONE]"] if end else [])))


def called(*deltas: list[Delta], reason: str = "tool_calls") -> list[Item]:
    """Return the calls that chunks with these tool deltas make."""
    chunks = [chat_chunk({"tool_calls": calls}) for calls in deltas]
    status, output, _ = outcome(completion(*chunks, chat_chunk({}, reason=reason)))
    assert status == "completed"
    return output


def delta(index: int | None = None, arguments: object = "", **members: object) -> Delta:
    """Return a tool delta; None as a member leaves it out."""
    function = {"name": members.pop("name", None), "arguments": arguments}
    value: Delta = {"index": index, "function": function} | members
    value["function"] = {k: v for k, v in function.items() if v is not None}
    return {k: v for k, v in value.items() if v is not None}


# --------------------------------------------------------------------------------- tool deltas


def test_indices_may_begin_at_one() -> None:
    one = delta(1, LS, id="c1", name="shell")
    two = delta(2, "{}", id="c2", name="lookup")
    assert [call["call_id"] for call in called([one], [two])] == ["c1", "c2"]


def test_interleaved_calls_are_kept_apart() -> None:
    calls = called(
        [delta(0, '{"comm', id="c1", name="shell"), delta(1, '{"q"', id="c2", name="lookup")],
        [delta(1, ":1}"), delta(0, 'and":"ls"}')],
    )
    assert [json.loads(call["arguments"]) for call in calls] == [{"command": "ls"}, {"q": 1}]


def test_later_ids_and_names_may_be_empty() -> None:
    calls = called(
        [delta(0, "", id="c1", name="shell")],
        [delta(0, '{"command":', id="", name="")],
        [delta(0, '"ls"}', id="")],
    )
    assert [(c["call_id"], c["name"], c["arguments"]) for c in calls] == [
        ("c1", "shell", '{"command":"ls"}')
    ]


def test_a_missing_index_is_told_by_the_id_or_the_order() -> None:
    calls = called(
        [delta(None, '{"comm', id="c1", name="shell")],
        [delta(None, 'and":"ls"}')],
        [delta(None, '{"q":', id="c2", name="lookup")],
        [delta(None, "1}", id="c2")],
        [delta(None, "{}", name="shell")],
    )
    assert [json.loads(call["arguments"]) for call in calls] == [{"command": "ls"}, {"q": 1}, {}]


def test_one_index_for_several_whole_calls() -> None:
    calls = called(
        [delta(0, LS, id="c1", name="shell")],
        [delta(0, "{}", id="c2", name="shell")],
    )
    assert [call["call_id"] for call in calls] == ["c1", "c2"]


@pytest.mark.parametrize("arguments", [LS, {"command": "ls"}])
def test_whole_calls_in_one_chunk_with_the_finish_reason(arguments: object) -> None:
    first = {"tool_calls": [delta(None, arguments, id="c1", name="shell")]}
    chunk = chat_chunk(first, reason="tool_calls", usage=chat_usage(USAGE))
    status, output, told = outcome(completion(chunk))
    assert (status, told) == ("completed", USAGE)
    assert json.loads(output[0]["arguments"]) == {"command": "ls"}


def test_calls_without_ids_get_some() -> None:
    calls = called([delta(0, LS, name="shell")], [delta(1, LS, name="shell")])
    ids = [call["call_id"] for call in calls]
    assert len(set(ids)) == 2
    assert all(identity.startswith("call_") for identity in ids)


def test_a_name_may_come_late_and_the_call_waits_for_it() -> None:
    events = completion(
        chat_chunk({"tool_calls": [delta(0, '{"a"', id="c1")]}),
        chat_chunk({"tool_calls": [delta(0, ":1}")]}),
        chat_chunk({"tool_calls": [delta(0, name="shell")]}),
        chat_chunk({}, reason="tool_calls"),
    )
    assert essences(outcome(events)[1]) == [("function_call", None, "shell", {"a": 1})]
    added = next(e for e in events if e["type"] == "response.output_item.added")
    assert (added["item"]["name"], added["item"]["call_id"]) == ("shell", "c1")


def test_a_call_that_is_never_named_is_an_error() -> None:
    body = sse(chat_chunk({"tool_calls": [delta(0, LS, id="c1")]}), chat_chunk({}, reason="stop"))
    with pytest.raises(ProtocolError, match="never named a call"):
        drain(reader_of(CHAT), body)


def test_no_arguments_are_an_empty_object() -> None:
    events = completion(
        chat_chunk({"tool_calls": [delta(0, "", id="c1", name="shell")]}),
        chat_chunk({}, reason="stop"),
    )
    assert outcome(events)[1][0]["arguments"] == "{}"
    deltas = [e["delta"] for e in events if e["type"].endswith("arguments.delta")]
    assert "".join(deltas) == "{}"


def test_calls_close_at_the_finish_reason_not_at_the_end() -> None:
    reader = reader_of(CHAT)
    call = chat_chunk({"tool_calls": [delta(0, LS, id="c1", name="shell")]})
    frames = drain_open(reader, sse(call, chat_chunk({}, reason="tool_calls")))
    assert "response.output_item.done" in frames
    assert "response.completed" not in frames
    assert drain_open(reader, sse("[DONE]")) == ["response.completed"]


def drain_open(reader: Any, data: bytes) -> list[str | None]:
    return [frame.event for frame in reader.feed(data)]


def test_the_deprecated_form_of_a_call() -> None:
    events = completion(
        chat_chunk({"function_call": {"name": "shell", "arguments": '{"a":'}}),
        chat_chunk({"function_call": {"arguments": "1}"}}),
        chat_chunk({}, reason="function_call"),
    )
    assert essences(outcome(events)[1]) == [("function_call", None, "shell", {"a": 1})]


# ------------------------------------------------------------------------------ finish reasons


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "tool_calls", "eos"])
def test_whole_calls_beat_any_finish_reason(reason: str) -> None:
    assert called([delta(0, LS, id="c1", name="shell")], reason=reason)


@pytest.mark.parametrize(
    ("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_an_answer_that_was_stopped_is_incomplete(reason: str, told: str) -> None:
    events = read(CHAT, chat_stream(message("hi"), reason=reason))
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert response["incomplete_details"] == {"reason": told}
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"] == USAGE


def test_a_call_that_was_cut_off_is_not_done() -> None:
    """A client would run it at once."""
    events = completion(
        chat_chunk({"tool_calls": [delta(0, LS, id="c1", name="shell")]}),
        chat_chunk({"tool_calls": [delta(1, '{"command": "rm -rf /tm', id="c2", name="shell")]}),
        chat_chunk({}, reason="length"),
    )
    status, output, _ = outcome(events)
    assert status == "incomplete"
    assert [call["call_id"] for call in output] == ["c1"]
    done = [e["item"]["call_id"] for e in events if e["type"] == "response.output_item.done"]
    assert done == ["c1"]


@pytest.mark.parametrize("reason", ["", None])
def test_no_finish_reason_but_the_end_is_marked(reason: str | None) -> None:
    events = completion(chat_chunk({"content": "hi"}, reason=reason))
    assert outcome(events)[0] == "completed"


def test_a_finish_reason_but_no_mark() -> None:
    events = completion(chat_chunk({"content": "hi"}, reason="stop"), end=False)
    assert outcome(events)[0] == "completed"


def test_an_empty_completion_is_one() -> None:
    status, output, told = outcome(read(CHAT, chat_stream()))
    assert (status, output, told) == ("completed", [], USAGE)


# --------------------------------------------------------------------------------------- usage


def test_usage_in_the_finish_chunk_in_every_chunk_or_twice() -> None:
    first, last = chat_usage(usage(12, 1)), chat_usage(usage(12, 3))
    forms = [
        [chat_chunk({"content": "hi"}), chat_chunk({}, reason="stop", usage=last)],
        [chat_chunk({"content": "hi"}, usage=first), chat_chunk({}, reason="stop", usage=last)],
        [chat_chunk({}, reason="stop", usage=first), chat_chunk(usage=last)],
        [chat_chunk({}, reason="stop"), chat_chunk(usage=last), chat_chunk(usage=last)],
        [chat_chunk({}, reason="stop", x_groq={"usage": last})],
        [chat_chunk({}, reason="stop", usage=last), chat_chunk({}, usage=None)],
    ]
    for chunks in forms:
        assert outcome(completion(*chunks))[2] == usage(12, 3)


def test_azure_begins_with_a_chunk_about_filters() -> None:
    first = chat_chunk(identity="", model="", prompt_filter_results=[{"prompt_index": 0}])
    events = completion(first, chat_chunk({"role": "assistant", "content": ""}), *_hi())
    assert events[0]["response"]["model"] == "chat-test"
    assert outcome(events)[1][0]["content"][0]["text"] == "hi"


def _hi() -> list[Delta]:
    return [chat_chunk({"content": "hi"}), chat_chunk({}, reason="stop")]


# ----------------------------------------------------------------------------------- reasoning


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_in_its_own_field(field: str) -> None:
    events = completion(
        chat_chunk({field: "Let me ", "content": None}), chat_chunk({field: "think."}), *_hi()
    )
    thought, said = outcome(events)[1]
    assert thought["summary"] == [{"type": "summary_text", "text": "Let me think."}]
    assert unwrap("openai_compat", thought["encrypted_content"]) == {field: "Let me think."}
    assert said["content"][0]["text"] == "hi"


def test_details_of_reasoning_are_kept_as_they_came() -> None:
    details = [
        {"type": "reasoning.text", "text": "Hm.", "signature": "sig", "index": 0},
        {"type": "reasoning.encrypted", "data": "gAAAA", "index": 1},
    ]
    both = chat_chunk({"reasoning": "Hm.", "reasoning_details": details[:1]})
    events = completion(both, chat_chunk({"reasoning_details": details[1:]}), *_hi())
    thought = outcome(events)[1][0]
    assert thought["summary"][0]["text"] == "Hm."
    kept = unwrap("openai_compat", thought["encrypted_content"])
    assert kept == {"reasoning": "Hm.", "reasoning_details": details}


def test_details_alone_are_shown_too() -> None:
    details = [{"type": "reasoning.summary", "summary": "In short."}]
    thought = outcome(completion(chat_chunk({"reasoning_details": details}), *_hi()))[1][0]
    assert thought["summary"][0]["text"] == "In short."


@pytest.mark.parametrize("inner", ["Hm.", [{"type": "text", "text": "Hm."}, 7]])
def test_content_may_be_parts_with_thinking(inner: object) -> None:
    thinking = {"type": "thinking", "thinking": inner}
    chunk = chat_chunk({"content": [thinking, {"type": "text", "text": "Well, "}]})
    thought, said = outcome(completion(chunk, *_hi()))[1]
    assert thought["summary"][0]["text"] == "Hm."
    assert unwrap("openai_compat", thought["encrypted_content"]) == {"content": [thinking]}
    assert said["content"][0]["text"] == "Well, hi"


def test_what_belongs_to_a_call_is_kept_in_front_of_it() -> None:
    extra = {"google": {"thought_signature": "sig"}}
    events = completion(
        chat_chunk({"tool_calls": [delta(0, LS, id="c1", name="shell", extra_content=extra)]}),
        chat_chunk({}, reason="stop"),
    )
    thought, call = outcome(events)[1]
    assert unwrap("openai_compat", thought["encrypted_content"]) == {"calls": {"c1": extra}}
    assert (thought["summary"], call["call_id"]) == ([], "c1")


def test_reasoning_and_text_by_turns_are_items_of_their_own() -> None:
    deltas = [{"reasoning": "a"}, {"content": "b"}, {"reasoning": "c"}, {"content": "d"}]
    events = completion(*(chat_chunk(one) for one in deltas), chat_chunk({}, reason="stop"))
    kinds = [item["type"] for item in outcome(events)[1]]
    assert kinds == ["reasoning", "message"] * 2


# ----------------------------------------------------------------------------- text and errors


def test_a_refusal_is_a_refusal() -> None:
    events = completion(
        chat_chunk({"content": "Well. "}), chat_chunk({"refusal": "I can't."}), *_hi()
    )
    parts = outcome(events)[1][0]["content"]
    assert [part["type"] for part in parts] == ["output_text", "refusal", "output_text"]


def test_text_after_calls_is_a_message_of_its_own() -> None:
    events = completion(
        chat_chunk({"tool_calls": [delta(0, LS, id="c1", name="shell")]}),
        chat_chunk({"content": "Running."}),
        chat_chunk({}, reason="stop"),
    )
    assert [item["type"] for item in outcome(events)[1]] == ["function_call", "message"]


def test_other_choices_are_nobodys() -> None:
    chunk = chat_chunk({"content": "hi"})
    chunk["choices"].append({"index": 1, "delta": {"content": "no"}, "finish_reason": None})
    assert outcome(completion(chunk))[1][0]["content"][0]["text"] == "hi"


@pytest.mark.parametrize(
    "broken",
    [
        {"error": {"code": 502, "message": "Upstream is gone"}, "choices": []},
        {"choices": [{"delta": {}, "finish_reason": "error", "error": {"message": "Gone"}}]},
        {"error": "Gone"},
    ],
)
def test_errors_in_the_middle_have_many_forms(broken: Delta) -> None:
    events = completion(chat_chunk({"reasoning": "Hm."}), broken, *_hi())
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert "encrypted_content" in events[-1]["response"]["output"][0]


def test_nothing_follows_the_end() -> None:
    events = completion(*_hi(), "[DONE]", chat_chunk({"content": "more"}))
    assert [event["type"] for event in events].count("response.completed") == 1


# ------------------------------------------------------------------------------ tools of a kind


@pytest.mark.parametrize(("arguments", "text"), [('{"patch":"x"}', "x"), ("{}", ""), ("", "")])
def test_a_custom_call_in_another_form_is_understood(arguments: str, text: str) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "patch", "arguments": arguments}}
    body = sse(chat_chunk({"tool_calls": [call]}), chat_chunk({}, reason="stop"), "[DONE]")
    asked = builders.request(tools=[{"type": "custom", "name": "patch"}])
    events = read(CHAT, body, asked)
    assert outcome(events)[1][0]["input"] == text
    deltas = [e["delta"] for e in events if e["type"].endswith("input.delta")]
    assert "".join(deltas) == text


def test_a_call_without_id_and_arguments_is_announced_at_the_end() -> None:
    [call] = called([delta(0, name="shell")])
    assert (call["name"], call["arguments"]) == ("shell", "{}")


def test_names_lead_back_to_what_the_client_declared() -> None:
    tools = [
        {"type": "custom", "name": "apply_patch"},
        {"type": "namespace", "name": "mcp__git", "tools": [builders.CLIENT_TOOL]},
        {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
    ]
    body = chat_stream(
        function_call("c1", "apply_patch", {"input": "*** Begin\n+é"}),
        function_call("c2", "mcp__git__shell", {"command": "ls"}),
        function_call("c3", "tool_search", {"query": "x"}),
        function_call("c4", "unheard_of", {"a": 1}),
    )
    output = outcome(read(CHAT, body, builders.request(tools=tools)))[1]
    assert essences(output) == [
        ("custom_tool_call", None, "apply_patch", "*** Begin\n+é"),
        ("function_call", "mcp__git", "shell", {"command": "ls"}),
        ("tool_search_call", {"query": "x"}),
        ("function_call", None, "unheard_of", {"a": 1}),
    ]
    assert output[2]["execution"] == "client"
    assert [item["call_id"] for item in output] == ["c1", "c2", "c3", "c4"]
