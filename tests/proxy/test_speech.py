"""How answers of an upstream are read that was asked for another model than the client's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reader import StreamMode
from pipeline.sse import Fragment
from proxy.config_tables import LimitsConfig
from proxy.speech import RenamingReader, RoutedReader
from tests import builders
from tests.builders import message

LIMITS = LimitsConfig().as_limits()
EVENTS = builders.stream(message('say "headers" and "openai-model"'))


def reader(mode: StreamMode = StreamMode.SSE) -> Any:  # a reader of the pipeline
    return mode.reader(LIMITS, observed=False, phase="principal", redact=lambda text: text)


def told(*events: dict[str, Any]) -> bytes:
    return b"".join(builders.frames(events))


def renamed(data: bytes) -> list[Any]:
    reading = RenamingReader(reader())
    reading.head("text/event-stream")
    return [*reading.feed(data), *reading.finish()]


@pytest.mark.parametrize("name", ["openai-model", "OpenAI-Model"])
@pytest.mark.parametrize("kind", ["response.created", "response.in_progress", "response.completed"])
def test_the_models_name_goes_out_of_repeated_headers(name: str, kind: str) -> None:
    headers = {"x-request-id": "r", name: "another", "openai-version": "1"}
    event = {"type": kind, "response": {"id": "r", "headers": headers, "big": 2**70}}
    (frame,) = renamed(told(event))
    del headers[name]
    assert json.loads(frame.data) == event
    assert frame.raw == b"event: " + kind.encode() + b"\ndata: " + frame.data + b"\n\n"
    assert (frame.event, frame.sound) == (kind, True)


@pytest.mark.parametrize(
    "data",
    [
        told(*EVENTS),
        told({"type": "x", "response": {"headers": {"openai-version": "1"}}}),
        told({"type": "x", "response": {"headers": None}}),
        told({"type": "x", "headers": {"openai-model": "m"}}),
        b'data: ["headers"]\n\n',
        b'data: {"headers" oops\n\n',
        b': "headers"\n\n',
    ],
)
def test_everything_else_is_as_it_came(data: bytes) -> None:
    plain = reader()
    plain.head("text/event-stream")
    assert renamed(data) == [*plain.feed(data), *plain.finish()]
    assert b"".join(frame.raw for frame in renamed(data)) == data


def test_a_whole_answer_in_json() -> None:
    response = {"id": "r", "status": "completed", "output": [], "headers": {"openai-model": "m"}}
    reading = RenamingReader(reader(StreamMode.JSON))
    reading.head("application/json")
    reading.feed(json.dumps(response).encode())
    frames = [frame for frame in reading.finish() if not isinstance(frame, Fragment)]
    terminal = json.loads(frames[-1].data or b"")
    assert terminal["response"] == response | {"headers": {}}
    assert frames[-1].raw == frames[-1].data


@given(st.lists(st.integers(1, 90), max_size=40))
def test_a_routed_reader_reads_as_the_one_that_it_finds(cuts: list[int]) -> None:
    made = []

    def make() -> Any:
        made.append(reader())
        return made[-1]

    routed, plain = RoutedReader("phase", make), reader()
    for reading in (routed, plain):
        reading.head("text/event-stream")
    assert len(made) == 2
    data, found, expected = told(*EVENTS), [], []
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        found += routed.feed(piece)
        expected += plain.feed(piece)
    assert found + routed.finish() == expected + plain.finish()
    assert (routed.phase, routed.failure, routed.relayed_by) == ("phase", None, plain.relayed_by)
