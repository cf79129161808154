"""What a chat client makes of the bytes that it gets, said without any code of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Completion:
    """A stream of chunks, put together as the SDKs do it."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    content: str = ""
    refusal: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False


def read_chunks(data: bytes) -> Completion:
    """Read a whole stream, which must be in the form that every client reads."""
    read = Completion()
    for frame in data.split(b"\n\n")[:-1]:
        if frame.startswith(b":"):
            continue
        assert not read.done, "something behind [DONE]"
        assert read.error is None, "something behind an error"
        assert frame.startswith(b"data: "), frame
        assert b"\n" not in frame, frame
        payload = frame.removeprefix(b"data: ")
        if payload == b"[DONE]":
            read.done = True
            continue
        _take(read, json.loads(payload))
    assert data.endswith(b"\n\n") or not data
    return read


def _take(read: Completion, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        read.error = chunk["error"]
        return
    read.chunks.append(chunk)
    read.usage = chunk.get("usage") or read.usage
    for choice in chunk["choices"]:
        assert not read.reasons, "a choice behind its finish"
        delta = choice["delta"]
        assert ("role" in delta) == (len(read.chunks) == 1), "one role, first"
        read.content += delta.get("content") or ""
        read.refusal += delta.get("refusal") or ""
        read.reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            _take_call(read, call)
        if choice["finish_reason"] is not None:
            read.reasons.append(choice["finish_reason"])


def _take_call(read: Completion, delta: dict[str, Any]) -> None:
    index = delta["index"]
    if index not in read.calls:
        assert index == len(read.calls), "calls come in order, without a gap"
        read.calls[index] = {"id": delta["id"], "type": delta["type"], "name": "", "said": ""}
    call = read.calls[index]
    assert delta.get("id", call["id"]) == call["id"]
    said = delta.get("function") or delta.get("custom") or {}
    call["name"] += said.get("name", "")
    call["said"] += said.get("arguments", "") or said.get("input", "")
