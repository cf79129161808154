"""Chunks in shapes that nobody should send: no failure of ours, and nothing of a hidden call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.outcome import Ending
from recall.tool import NAME
from tests.dialects import sse
from tests.proxy.chat.chunks import read_chunks
from tests.proxy.chat.test_splicing import (
    SHELL,
    completed,
    in_json,
    knows_nothing,
    play,
    said,
    saying,
)

Chunk = dict[str, Any]
QUERY = '{"query":"canary"}'
HIDDEN = {"id": "call_h", "type": "function", "function": {"name": NAME, "arguments": QUERY}}
OWN = {**SHELL, "function": {"name": "shell", "arguments": '{"a":1}'}}
LEGACY = HIDDEN["function"]
AFTER = saying({"content": "Pip."}, hop=2)


def chunk(*choices: object, **members: object) -> Chunk:
    return {**said(None), "choices": [*choices], **members}


def choice(index: object = 0, **members: object) -> Chunk:
    return {"index": index, "delta": {}, "finish_reason": None, **members}


def asks(*entries: object) -> Chunk:
    return {"tool_calls": [*entries]}


def hop(*chunks: object) -> list[object]:
    begun = said({"role": "assistant", "content": ""})
    return [begun, *chunks, said({}, "tool_calls"), "[DONE]"]


ORDINARY = said(asks({"index": 0, **HIDDEN}))
UNREAD: dict[str, Chunk] = {
    "a message beside nothing": chunk(choice(message=asks(HIDDEN))),
    "a message without arguments": chunk(
        choice(message=asks({"id": "call_h", "function": {"name": NAME}}))
    ),
    "a message beside text": chunk(choice(delta={"content": "Hm."}, message=asks(HIDDEN))),
    "a delta that is an array": chunk(choice(delta=[asks(HIDDEN)])),
    "another choice": chunk(choice(1, delta=asks({"index": 0, **HIDDEN}))),
    "two choices": chunk(choice(1, delta=asks(HIDDEN)), choice(0, delta={"content": "Hm."})),
    "a choice that is none": chunk([asks(HIDDEN)]),
    "choices that are no array": {**chunk(), "choices": {"0": asks(HIDDEN)}},
    "calls that are no array": chunk(choice(delta={"tool_calls": HIDDEN, "content": "Hm."})),
    "an entry that is an array": chunk(choice(delta=asks([HIDDEN]))),
    "calls of the choice": chunk(choice(**asks(HIDDEN))),
    "calls of the chunk": chunk(choice(delta={"content": "Hm."}), **asks(HIDDEN)),
    "a member that names it": chunk(choice(delta={"content": "Hm."}), used=[NAME]),
    "a member of a delta": chunk(choice(delta={"content": "Hm.", "x": {"tool": NAME}})),
}


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("first", [True, False])
def test_what_nobody_reads_tells_nothing(name: str, *, first: bool) -> None:
    odd = UNREAD[name]
    played = play(hop(*((odd, ORDINARY) if first else (ORDINARY, odd))), AFTER)
    knows_nothing(played)
    assert played.outcome.ending is Ending.COMPLETED
    assert b"Pip." in played.client_bytes


@pytest.mark.parametrize("name", UNREAD)
def test_what_nobody_reads_beside_a_call_of_the_client(name: str) -> None:
    played = play(hop(UNREAD[name], said(asks({"index": 0, **OWN}))), AFTER)
    knows_nothing(played)
    assert played.outcome.ending is Ending.COMPLETED


def test_escaped_letters_of_a_name_are_read() -> None:
    text = json.dumps(chunk(choice(delta={"content": "Hm."}), used=[NAME]))
    escaped = text.replace(NAME, "".join(f"\\u{ord(letter):04x}" for letter in NAME))
    played = play(sse(*hop()[:1]) + f"data: {escaped}\n\n".encode() + sse(*hop()[2:]), AFTER)
    assert "\\u0072" not in played.client_bytes.decode()
    assert read_chunks(played.client_bytes).content == "Hm."


def test_the_models_own_words_are_no_names() -> None:
    tokens = [{"token": NAME, "logprob": -1.0, "bytes": None, "top_logprobs": []}]
    beside = choice(delta={"content": NAME}, logprobs={"content": tokens})
    body = sse(*hop()[:1], chunk(beside), said({}, "stop"), "[DONE]")
    assert play(body).client_bytes == body


@pytest.mark.parametrize("frame", [b": about call_h\n\n", b'data: ["recall"]\n\n'])
def test_frames_that_are_no_chunks_tell_nothing(frame: bytes) -> None:
    first = sse(*hop(ORDINARY))
    end = first.index(b"data: ", first.index(QUERY[-9:-2].encode()))
    played = play(first[:end] + frame + first[end:], AFTER)
    knows_nothing(played)


# ------------------------------------------------------------------------------- whole bodies


@pytest.mark.parametrize("order", [(OWN, HIDDEN), (HIDDEN, OWN)])
def test_two_calls_of_one_id_in_json(order: tuple[Chunk, Chunk]) -> None:
    entries = [{**entry, "id": "call_0"} for entry in order]
    first = completed({"content": None, **asks(*entries)}, "tool_calls")
    played = in_json(first)
    (call,) = json.loads(played.client_bytes)["choices"][0]["message"]["tool_calls"]
    assert call["function"] == OWN["function"]
    assert (call["id"] == "call_0") is (order[0] is OWN)
    assert NAME.encode() not in played.client_bytes
    ids = [item["call_id"] for item in played.turn.view.output]
    assert call["id"] in ids
    assert len(played.requests) == 1


def test_another_choice_in_json() -> None:
    first = completed(asks(HIDDEN), "tool_calls")
    first["choices"].append({**first["choices"][0], "index": 1})
    played = in_json(first, completed({"content": "Pip."}, hop=2))
    knows_nothing(played)
    assert json.loads(played.client_bytes)["choices"][0]["message"]["content"] == "Pip."


# ------------------------------------------------------------------------------------- fuzzing

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, -1, 1.5, True, "", "x", [], {}, [None], [[]], {"a": None}]
)
ENTRIES = st.sampled_from([HIDDEN, {"index": 0, **HIDDEN}, OWN, {"index": 1, **OWN}])
SPOKEN = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", None, 7]),
        "content": st.sampled_from(["Hm.", "", None, 7, [], [{"type": "text", "text": "Hm."}]]),
        "tool_calls": st.one_of(
            ODD, ENTRIES, st.lists(st.one_of(ENTRIES, ODD), min_size=1, max_size=3)
        ),
        "function_call": st.one_of(ODD, st.just(LEGACY)),
        "refusal": ODD,
        "reasoning_content": ODD,
        "reasoning_details": ODD,
    },
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.one_of(st.sampled_from([0, 1]), ODD),
        "delta": st.one_of(SPOKEN, SPOKEN, ODD),
        "message": st.one_of(SPOKEN, ODD),
        "finish_reason": st.one_of(st.none(), ODD),
        "logprobs": ODD,
    },
)
CHUNKS = st.fixed_dictionaries(
    {"choices": st.one_of(ODD, st.lists(st.one_of(CHOICES, ODD), max_size=2))},
    optional={"id": ODD, "model": ODD, "created": ODD, "usage": ODD, "x_groq": ODD},
)


@given(chunks=st.lists(CHUNKS, min_size=1, max_size=4), recalls=st.booleans())
def test_any_shape_of_a_chunk(chunks: list[Chunk], *, recalls: bool) -> None:
    played = play(hop(*chunks, *([ORDINARY] if recalls else [])), AFTER, AFTER)
    knows_nothing(played)


@given(message=st.one_of(SPOKEN, ODD), other=st.one_of(CHOICES, ODD))
def test_any_shape_of_a_body(message: object, other: object) -> None:
    first = completed({}, "tool_calls")
    first["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}, other]
    played = in_json(first, completed({"content": "Pip."}, hop=2), completed({"content": "P."}))
    knows_nothing(played)
