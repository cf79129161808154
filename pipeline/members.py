"""The members that clients append to, or look up by, where a provider leaves them out.

A client that accumulates a stream takes ``content`` of an added message and appends a part to it,
takes the part that ``content_index`` names and appends the ``delta`` to its ``text``. One member
that is missing, or null, ends it. What stands for it here is what the stream means without it:
nothing so far, or the part that was begun last.

Each function returns the top-level members of the event that it changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.lifecycle import (
    BARE_ITEMS,
    BARE_PARTS,
    Action,
    Checker,
    EventSpec,
    Rule,
)

if TYPE_CHECKING:
    from pipeline.response import ItemState

_PARTS: Final = {
    ("message", "content_index"): "output_text",
    ("reasoning", "content_index"): "reasoning_text",
    ("reasoning", "summary_index"): "summary_text",
}
"""The type of a part that does not say its own."""
_OPEN_PART: Final = Action.OPEN_PART
_NO_MEMBERS: Final[dict[str, str]] = {}
_NOTHING: Final[frozenset[str]] = frozenset()
_ITEM: Final = frozenset({"item"})
_PART: Final = frozenset({"part"})


def bare_item(item_type: str) -> dict[str, Any]:
    """Return the members of an item to which nothing was appended yet."""
    members = BARE_ITEMS.get(item_type, {})
    return {name: "" if empty == "" else [] for name, empty in members.items()}


def complete_item(event: dict[str, Any], item: ItemState | None, check: Checker) -> frozenset[str]:
    """Give an item the members that deltas append to: what was streamed, else nothing so far.

    Args:
        event: An ``added`` or ``done``; its ``item`` is replaced where a member is missing.
        item: What was streamed of it.
        check: Counts the repair.
    """
    value = event["item"]
    for name in BARE_ITEMS.get(value["type"], ()):
        if value.get(name) is None:
            break
    else:
        return _NOTHING
    known = bare_item(value["type"])
    if item is not None:
        streamed = item.snapshot("")
        known |= {name: streamed[name] for name in known if streamed.get(name) is not None}
    check.report(Rule.ITEM_INCOMPLETE, event["type"])
    event["item"] = value | {name: one for name, one in known.items() if value.get(name) is None}
    return _ITEM


def complete_event(
    event: dict[str, Any], spec: EventSpec, item: ItemState | None, check: Checker
) -> frozenset[str]:
    """Give an event of an item its part, the part's index and the text, where they are missing.

    Args:
        event: The event; changed in place.
        spec: Its row of the table.
        item: The item that it belongs to; None where this event begins it.
        check: Counts the repairs.
    """
    changes = _NOTHING
    if spec.part and type(event.get(spec.part)) is not int:
        check.report(Rule.PART_INDEX_MISSING, event["type"])
        event[spec.part] = _index_of_part(spec, item)
        changes |= {spec.part}
    if spec.action is _OPEN_PART:
        return changes | _complete_part(event, spec, item, check)
    if spec.value and event.get(spec.value) is None:
        check.report(Rule.TEXT_MISSING, event["type"])
        event[spec.value] = "" if spec.action is Action.APPEND else _text(event, spec, item)
        changes |= {spec.value}
    return changes


def _index_of_part(spec: EventSpec, item: ItemState | None) -> int:
    """Return the index of the part that was begun last, of the next one where a part begins."""
    if item is None:
        return 0
    begun = [index for member, index in item.parts if member == spec.part]
    begun += [index for field, index in item.texts if field == spec.field]
    if spec.action is Action.OPEN_PART:
        return max(begun, default=-1) + 1
    return max(begun, default=0)


def _complete_part(
    event: dict[str, Any], spec: EventSpec, item: ItemState | None, check: Checker
) -> frozenset[str]:
    given = event.get("part")
    part: dict[str, Any] = given if isinstance(given, dict) else {}
    kind, missing = part.get("type"), {}
    if not isinstance(kind, str) or not kind:
        holder = item.type if item is not None else "message"
        kind = missing["type"] = _PARTS.get((holder, spec.part), "output_text")
    bare = BARE_PARTS.get(kind, _NO_MEMBERS)
    missing |= {name: empty for name, empty in bare.items() if part.get(name) is None}
    if not missing:
        return _NOTHING
    check.report(Rule.PART_INCOMPLETE, event["type"])
    event["part"] = part | missing
    return _PART


def _text(event: dict[str, Any], spec: EventSpec, item: ItemState | None) -> str:
    deltas = () if item is None else item.texts.get((spec.field, event.get(spec.part, 0)), ())
    return "".join(deltas)
