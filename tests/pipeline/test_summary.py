"""A summary, read as a compaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ProtocolError
from pipeline.reader import StreamMode
from pipeline.sse import Frame
from pipeline.summary import SummaryReader, summary_of
from tests import builders
from tests.builders import function_call, message, reasoning, refusal
from tests.playbook import LIMITS

if TYPE_CHECKING:
    from tests.builders import Event, Item


def reader() -> SummaryReader:
    inner = StreamMode.SSE.reader(LIMITS, observed=False, phase="principal", redact=str)
    made = SummaryReader(inner, lambda text: f"sealed:{text}")
    made.head("text/event-stream")
    return made


def read(events: list[Event], *, size: int = 1 << 20) -> list[Event]:
    data, made, told = builders.body(events), reader(), []
    for start in range(0, len(data), size):
        told += made.feed(data[start : start + size])
    told += made.finish()
    values = []
    for number, frame in enumerate(told):
        assert isinstance(frame, Frame)
        assert frame.sound
        value = json.loads(frame.data or b"")
        assert frame.event == value["type"]
        assert frame.raw == b"event: %b\ndata: %b\n\n" % (value["type"].encode(), frame.data)
        assert value["sequence_number"] == number
        values.append(value)
    return values


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_one_item_and_nothing_of_the_text(size: int) -> None:
    items = [reasoning("hm"), message("All is well."), function_call("c1", "shell", {})]
    events = read(builders.stream(*items), size=size)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    (item,) = events[-1]["response"]["output"]
    assert item["encrypted_content"] == "sealed:All is well."
    assert item["type"] == "compaction"
    assert events[2]["item"] == events[3]["item"] == item
    assert events[-1]["response"]["usage"] == builders.USAGE
    assert json.dumps(events).count("All is well") == 3


def test_a_failure_says_nothing_of_the_text() -> None:
    failure = builders.failed("server_is_overloaded", "Too much.")
    failure["response"]["output"] = [message("half of it")]
    events = read([*builders.stream(message("half of it"))[:-1], failure])
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"] == "Too much."
    assert "half" not in json.dumps(events)


def test_what_was_cut_off_says_so() -> None:
    details = {"reason": "max_output_tokens"}
    events = read(builders.stream(message("All is"), end="incomplete", incomplete_details=details))
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    assert response["status"] == "completed"
    assert response["incomplete_details"] is None
    sealed = response["output"][0]["encrypted_content"]
    assert sealed.startswith("sealed:All is\n\n[The summary ends here")


@pytest.mark.parametrize(
    "items",
    [[], [reasoning("hm")], [message("  ")], [refusal("No.")], [function_call("c", "shell", {})]],
)
def test_no_summary(items: list[Item]) -> None:
    with pytest.raises(ProtocolError, match="answered without one"):
        read(builders.stream(*items))


@pytest.mark.parametrize("output", [None, "odd", [None], [{"type": "message", "content": None}]])
def test_an_odd_output_is_no_summary(output: Any) -> None:
    with pytest.raises(ProtocolError):
        summary_of({"status": "completed", "output": output})


def test_what_was_stopped_for_what_it_says_is_no_summary() -> None:
    stopped = {"output": [message("All")], "incomplete_details": {"reason": "content_filter"}}
    with pytest.raises(ProtocolError, match="content_filter"):
        summary_of(stopped)
