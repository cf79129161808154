"""What the provider says in every scenario: events as providers send them, made beforehand.

The measure of all is one text turn of 308 events, about 125 KB. The other turns vary it: one JSON
body, a call with an argument of 1 MiB, code and a call's arguments with a quote in every third
delta, a hidden call between two halves of the text, and the same text with an event missing, so
that every later one has to be renumbered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

EVENTS: Final = 308
BODY_BYTES: Final = 125_000
STAMP: Final = b"T%016d"
"""Where a paced provider writes its clock in nanoseconds: same width, so same bytes around it."""
ARGUMENT_BYTES: Final = 1 << 20
ARGUMENT_DELTA: Final = 1024

_DELTAS: Final = EVENTS - 8
_WORDS: Final = ("under", "the", "voice", "a", "model", "asks", "its", "memory", "and", "answers")
_CODE: Final = ("def", "name", '("', "self", '", ', "key", "):\n   ", "return", ' "value"', "\n")
_COMMAND: Final = (
    '{"command":["bash","-lc","sed -n 1,80p src/main.py | grep -n import | sort | uniq -c"],'
    '"workdir":"/home/user/projects/voice/src"} '
)
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

Event = tuple[str, dict[str, Any]]


def request_body(model: str = "bench", *, stream: bool = True) -> bytes:
    """Return a request with a client tool, so that a proxy with a hidden tool declares it.

    Args:
        model: What it asks for: the provider chooses its answer by it.
        stream: Its stream flag.
    """
    return orjson.dumps(
        {
            "model": model,
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
            "stream": stream,
        }
    )


def frames(events: int = EVENTS) -> list[bytes]:
    """Return the SSE frames of the text turn, padded to what ``BODY_BYTES`` are for 308."""
    return encode(_padded(events))


def renumbered() -> list[bytes]:
    """Return the text turn without its ``output_item.added``, which the proxy has to put in."""
    return encode([each for each in _padded(EVENTS) if each[0] != "response.output_item.added"])


def _padded(events: int) -> list[Event]:
    bare = encode(text_turn(_stamped(b""), events - 8))
    padding = (BODY_BYTES * events // EVENTS - sum(map(len, bare))) // (events - 8)
    return text_turn(_stamped(b"x" * padding), events - 8)


def big(argument: int = ARGUMENT_BYTES) -> list[bytes]:
    """Return a turn that calls the client's tool with an argument of so many bytes."""
    piece = "0123456789abcdef" * (ARGUMENT_DELTA // 16)
    text = '{"command":["' + piece * (argument // ARGUMENT_DELTA) + '"]}'
    return encode(_turn([call("fc_" + "3c" * 24, "call_big", "shell", text)]))


def code() -> list[bytes]:
    """Return a turn with as many events, of code and arguments of a call, full of quotes."""
    words = _DELTAS // 2
    text = message("msg_" + "5a" * 24, "x" * 12, words, _CODE)
    rest = _DELTAS - 3 - words
    arguments = (_COMMAND * rest)[: 5 * rest]
    return encode(_turn([text, call("fc_" + "3c" * 24, "call_code", "shell", arguments, 5)]))


def recall() -> tuple[list[bytes], list[bytes]]:
    """Return a turn with a hidden call after half of its text, and its continuation."""
    pad, half = "x" * 250, _DELTAS // 2
    hidden = call("fc_" + "4d" * 24, "call_hidden", "recall", '{"query":"decision last week"}')
    first = _turn([message("msg_" + "5a" * 24, pad, half), hidden])
    second = _turn([message("msg_" + "6b" * 24, pad, half)], identity="resp_" + "8d" * 24)
    return encode(first), encode(second)


def answer() -> bytes:
    """Return the JSON body of a turn whose text is as long as the stream's events are."""
    text = " ".join(_WORDS) * (BODY_BYTES // len(" ".join(_WORDS)))
    return orjson.dumps(_response("completed", [_message("msg_" + "5a" * 24, text, "completed")]))


def encode(events: list[Event]) -> list[bytes]:
    """Return events as frames, numbered."""
    return [
        b"event: %b\ndata: %b\n\n"
        % (name.encode(), orjson.dumps({"type": name, **event, "sequence_number": number}))
        for number, (name, event) in enumerate(events)
    ]


def text_turn(obfuscation: str, deltas: int = _DELTAS) -> list[Event]:
    """Return the events of a turn with one message of so many deltas."""
    return _turn([message("msg_" + "5a" * 24, obfuscation, deltas)])


def message(
    identity: str, obfuscation: str, deltas: int, of: Sequence[str] = _WORDS
) -> tuple[list[Event], dict[str, Any]]:
    """Return the events of one message, without an index, and the item that it is at its end."""
    words = [f" {of[i % len(of)]}" for i in range(deltas)]
    place = {"item_id": identity, "output_index": 0, "content_index": 0}
    said = "".join(words)
    text = {"type": "output_text", "text": said, "annotations": [], "logprobs": []}
    started = {**_message(identity, "", "in_progress"), "content": []}
    ended = _message(identity, said, "completed")
    rest = {"logprobs": [], "obfuscation": obfuscation}
    events: list[Event] = [
        ("response.output_item.added", {"output_index": 0, "item": started}),
        ("response.content_part.added", place | {"part": text | {"text": ""}}),
        *(("response.output_text.delta", place | {"delta": word} | rest) for word in words),
        ("response.output_text.done", place | {"text": said, "logprobs": []}),
        ("response.content_part.done", place | {"part": text}),
        ("response.output_item.done", {"output_index": 0, "item": ended}),
    ]
    return events, ended


def call(
    identity: str, call_id: str, name: str, arguments: str, delta: int = ARGUMENT_DELTA
) -> tuple[list[Event], dict[str, Any]]:
    """Return the events of one function call, and the item that it is at its end."""
    item = {"id": identity, "type": "function_call", "call_id": call_id, "name": name}
    started = item | {"arguments": "", "status": "in_progress"}
    ended = item | {"arguments": arguments, "status": "completed"}
    place = {"item_id": identity, "output_index": 0}
    deltas = [arguments[at : at + delta] for at in range(0, len(arguments), delta)]
    kind = "response.function_call_arguments"
    events: list[Event] = [
        ("response.output_item.added", {"output_index": 0, "item": started}),
        *((f"{kind}.delta", place | {"delta": each}) for each in deltas),
        (f"{kind}.done", place | {"name": name, "arguments": arguments}),
        ("response.output_item.done", {"output_index": 0, "item": ended}),
    ]
    return events, ended


def _turn(
    items: list[tuple[list[Event], dict[str, Any]]], identity: str = "resp_" + "7c" * 24
) -> list[Event]:
    """Return the events of a whole response."""
    begun = {"response": _response("in_progress", []) | {"id": identity}}
    ended = _response("completed", [item for _, item in items]) | {"id": identity}
    middle = [
        (name, {**event, "output_index": index})
        for index, (events, _) in enumerate(items)
        for name, event in events
    ]
    return [
        ("response.created", begun),
        ("response.in_progress", begun),
        *middle,
        ("response.completed", {"response": ended}),
    ]


def turn(*items: tuple[list[Event], dict[str, Any]]) -> list[bytes]:
    """Return the frames of a response with these items."""
    return encode(_turn(list(items)))


def _stamped(padding: bytes) -> str:
    return (STAMP % 0 + padding).decode()


def _message(identity: str, text: str, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": identity, "type": "message", "role": "assistant", "status": status}
    return item | {"content": [part]}


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
