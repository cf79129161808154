"""Server-sent events as a client of ours reads them, without any code of ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.builders import Event


def parse_stream(data: bytes) -> list[tuple[str | None, Event]]:
    """Return name and value of every event; comments are passed over.

    Only the plain form is read: LF, one data line, a blank line after each event.
    """
    blocks = data.split(b"\n\n")
    assert blocks.pop() == b"", "the last event has no blank line"
    events = []
    for block in blocks:
        name, value = None, None
        for line in block.split(b"\n"):
            field, colon, text = line.partition(b": ")
            assert colon, line
            match field:
                case b"event":
                    assert name is None
                    name = text.decode()
                case b"data":
                    assert value is None
                    value = json.loads(text)
                case b"":
                    pass
                case _:
                    raise AssertionError(f"a field that we never write: {line!r}")
        if value is not None:
            events.append((name, value))
    return events
