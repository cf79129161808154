"""Which call a delta belongs to: one index for several calls, names in pieces, ids that collide."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.reader import StreamMode
from tests import builders
from tests.builders import compact
from tests.dialects import CHAT, chat_chunk, sse
from tests.proxy.providers.reading import outcome, read

Delta = dict[str, Any]
Called = tuple[str, str]

TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object"}}
    for name in ("shell", "read", "read_file", "recall")
]
REQUEST = builders.request(tools=TOOLS)


def delta(name: str | None = None, arguments: str | None = None, **members: object) -> Delta:
    """Return a tool delta at index 0."""
    function = {"name": name, "arguments": arguments}
    said = {key: one for key, one in function.items() if one is not None}
    return {"index": 0, "function": said, **members}


def called(*chunks: list[Delta]) -> list[Called]:
    """Return name and arguments of the calls that these chunks make; their ids must differ."""
    said = [chat_chunk({"tool_calls": deltas}) for deltas in chunks]
    events = read(CHAT, sse(*said, chat_chunk({}, reason="tool_calls"), "[DONE]"), REQUEST)
    return _calls(outcome(events)[1])


def _calls(output: list[dict[str, Any]]) -> list[Called]:
    assert all(item["call_id"] for item in output)
    assert len({item["call_id"] for item in output}) == len(output)
    return [(item["name"], item["arguments"]) for item in output]


IDS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "empty ids": ({"id": ""}, {"id": ""}),
    "no ids": ({}, {}),
    "null ids": ({"id": None}, {"id": None}),
    "an id on the second": ({}, {"id": "c2"}),
    "an id on the first": ({"id": "c1"}, {}),
    "numbers as ids": ({"id": 5}, {"id": 6}),
    "one id": ({"id": "c1"}, {"id": "c1"}),
}


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("one_chunk", [True, False])
@pytest.mark.parametrize("names", [("shell", "recall"), ("recall", "shell"), ("shell", "shell")])
def test_one_index_for_two_whole_calls(
    ids: str, names: tuple[str, str], *, one_chunk: bool
) -> None:
    texts = ['{"a":{}}', '{"query":"x"}']
    deltas = [
        delta(name, text, **members)
        for name, text, members in zip(names, texts, IDS[ids], strict=True)
    ]
    chunks = [deltas] if one_chunk else [[one] for one in deltas]
    assert called(*chunks) == list(zip(names, texts, strict=True))


def test_one_index_for_two_calls_in_pieces() -> None:
    assert called(
        [delta("shell", '{"a"')],
        [delta(None, ":{}}")],
        [delta("recall", "")],
        [delta(None, '{"query"')],
        [delta(None, ':"x"}')],
    ) == [("shell", '{"a":{}}'), ("recall", '{"query":"x"}')]


def test_a_second_call_of_one_tool_whose_arguments_follow() -> None:
    assert called(
        [delta("shell", '{"a":1}')], [delta("shell", "")], [delta(None, '{"a"')], [delta("", ":2}")]
    ) == [("shell", '{"a":1}'), ("shell", '{"a":2}')]


def test_calls_without_arguments_at_one_index() -> None:
    assert called([delta("shell", "")], [delta("recall", "")]) == [
        ("shell", "{}"),
        ("recall", "{}"),
    ]
    assert called([delta("shell", ""), delta("shell", "")]) == [("shell", "{}"), ("shell", "{}")]


@pytest.mark.parametrize(
    "pieces", [("re", "call"), ("r", "e", "c", "all"), ("recal", "l"), ("re", "", "call")]
)
@pytest.mark.parametrize("members", [{"id": "c1"}, {}])
def test_a_name_in_pieces(pieces: tuple[str, ...], members: dict[str, object]) -> None:
    chunks = [[delta(piece, "", **members)] for piece in pieces]
    assert called(*chunks, [delta(None, '{"query":"x"}')]) == [("recall", '{"query":"x"}')]


def test_a_name_in_pieces_among_arguments() -> None:
    assert called([delta("re", '{"query"', id="c1")], [delta("call", ':"x"}')]) == [
        ("recall", '{"query":"x"}')
    ]


def test_a_name_that_grows() -> None:
    assert called([delta("re", "", id="c1")], [delta("recall", "{}", id="c1")]) == [
        ("recall", "{}")
    ]


def test_a_declared_name_that_begins_another() -> None:
    assert called([delta("read", "", id="c1")], [delta("_file", "{}")]) == [("read_file", "{}")]
    assert called([delta("read", "", id="c1")], [delta(None, "{}")]) == [("read", "{}")]
    assert called([delta("read", "", id="c1")], [delta("read", "{}")]) == [("read", "{}")]
    assert called([delta("read", "", id="c1")]) == [("read", "{}")]


def test_a_name_that_nobody_declared() -> None:
    assert called([delta("re", "", id="c1")], [delta(None, '{"a":1}')]) == [("re", '{"a":1}')]
    assert called([delta("other", "", id="c1")], [delta(None, "{}")]) == [("other", "{}")]


@pytest.mark.parametrize("again", ["shell", ""])
def test_a_name_that_is_told_with_every_piece(again: str) -> None:
    assert called(
        [delta("shell", '{"a":', id="c1")],
        [delta(again, "{}", id="c1")],
        [delta(again, "}", id="c1")],
        [delta(again, "", id="c1")],
    ) == [("shell", '{"a":{}}')]


def test_a_whole_call_that_is_told_again() -> None:
    whole = delta("shell", '{"a":1}', id="c1")
    assert called([delta("shell", '{"a"', id="c1")], [delta(None, ":1}")], [whole]) == [
        ("shell", '{"a":1}')
    ]


def test_one_id_without_an_index() -> None:
    one, two = delta("shell", "{}", id="c1"), delta("recall", '{"query":"x"}', id="c1")
    del one["index"], two["index"]
    assert called([one], [two]) == [("shell", "{}"), ("recall", '{"query":"x"}')]


def test_the_calls_of_a_body_are_told_apart_by_their_place() -> None:
    entries = [delta(name, "{}", id="c1") for name in ("recall", "shell", "shell")]
    choice = {"index": 0, "message": {"tool_calls": entries}, "finish_reason": "tool_calls"}
    body = compact({"id": "a", "model": "m", "choices": [choice]}).encode()
    events = read(CHAT, body, REQUEST, mode=StreamMode.JSON)
    assert _calls(outcome(events)[1]) == [("recall", "{}"), ("shell", "{}"), ("shell", "{}")]


@pytest.mark.parametrize("deltas_first", [True, False])
def test_a_message_that_repeats_deltas(*, deltas_first: bool) -> None:
    spoken = {"content": "Hm.", "tool_calls": [delta("shell", "{}", id="c1")]}
    streamed = chat_chunk({"tool_calls": [delta("shell", "{}", id="c1")]})
    whole = json.loads(json.dumps(chat_chunk({})))
    whole["choices"][0]["message"] = spoken
    chunks = [chat_chunk({"content": "Hm."}), streamed, whole] if deltas_first else [whole]
    events = read(CHAT, sse(*chunks, chat_chunk({}, reason="stop"), "[DONE]"), REQUEST)
    message, call = outcome(events)[1]
    assert message["content"][0]["text"] == "Hm."
    assert _calls([call]) == [("shell", "{}")]
