"""Events as providers send them: items, streams of items, framings. Pure.

A test says what happened in one line and changes what it is about::

    stream(recall_call("c1", {"query": "x"}), response_id="resp_A", usage=usage(100, 10))
    stream(message("hi"), sparse=True)
    body(stream(message("hi")), Framing(event=False, newline=b"\\r\\n"))

``public`` streams have the full lifecycle of the public API; ``sparse`` ones are what Codex
backends were seen to send: items only as ``output_item.done``, no numbers, an empty output.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Event = dict[str, Any]
Item = dict[str, Any]

CREATED_AT: Final = 1_790_000_000
MODEL: Final = "gpt-test"
PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "reasoning": "rs",
}
CLIENT_TOOL: Final = {
    "type": "function",
    "name": "shell",
    "description": "Run a command.",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
    "strict": True,
}


# ---------------------------------------------------------------------------------- requests


def request(*items: object, text: str = "hello", **members: object) -> dict[str, Any]:
    """Return a streamed request with one client tool; ``None`` as a member leaves it out."""
    whole: dict[str, object] = {
        "model": MODEL,
        "instructions": "Be brief.",
        "input": list(items) or [user(text)],
        "tools": [CLIENT_TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "store": False,
        "stream": True,
    } | members
    return {key: value for key, value in whole.items() if value is not None}


def user(text: str) -> Item:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


def output(call_id: str, text: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


# ------------------------------------------------------------------------------------- items


def item_id(type_: str, *seed: str) -> str:
    """Return an id as providers make them, always the same for the same item."""
    digest = hashlib.sha256("\0".join((type_, *seed)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{PREFIXES[type_]}_{digest[:48]}"


def message(text: str, *, id_: str | None = None, status: str = "completed") -> Item:
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    return {
        "id": id_ or item_id("message", text),
        "type": "message",
        "status": status,
        "content": [part],
        "role": "assistant",
    }


def refusal(text: str) -> Item:
    return message(text) | {"content": [{"type": "refusal", "refusal": text}]}


def function_call(
    call_id: str, name: str, arguments: Mapping[str, Any] | str, *, id_: str | None = None
) -> Item:
    return {
        "id": id_ or item_id("function_call", call_id),
        "type": "function_call",
        "status": "completed",
        "arguments": arguments if isinstance(arguments, str) else compact(arguments),
        "call_id": call_id,
        "name": name,
    }


def recall_call(call_id: str, arguments: Mapping[str, Any] | str) -> Item:
    return function_call(call_id, "recall", arguments)


def custom_call(call_id: str, name: str, text: str) -> Item:
    return {
        "id": item_id("custom_tool_call", call_id),
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": call_id,
        "input": text,
        "name": name,
    }


def reasoning(summary: str, *, encrypted: str | None = None) -> Item:
    whole = {
        "id": item_id("reasoning", summary),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": summary}] if summary else [],
    }
    return whole if encrypted is None else whole | {"encrypted_content": encrypted}


# --------------------------------------------------------------------------- events of an item


def item_events(item: Item, index: int) -> list[Event]:
    """Return one item's events as the public API sends them, without sequence numbers."""
    if item["type"] == "message":
        middle = _part_events(item, index)
    elif item["type"] == "reasoning":
        middle = _summary_events(item, index)
    elif item["type"] in _ARGUMENTS:
        middle = _argument_events(item, index)
    else:
        middle = []
    added = {"type": "response.output_item.added", "output_index": index, "item": opened(item)}
    return [added, *middle, item_done(item, index)]


def item_done(item: Item, index: int | None = None) -> Event:
    """Return the finished item's event; without an index as sparse streams have it."""
    done: Event = {"type": "response.output_item.done"}
    return done | ({} if index is None else {"output_index": index}) | {"item": item}


def opened(item: Item) -> Item:
    """Return an item as its ``added`` event has it: started and empty."""
    empty = {"content": [], "summary": [], "arguments": "", "input": "", "status": "in_progress"}
    return {key: empty.get(key, value) for key, value in item.items()}


def without(event: Event, *keys: str) -> Event:
    return {key: value for key, value in event.items() if key not in keys}


def plain(item: Item) -> Item:
    """Return an item without its ciphertext: what a client never asked for, or came anew."""
    return without(item, "encrypted_content")


