"""Ollama's chat as it is streamed."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.reader import StreamMode
from proxy.providers.replay import unwrap
from tests import builders
from tests.builders import function_call, message, reasoning
from tests.dialects import OLLAMA, USAGE, lines, ollama_end, ollama_line, ollama_stream, usage
from tests.playbook import bytewise, whole
from tests.proxy.providers.reading import essences, outcome, read

Value = dict[str, Any]
CALL = {"function": {"name": "shell", "arguments": {"command": "ls"}}}


def test_stop_in_spite_of_calls_is_complete() -> None:
    body = lines(ollama_line({"tool_calls": [CALL]}), ollama_end(reason="stop"))
    status, output, told = outcome(read(OLLAMA, body))
    assert (status, told) == ("completed", USAGE)
    assert essences(output) == [("function_call", None, "shell", {"command": "ls"})]


def test_ids_of_calls_are_made_up_the_same_for_the_same_answer() -> None:
    body = lines(ollama_line({"tool_calls": [CALL, CALL]}), ollama_end(tool_calls=[CALL]))
    calls = outcome(read(OLLAMA, body))[1]
    ids = [call["call_id"] for call in calls]
    assert len(set(ids)) == 3
    assert all(identity.startswith("call_") for identity in ids)
    assert outcome(read(OLLAMA, body, chunking=bytewise))[1] == calls


def test_an_id_that_is_given_is_kept() -> None:
    body = lines(ollama_line({"tool_calls": [CALL | {"id": "call_7"}]}), ollama_end())
    assert outcome(read(OLLAMA, body))[1][0]["call_id"] == "call_7"


@pytest.mark.parametrize("arguments", [None, {}, "", "{}"])
def test_no_arguments_are_an_empty_object(arguments: object) -> None:
    call = {"function": {"name": "shell", "arguments": arguments}}
    body = lines(ollama_line({"tool_calls": [call]}), ollama_end())
    assert outcome(read(OLLAMA, body))[1][0]["arguments"] == "{}"


def test_thinking_is_kept_for_its_way_back() -> None:
    thought, said = outcome(read(OLLAMA, ollama_stream(reasoning("Hm, hm."), message("hi"))))[1]
    assert thought["summary"][0]["text"] == "Hm, hm."
    assert unwrap("ollama", thought["encrypted_content"]) == {"thinking": "Hm, hm."}
    assert said["content"][0]["text"] == "hi"


def test_a_limit_makes_it_incomplete_unless_calls_are_whole() -> None:
    events = read(OLLAMA, ollama_stream(message("hi"), reason="length"))
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    body = ollama_stream(function_call("c", "shell", {"a": 1}), reason="length")
    assert outcome(read(OLLAMA, body))[0] == "completed"


@pytest.mark.parametrize("reason", ["load", "unload", ""])
def test_an_empty_completion_is_one(reason: str) -> None:
    assert outcome(read(OLLAMA, ollama_stream(reason=reason)))[:2] == ("completed", [])


def test_a_prompt_from_the_cache_is_not_counted() -> None:
    body = lines(ollama_line({"content": "hi"}, done=True, done_reason="stop", eval_count=3))
    assert outcome(read(OLLAMA, body))[2] == usage(0, 3)


def test_the_time_is_the_upstreams() -> None:
    events = read(OLLAMA, ollama_stream(message("hi")))
    assert events[0]["response"]["created_at"] == 1_789_992_000
    without = ollama_stream(message("hi")).replace(b"2026-09-21T12", b"soon")
    assert read(OLLAMA, without)[0]["response"]["created_at"] == 7


@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_the_last_line_may_lack_its_end(chunking: Any) -> None:
    body = ollama_stream(message("hi")).rstrip(b"\n")
    assert outcome(read(OLLAMA, body, chunking=chunking))[0] == "completed"


def test_blank_lines_and_carriage_returns_are_no_lines() -> None:
    body = ollama_stream(message("hi")).replace(b"\n", b"\r\n\r\n")
    assert outcome(read(OLLAMA, body))[0] == "completed"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("model runner has unexpectedly stopped", "server_error"),
        ("input length exceeds the context length", "context_length_exceeded"),
        ("the prompt is too long", "context_length_exceeded"),
    ],
)
def test_errors_are_told_in_codes_that_clients_know(text: str, code: str) -> None:
    body = lines(ollama_line({"thinking": "Hm."}), {"error": text})
    events = read(OLLAMA, body)
    assert events[-1]["response"]["error"] == {"code": code, "message": text}
    assert "encrypted_content" in events[-1]["response"]["output"][0]


def test_names_lead_back_to_what_the_client_declared() -> None:
    tools = [{"type": "custom", "name": "apply_patch"}]
    call = {"function": {"name": "apply_patch", "arguments": {"input": "x"}}}
    body = lines(ollama_end(tool_calls=[call, {"function": 7}, 8]))
    for mode in StreamMode:
        output = outcome(read(OLLAMA, body, builders.request(tools=tools), mode=mode))[1]
        assert essences(output) == [("custom_tool_call", None, "apply_patch", "x")]
