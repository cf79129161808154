"""The one line that tells a client that memory was consulted, where its user asks for that.

It is a message of our own between what the provider said before a hidden call and what it says
after it. The provider never said it: so it is taken out again when it comes back in a history, and
the provider's prompt cache keeps its prefix. It is known by the id that we minted, or, from clients
that strip ids, by its words alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.identity import is_minted_id, mint_id
from pipeline.items import item_type
from pipeline.request import input_items
from pipeline.restore import without_items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.jsonspans import Json
    from pipeline.options import TurnOptions
    from pipeline.request import Request


class Anchor:
    """The line of a turn: shown once, where its hidden calls ask for one.

    Args:
        options: What is fixed for the turn.
    """

    __slots__ = ("_line", "_wanted")

    def __init__(self, options: TurnOptions) -> None:
        self._line: str | None = None
        # A chat client's text is one, and JSON of a schema must parse: there is no place for it.
        self._wanted = options.form is None and not options.hold_text

    def hear(self, line: str | None) -> None:
        """Take what a finished call asks for; the first line counts."""
        self._line = self._line or line

    def take(self) -> str | None:
        """Return the line if it is to be shown now; never again after that."""
        if not self._wanted or not self._line:
            return None
        self._wanted = False
        return self._line


def anchor_item(key: bytes, response_id: str, text: str) -> dict[str, Any]:
    """Return the message that shows a line.

    Args:
        key: Secret of the installation.
        response_id: The id of the client's response.
        text: The line.
    """
    return {
        "id": mint_id(key, "msg", f"{response_id}/anchor", 0),
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [_part(text)],
    }


def anchor_events(item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """Yield the events with which a stream shows a message whole, without their numbers.

    Args:
        item: The message.
        index: Its place in the client's output.
    """
    part = item["content"][0]
    text = part["text"]
    at = {"item_id": item["id"], "output_index": index, "content_index": 0}
    begun = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    yield {"type": "response.content_part.added", **at, "part": _part("")}
    yield {"type": "response.output_text.delta", **at, "delta": text, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def without_anchors(request: Request, key: bytes, text: str) -> Request:
    """Return a request without the lines of ours that its client sent back.

    Args:
        request: The client's request.
        key: Secret of the installation.
        text: The line.
    """
    items = input_items(request.body)
    found = [
        at
        for at, item in enumerate(items)
        if isinstance(item, dict)
        and item.get("role") == "assistant"
        and _is_anchor(item, key, text)
    ]
    return without_items(request, found) if found else request


def _is_anchor(item: dict[str, Any], key: bytes, text: str) -> bool:
    if item_type(item) != "message" or _words(item.get("content")) != text:
        return False
    return item.get("id") is None or is_minted_id(key, item["id"])


def _words(content: Json) -> Json:
    """Return the text of a message that has one only."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        return content[0].get("text")
    return content
