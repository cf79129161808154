"""Which item an event belongs to where it doesn't say so: an index, an id, a type for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.lifecycle import ITEM_PREFIXES, Checker, EventSpec, ItemPhase, Rule

if TYPE_CHECKING:
    from pipeline.identity import Mint
    from pipeline.response import ResponseState


def index_of_done(value: dict[str, Any], state: ResponseState, check: Checker) -> int:
    """Find the index of the item that a done without one closes; the next where it stands alone.

    Args:
        value: The item as its done has it.
        state: What was accumulated before it.
        check: Told where several could be meant.

    Raises:
        ProtocolError: Several could be meant.
    """
    if (index := state.ids.get(str(value.get("id")))) is not None:
        return index
    still_open = [
        item
        for item in state.items.values()
        if item.phase is not ItemPhase.DONE and item.type == value["type"]
    ]
    if call_id := value.get("call_id"):
        named = [item for item in still_open if item.call_id == call_id]
        if named:
            return named[0].index
        still_open = [item for item in still_open if not item.call_id]
    if len(still_open) > 1:
        check.report(Rule.AMBIGUOUS_ITEM, "response.output_item.done")
    return still_open[0].index if still_open else state.next_index


def index_of(event: dict[str, Any], spec: EventSpec, state: ResponseState, check: Checker) -> int:
    """Find the index of an item event that has none; see ``index_of_done``."""
    if (index := state.ids.get(str(event.get("item_id")))) is not None:
        return index
    types = spec.item_types or frozenset()
    still_open = [
        item.index
        for item in state.items.values()
        if item.phase is not ItemPhase.DONE and item.type in types
    ]
    if len(still_open) > 1:
        check.report(Rule.AMBIGUOUS_ITEM, event["type"])
    return still_open[0] if still_open else state.next_index


def id_of_implicit(event: dict[str, Any], spec: EventSpec, mint: Mint) -> str:
    """Return the id of an item that begins with this event because its ``added`` never came."""
    identity = event.get("item_id")
    if isinstance(identity, str) and identity:
        return identity
    prefix = ITEM_PREFIXES.get(type_of_implicit(event, spec), "item")
    return mint(prefix, event["output_index"])


def type_of_implicit(event: dict[str, Any], spec: EventSpec) -> str:
    """Return the type of such an item."""
    if spec.item_types is not None and len(spec.item_types) == 1:
        return next(iter(spec.item_types))
    part = event.get("part")
    of_reasoning = isinstance(part, dict) and part.get("type") == "reasoning_text"
    return "reasoning" if of_reasoning else "message"