def nameless(events: Sequence[Event], *, arguments_only_in_done: bool = False) -> list[Event]:
    """Announce calls with an empty name and call id, as sparse Codex streams do.

    The name then stands in ``output_item.done`` only.
    """
    kept = []
    for event in events:
        if event["type"] == "response.output_item.added" and "call_id" in event["item"]:
            kept.append(event | {"item": event["item"] | {"name": "", "call_id": ""}})
        elif not (arguments_only_in_done and event["type"].endswith("_call_arguments.delta")):
            kept.append(event)
    return kept


_ARGUMENTS: Final = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


def _argument_events(item: Item, index: int) -> list[Event]:
    kind, key = _ARGUMENTS[item["type"]]
    at = {"item_id": item["id"], "output_index": index}
    deltas = [{"type": f"{kind}.delta", "delta": piece} | at for piece in pieces(item[key])]
    return [*deltas, {"type": f"{kind}.done", key: item[key]} | at]


def _part_events(item: Item, index: int) -> list[Event]:
    events: list[Event] = []
    for number, part in enumerate(item["content"]):
        at = {"content_index": number, "item_id": item["id"], "output_index": index}
        key = "refusal" if part["type"] == "refusal" else "text"
        kind = f"response.{part['type']}"
        extra: Event = {"logprobs": []} if key == "text" else {}
        events += [
            {"type": "response.content_part.added"} | at | {"part": part | {key: ""}},
            *({"type": f"{kind}.delta", "delta": t} | at | extra for t in pieces(part[key])),
            {"type": f"{kind}.done"} | at | {key: part[key]} | extra,
            {"type": "response.content_part.done"} | at | {"part": part},
        ]
    return events


def _summary_events(item: Item, index: int) -> list[Event]:
    events: list[Event] = []
    for number, part in enumerate(item["summary"]):
        at = {"summary_index": number, "item_id": item["id"], "output_index": index}
        kind = "response.reasoning_summary"
        events += [
            {"type": f"{kind}_part.added", "part": part | {"text": ""}} | at,
            *({"type": f"{kind}_text.delta", "delta": t} | at for t in pieces(part["text"])),
            {"type": f"{kind}_text.done", "text": part["text"]} | at,
            {"type": f"{kind}_part.done", "part": part} | at,
        ]
    return events


def pieces(text: str) -> list[str]:
    """Cut a text into deltas: at most four characters each, never across a word's end."""
    return re.findall(r"\S{1,4}\s?|\s", text)


# ----------------------------------------------------------------------------------- streams


def usage(
    input_tokens: int, output_tokens: int, *, cached: int = 0, reasoning_tokens: int = 0
) -> dict[str, Any]:
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": input_tokens + output_tokens,
    }


USAGE: Final = usage(12, 3)


def response(
    response_id: str, status: str, *, echo: Mapping[str, Any] | None = None, **members: object
) -> dict[str, Any]:
    """Return a response object; ``echo`` is the request whose members the provider repeats."""
    asked = echo or {}
    completed_at = CREATED_AT + 1 if status == "completed" else None
    return {
        "id": response_id,
        "object": "response",
        "created_at": CREATED_AT,
        "status": status,
        "background": False,
        "completed_at": completed_at,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.get("instructions"),
        "max_output_tokens": asked.get("max_output_tokens"),
        "model": asked.get("model", MODEL),
        "output": [],
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "previous_response_id": asked.get("previous_response_id"),
        "reasoning": {"effort": "medium", "summary": None},
        "store": asked.get("store", True),
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        "top_p": 0.98,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
    } | members


def stream(
    *items: Item,
    response_id: str = "resp_A",
    usage: Mapping[str, Any] | None = USAGE,
    echo: Mapping[str, Any] | None = None,
    end: str = "completed",
    sparse: bool = False,
    **members: object,
) -> list[Event]:
    """Return a whole stream, items one after the other.

    Args:
        items: Finished items in output order.
        response_id: The provider's id.
        usage: Usage of the terminal.
        echo: The request that is answered, for the members that providers repeat.
        end: The terminal's status: completed, incomplete or failed.
        sparse: Items only as done events without index, empty output, no numbers.
        members: Further members of the terminal's response object.
    """
    if sparse:
        inner = [item_done(item) for item in items]
        members = {"output": []} | members
    else:
        inner = list(chain.from_iterable(item_events(item, n) for n, item in enumerate(items)))
        members = {"output": list(items)} | members
    events = [
        *opening(response_id, echo=echo),
        *inner,
        terminal(response_id, end, echo=echo, usage=usage, **members),
    ]
    return events if sparse else numbered(events)


