"""The stream that every scenario uses: one text turn of 308 events, about 125 KB."""

from __future__ import annotations

from typing import Any, Final

import orjson

EVENTS: Final = 308
BODY_BYTES: Final = 125_000
STAMP: Final = b"T%016d"
"""Where a paced provider writes its clock in nanoseconds: same width, so same bytes around it."""

_DELTAS: Final = EVENTS - 8
_WORDS: Final = ("under", "the", "voice", "a", "model", "asks", "its", "memory", "and", "answers")
_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "name": "shell",
    "description": "Run a command in the working directory and return what it printed.",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}},
        "required": ["command"],
        "additionalProperties": False,
    },
    "strict": True,
}
_ITEM_ID: Final = "msg_" + "5a" * 24


def request_body() -> bytes:
    """Return a request with a client tool, so that a proxy with a hidden tool declares it."""
    return orjson.dumps(
        {
            "model": "bench",
            "instructions": "Answer in one paragraph. " * 40,
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "What did we decide last week?"}],
                }
            ],
            "tools": [_TOOL],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "store": False,
            "stream": True,
        }
    )


def frames() -> list[bytes]:
    """Return the SSE frames of the response, padded to ``BODY_BYTES`` in all."""
    bare = _frames(_stamped(b""))
    padding = (BODY_BYTES - sum(map(len, bare))) // _DELTAS
    return _frames(_stamped(b"x" * padding))


def _stamped(padding: bytes) -> str:
    return (STAMP % 0 + padding).decode()


def _frames(obfuscation: str) -> list[bytes]:
    words = [f" {_WORDS[i % len(_WORDS)]}" for i in range(_DELTAS)]
    place = {"item_id": _ITEM_ID, "output_index": 0, "content_index": 0}
    text = {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": []}
    empty = text | {"text": ""}
    item = {"id": _ITEM_ID, "type": "message", "role": "assistant"}
    started = item | {"status": "in_progress", "content": []}
    ended = item | {"status": "completed", "content": [text]}
    begun: dict[str, Any] = {"response": _response("in_progress", [])}
    deltas = [{"delta": word, "logprobs": [], "obfuscation": obfuscation} for word in words]
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", begun),
        ("response.in_progress", begun),
        ("response.output_item.added", {"output_index": 0, "item": started}),
        ("response.content_part.added", place | {"part": empty}),
        *(("response.output_text.delta", place | delta) for delta in deltas),
        ("response.output_text.done", place | {"text": text["text"], "logprobs": []}),
        ("response.content_part.done", place | {"part": text}),
        ("response.output_item.done", {"output_index": 0, "item": ended}),
        ("response.completed", {"response": _response("completed", [ended])}),
    ]
    return [
        b"event: %b\ndata: %b\n\n"
        % (name.encode(), orjson.dumps({"type": name, **event, "sequence_number": number}))
        for number, (name, event) in enumerate(events)
    ]


def _response(status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    usage = {
        "input_tokens": 900,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": _DELTAS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 900 + _DELTAS,
    }
    return {
        "id": "resp_" + "7c" * 24,
        "object": "response",
        "created_at": 1790000000,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "Answer in one paragraph. " * 40,
        "max_output_tokens": None,
        "model": "bench",
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [_TOOL],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage if status == "completed" else None,
        "metadata": {},
    }
