"""What must hold for every stream that we send, said once more without our own code."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.builders import Event, Item
    from tests.e2e.client import Exchange, Frame

TERMINALS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_DETAILS: Final = {
    "input_tokens_details": "cached_tokens",
    "output_tokens_details": "reasoning_tokens",
}
_WRITTEN: Final = re.compile(rb"event: ([^\r\n]+)\ndata: ([^\r\n]+)\n\n")


def received(exchange: Exchange) -> list[Event]:
    """Read a stream to its end and return its events, which must be well-formed and ours."""
    assert exchange.status == 200, exchange.body()
    assert exchange.headers["content-type"].startswith("text/event-stream")
    frames = list(exchange.frames())
    assert exchange.ended
    events = written(frames)
    well_formed(events)
    return events


def written(frames: Iterable[Frame]) -> list[Event]:
    """Return the events of frames in the one form that every client reads.

    Comments may stand before ``response.created`` only: later they keep no client waiting.
    """
    events: list[Event] = []
    for frame in frames:
        if frame.is_comment:
            assert not events, "a comment after the first event"
            continue
        match = _WRITTEN.fullmatch(frame.raw)
        assert match, f"not in the form that every client reads: {frame.raw[:200]!r}"
        event = json.loads(match[2])
        assert event["type"].encode() == match[1]
        events.append(event)
    return events


def well_formed(events: Sequence[Event]) -> None:
    """Check lifecycle, numbers, items and usage of a whole stream."""
    _one_lifecycle(events)
    _numbers(events)
    finished = _items(events)
    terminal = events[-1]["response"]
    if terminal["status"] == "completed":
        assert ids(terminal["output"]) == ids(finished)
    _usage(terminal.get("usage"))


def _one_lifecycle(events: Sequence[Event]) -> None:
    types = [event["type"] for event in events]
    assert types[0] == "response.created", types[:3]
    assert types.count("response.created") == 1
    assert [t for t in types if t in TERMINALS] == types[-1:]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert events[-1]["response"]["status"] == events[-1]["type"].removeprefix("response.")


def _numbers(events: Sequence[Event]) -> None:
    """Check that numbers go up by one, or that there are none; a vendor's events have none."""
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    count = sum(event["type"].startswith(("response.", "error")) for event in events)
    assert numbers == list(range(len(numbers))), numbers
    assert not numbers or len(numbers) >= count


def _items(events: Sequence[Event]) -> list[Item]:
    """Check that items come in order, once, and are all done; return them by index."""
    opened: dict[int, str] = {}
    done: dict[int, Item] = {}
    for event in events:
        index = event.get("output_index")
        if index is None:
            continue
        assert index not in done, f"{event['type']} after the item's done"
        if event["type"] == "response.output_item.added":
            assert index == len(opened) == max(opened, default=-1) + 1
            assert event["item"]["id"] not in opened.values()
            opened[index] = event["item"]["id"]
        elif event["type"] == "response.output_item.done":
            assert opened.setdefault(index, event["item"]["id"]) == event["item"]["id"]
            done[index] = event["item"]
        else:
            assert event.get("item_id", opened[index]) == opened[index]
    assert done.keys() == opened.keys() == set(range(len(opened)))
    _texts(events, done)
    return [done[index] for index in sorted(done)]


def _texts(events: Sequence[Event], done: dict[int, Item]) -> None:
    """Check that text deltas add up to the finished item, where there are any."""
    for index, item in done.items():
        deltas = [
            event["delta"]
            for event in events
            if event["type"] == "response.output_text.delta" and event["output_index"] == index
        ]
        if deltas and item.get("status") != "incomplete":
            assert "".join(deltas) == text_of(item)


def _usage(usage: dict[str, Any] | None) -> None:
    if usage is None:
        return
    counts = [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]]
    for details, name in _DETAILS.items():
        if usage[details] is not None:
            counts.append(usage[details][name])
    assert all(type(count) is int for count in counts), usage
    assert counts[0] + counts[1] == counts[2]


def ids(items: Iterable[Item]) -> list[str]:
    return [item["id"] for item in items]


def text_of(item: Item) -> str:
    return "".join(part.get("text", "") for part in item.get("content", []))


def answer_of(events: Sequence[Event]) -> str:
    """Return the text of the final output."""
    return "".join(text_of(item) for item in events[-1]["response"]["output"])


def knows_nothing_of(data: bytes, *words: str) -> None:
    """Check that none of the words, nor the hidden tool's name, is in what a client received."""
    for word in ("recall", *words):
        assert word.encode() not in data, word


def figures(usage: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return input, output, total and cached tokens."""
    cached = usage["input_tokens_details"]["cached_tokens"]
    return usage["input_tokens"], usage["output_tokens"], usage["total_tokens"], cached


def only_inserts(before: bytes, after: bytes) -> bool:
    """Whether one insertion makes the one text the other, so that its start stays as it was."""
    pairs = enumerate(zip(before, after, strict=False))
    same = next((n for n, (old, new) in pairs if old != new), min(len(before), len(after)))
    return after.endswith(before[same:])
