"""An event between its hop, which has accumulated it, and the client, which may see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pipeline.response import ItemState


class Accepted(NamedTuple):
    """An event that went through normalization, check and accumulation.

    Attributes:
        event: The parsed event, normalized.
        raw: The bytes of its frame, empty for a synthesized event.
        data: Its data as the upstream sent it; None for a synthesized event.
        changes: The members that normalization changed.
        verbatim: Whether the frame may go out as it came.
    """

    event: dict[str, Any]
    raw: bytes
    data: bytes | None
    changes: frozenset[str]
    verbatim: bool


def synthesized(event: dict[str, Any]) -> Accepted:
    """Return an event of ours, which no upstream has sent."""
    return Accepted(event, b"", None, frozenset(), verbatim=False)


def named(held: Accepted, item: ItemState | None) -> Accepted:
    """Give a held call its name and id, which came later: clients run a call as its done says."""
    value = held.event.get("item")
    known = {} if item is None else {"name": item.name, "call_id": item.call_id}
    missing = (
        {name: text for name, text in known.items() if text and not value.get(name)}
        if isinstance(value, dict)
        else {}
    )
    if not missing:
        return held._replace(verbatim=False)
    event = {**held.event, "item": {**held.event["item"], **missing}}
    return held._replace(event=event, changes=held.changes | {"item"}, verbatim=False)
