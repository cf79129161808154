"""Compactions of ours that come back: the summary in the place of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline import jsontext
from pipeline.compaction import summary_message
from pipeline.errors import RequestError
from pipeline.history import ItemEdit
from pipeline.request import input_items
from pipeline.restore import restore
from pipeline.sealing import SEALED, unseal

if TYPE_CHECKING:
    from typing import Any

    from pipeline.request import Request


def expand_compactions(request: Request, key: bytes, tenant: str) -> Request:
    """Put the summaries of our own compactions where those stand; leave all others alone.

    Raises:
        RequestError: One looks like ours, and is not, or was made for somebody else.
    """
    edits = [
        _expanded(index, item, unseal(key, tenant, item["encrypted_content"]))
        for index, item in enumerate(input_items(request.body))
        if isinstance(item, dict) and item.get("type") == "compaction" and _is_ours(item)
    ]
    return restore(request, edits)


def _is_ours(item: dict[str, Any]) -> bool:
    sealed = item.get("encrypted_content")
    return isinstance(sealed, str) and sealed.startswith(SEALED)


def _expanded(index: int, item: dict[str, Any], summary: str | None) -> ItemEdit:
    if summary is None:
        raise RequestError(
            f"The compaction at input[{index}] was not made by this proxy for you, or was changed "
            "on the way, so it can't be read. Leave it out, or send the conversation itself.",
            code="invalid_encrypted_content",
        )
    message = summary_message(summary)
    members = tuple((name, jsontext.dumps(value)) for name, value in message.items())
    return ItemEdit(index, members, tuple(name for name in item if name not in message))
