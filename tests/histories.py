"""What clients make of a stream, and what may be done to the history that they send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sse import parse_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.builders import Event, Item

CLIENT_CALLS = ("function_call", "custom_tool_call")


def readable(data: bytes) -> list[Event]:
    """Return the events of a stream up to its last whole one; none of a framing that is its own."""
    data = b"".join(data.rpartition(b"\n\n")[:2])
    if b"\r" in data or data.startswith(b"\xef"):
        return []
    return [event for _, event in parse_stream(data, foreign=True)]


def kept(events: Sequence[Event]) -> list[Item]:
    """Return the items that a client has of these events: those that were done."""
    return [e["item"] for e in events if e.get("type") == "response.output_item.done"]


def answered(items: Sequence[Item]) -> list[Item]:
    """Return the outputs with which a client goes on after its own calls."""
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"}
        for item in items
        if item["type"] in CLIENT_CALLS and item.get("call_id")
    ]


def only_whole_pairs_came_in(before: Sequence[Item], after: Sequence[Item]) -> list[Item]:
    """Check what holds for any history: nothing of it went, and no call came without its output.

    Returns:
        The items that came in.
    """
    rest = iter(after)
    added: list[Item] = []
    for item in before:
        for other in rest:
            if _told(other) == _told(item):
                break
            added.append(other)
        else:
            raise AssertionError(f"{item} is gone")
    added += rest
    calls = [one["call_id"] for one in added if one["type"] in CLIENT_CALLS]
    outputs = [one["call_id"] for one in added if one["type"].endswith("_output")]
    assert sorted(calls) == sorted(outputs) == sorted(set(calls)), (calls, outputs)
    return added


def _told(item: Item) -> Item:
    """Return by what an item is the same before and behind the proxy: all but its ciphertext."""
    return {key: value for key, value in item.items() if key not in ("id", "encrypted_content")}