def opening(response_id: str = "resp_A", *, echo: Mapping[str, Any] | None = None) -> list[Event]:
    """Return ``created`` and ``in_progress``."""
    begun = response(response_id, "in_progress", echo=echo)
    return [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]


def terminal(
    response_id: str = "resp_A",
    status: str = "completed",
    *,
    echo: Mapping[str, Any] | None = None,
    **members: object,
) -> Event:
    """Return ``response.completed``, ``.incomplete`` or ``.failed``."""
    ended = response(response_id, status, echo=echo, **members)
    return {"type": f"response.{status}", "response": ended}


def failed(
    code: str,
    text: str = "The provider failed.",
    *,
    response_id: str = "resp_A",
    echo: Mapping[str, Any] | None = None,
    usage: Mapping[str, Any] | None = None,
) -> Event:
    """Return the provider's own ``response.failed``."""
    error = {"code": code, "message": text}
    return terminal(response_id, "failed", echo=echo, error=error, usage=usage)


def interleaved(*runs: Sequence[Event]) -> list[Event]:
    """Return several items' events in turns, each run in its own order."""
    rows = zip_longest(*runs)
    return [event for row in rows for event in row if event is not None]


def numbered(events: Iterable[Event], start: int = 0) -> list[Event]:
    """Give events their sequence numbers."""
    return [event | {"sequence_number": start + n} for n, event in enumerate(events)]


# ----------------------------------------------------------------------------------- framing


@dataclass(frozen=True, slots=True)
class Framing:
    """How a provider writes an event down; the default is what the public API does."""

    event: bool = True
    """Whether there are ``event:`` lines."""
    newline: bytes = b"\n"
    space: bool = True
    """Whether a space follows the colon."""
    split: bool = False
    """One JSON over several data lines, cut where whitespace may stand."""
    comment: bool = False
    """A comment in front of each event."""
    fields: bool = False
    """``id:`` and ``retry:`` lines."""
    bom: bool = False
    last_blank: bool = True
    """Whether the last event is closed by its blank line."""
    done_marker: bool = False
    """Whether ``[DONE]`` follows."""


PLAIN: Final = Framing()
FRAMINGS: Final = {
    "plain": PLAIN,
    "no event lines": Framing(event=False, comment=True, done_marker=True),
    "crlf": Framing(newline=b"\r\n"),
    "cr": Framing(newline=b"\r"),
    "no space": Framing(space=False),
    "several data lines": Framing(split=True),
    "comments": Framing(comment=True),
    "id and retry": Framing(fields=True),
    "bom": Framing(bom=True),
    "no last blank line": Framing(last_blank=False),
    "all at once": Framing(
        newline=b"\r\n", space=False, split=True, comment=True, fields=True, bom=True
    ),
}


def frame(event: Event, framing: Framing = PLAIN, number: int = 0) -> bytes:
    """Return one event's bytes with its blank line."""
    colon = b": " if framing.space else b":"
    lines = []
    if framing.comment:
        lines += [b": still here"]
    if framing.fields:
        lines += [b"id" + colon + str(number).encode(), b"retry" + colon + b"1500"]
    if framing.event:
        lines.append(b"event" + colon + event["type"].encode())
    data = compact(event).encode("utf-8", "surrogatepass")
    lines += [b"data" + colon + line for line in (_split(data) if framing.split else [data])]
    return framing.newline.join([*lines, b"", b""])


def frames(events: Sequence[Event], framing: Framing = PLAIN) -> list[bytes]:
    """Return each event's bytes; joined they are the body of an answer."""
    whole = [frame(event, framing, number) for number, event in enumerate(events)]
    if framing.done_marker:
        whole.append(b"data: [DONE]" + framing.newline * 2)
    if framing.bom:
        whole[0] = b"\xef\xbb\xbf" + whole[0]
    if not framing.last_blank:
        whole[-1] = whole[-1].removesuffix(framing.newline)
    return whole


def body(events: Sequence[Event], framing: Framing = PLAIN) -> bytes:
    """Return the bytes of a whole answer."""
    return b"".join(frames(events, framing))


def compact(value: object) -> str:
    """Return JSON as providers write it: no spaces, text as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _split(data: bytes) -> list[bytes]:
    """Cut an object's text behind its opening brace, where JSON allows a line feed."""
    return [data[:1], data[1:]]
