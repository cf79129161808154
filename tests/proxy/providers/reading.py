"""Answers of other dialects read by their provider alone, and held to what we send."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pipeline.lifecycle import Dialect as Habits
from pipeline.reader import StreamMode
from pipeline.request import read_request
from pipeline.sse import Fragment, Frame
from proxy.validate_stream import inspect, recording
from tests import builders
from tests.builders import compact
from tests.playbook import BUDGETS, LIMITS, whole
from tests.sent import check_sent

if TYPE_CHECKING:
    from pipeline.limits import Limits
    from pipeline.reader import Reader
    from tests.builders import Event, Item
    from tests.dialects import Dialect
    from tests.playbook import Chunking

STREAMED: Final = builders.request()


def reader_of(
    dialect: Dialect,
    request: dict[str, Any] | None = None,
    *,
    mode: StreamMode = StreamMode.SSE,
    limits: Limits = LIMITS,
    observed: bool = False,
    form: str | None = None,
) -> Reader:
    """Return the reader of an answer whose head has come."""
    asked = read_request(compact(request or STREAMED).encode("utf-8", "surrogatepass"))
    reader = dialect.provider.reader(
        asked,
        mode,
        limits,
        observed=observed,
        phase="principal",
        redact=lambda text: text.replace("sk-secret", "[redacted]"),
        created_at=7,
    )
    reader.head(form or (dialect.form if mode is StreamMode.SSE else "application/json"))
    return reader


def read(
    dialect: Dialect,
    body: bytes,
    request: dict[str, Any] | None = None,
    *,
    chunking: Chunking = whole,
    mode: StreamMode = StreamMode.SSE,
    limits: Limits = LIMITS,
) -> list[Event]:
    """Read a whole answer; its events must be such as no client and no mode finds fault with."""
    reader = reader_of(dialect, request, mode=mode, limits=limits)
    frames = [frame for piece in chunking(body) for frame in reader.feed(piece)]
    frames += reader.finish()
    assert reader.failure is None
    data = b"".join(frame.raw for frame in frames)
    for frame in frames:
        assert isinstance(frame, Frame)
        assert frame.sound
        assert json.loads(frame.data or b"")["type"] == frame.event
    faultless(data)
    return check_sent(data)


def encoded(
    dialect: Dialect, request: dict[str, Any], mode: StreamMode = StreamMode.SSE
) -> dict[str, Any]:
    """Return the request in a dialect, parsed."""
    asked = read_request(compact(request).encode("utf-8", "surrogatepass"))
    body = json.loads(dialect.provider.encode(asked, mode).body)
    assert isinstance(body, dict)
    return body


def drain(reader: Reader, body: bytes, chunking: Chunking = whole) -> list[Frame | Fragment]:
    """Give a reader a body to its end; what it raises comes out, also after other frames."""
    frames: list[Frame | Fragment] = []
    for piece in chunking(body):
        frames += reader.feed(piece)
        if reader.failure is not None:
            raise reader.failure
    return frames + reader.finish()


def opening(dialect: Dialect, body: bytes, text: str = "hi") -> bytes:
    """Return a streamed answer up to the event that has a text."""
    gap = b"\n" if dialect.kind == "ollama" else b"\n\n"
    frames = body.split(gap)
    until = next(n for n, frame in enumerate(frames, 1) if f'"{text}"'.encode() in frame)
    return gap.join(frames[:until]) + gap


def faultless(data: bytes) -> None:
    """Check that strict mode has nothing to say about a stream, and that it passes verbatim."""
    reports = list(inspect(recording(data, LIMITS), Habits.PUBLIC, LIMITS, BUDGETS))
    assert [list(report.findings) for report in reports] == [[]]
    assert reports[0].verbatim


def outcome(events: list[Event]) -> tuple[str, list[Item], dict[str, Any] | None]:
    """Return status, output and usage."""
    response = events[-1]["response"]
    return response["status"], response["output"], response["usage"]


def essence(item: Item) -> tuple[Any, ...]:
    """Return what an item says, whatever its ids are."""
    match item["type"]:
        case "message":
            return "message", [part.get("text") or part.get("refusal") for part in item["content"]]
        case "reasoning":
            return "reasoning", "".join(part["text"] for part in item["summary"])
        case "function_call":
            return item["type"], item.get("namespace"), item["name"], json.loads(item["arguments"])
        case "custom_tool_call":
            return item["type"], item.get("namespace"), item["name"], item["input"]
    return item["type"], item.get("arguments")


def essences(items: list[Item]) -> list[tuple[Any, ...]]:
    return [essence(item) for item in items]
