"""Server-sent events as a client of ours reads them, without any code of ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.builders import Event


def parse_stream(data: bytes, *, foreign: bool = False) -> list[tuple[str | None, Event]]:
    """Return name and value of every event; comments, ``id:`` and ``retry:`` are passed over.

    Args:
        data: A whole stream: LF, at most one data line, a blank line after each event.
        foreign: Leave out named data that is not JSON.
    """
    blocks = data.split(b"\n\n")
    assert blocks.pop() in (b"", b"\n"), "the last event has no blank line"
    events = []
    for block in blocks:
        fields: dict[bytes, bytes] = {}
        for line in filter(None, block.split(b"\n")):
            name, _, value = line.partition(b":")
            assert name in (b"", b"event", b"data", b"id", b"retry"), line
            assert not name or name not in fields, block
            fields[name] = value.removeprefix(b" ")
        if b"data" not in fields:
            assert b"event" not in fields, "an event without data"
            continue
        name = fields.get(b"event")
        try:
            event = json.loads(fields[b"data"])
        except ValueError:
            assert foreign
            assert name, "data that no client can read"
            continue
        events.append((None if name is None else name.decode(), event))
    return events
