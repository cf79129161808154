"""What a terminal finds unfinished: items that never got their done, or that only it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.lifecycle import ITEM_PREFIXES, ItemPhase, Rule
from pipeline.matching import match_output
from pipeline.members import complete_item

if TYPE_CHECKING:
    from pipeline.identity import Mint
    from pipeline.lifecycle import Checker
    from pipeline.response import ItemState, ResponseState

_DONE: Final = ItemPhase.DONE


def missing_items(
    event: dict[str, Any], state: ResponseState, check: Checker, mint: Mint
) -> list[dict[str, Any]]:
    """Return the events that close what a terminal finds open, and show what only it names.

    Args:
        event: The terminal, normalized and validated.
        state: What was accumulated before it.
        check: Counts each repair under its rule.
        mint: Makes ids for items that have none.

    Raises:
        ProtocolError: The mode rejects the repair.
    """
    kind = event["type"]
    output = event["response"].get("output")
    final: dict[int, dict[str, Any]] = {}
    unseen: list[dict[str, Any]] = []
    for item, value in match_output(state, output) if isinstance(output, list) else ():
        if item is None:
            unseen.append(value)
            continue
        final[item.index] = value
        if item.id and value.get("id") != item.id:
            rotated = value.get("id")
            check.report(Rule.ITEM_ID_ROTATED if rotated else Rule.ITEM_ID_MISSING, kind)
    missing = _unfinished(kind, state, final, check)
    if unseen and kind != "response.failed":
        missing += _unseen(kind, state, unseen, check, mint)
    return missing


def _unfinished(
    kind: str, state: ResponseState, final: dict[int, dict[str, Any]], check: Checker
) -> list[dict[str, Any]]:
    """Close what is open: as the terminal has it, else as far as it has come."""
    status = "completed" if kind == "response.completed" else "incomplete"
    missing: list[dict[str, Any]] = []
    for item in state.ordered():
        if item.phase is _DONE or item.may_stay_open(kind):
            continue
        check.report(Rule.DONE_MISSING, kind)
        value = final.get(item.index) or item.snapshot(status)
        if item.id:
            value = {**value, "id": item.id}
        missing.append(_done(item.index, value, item, check))
    return missing


def _unseen(
    kind: str, state: ResponseState, values: list[dict[str, Any]], check: Checker, mint: Mint
) -> list[dict[str, Any]]:
    """Show what only the terminal names, behind all that was streamed."""
    missing, taken = [], set(state.ids)
    for index, value in enumerate(values, state.next_index):
        check.report(Rule.ITEM_UNSEEN, kind)
        shown, identity = value, value.get("id")
        prefix = ITEM_PREFIXES.get(value["type"])
        known = isinstance(identity, str) and identity
        if prefix is not None and (not known or identity in taken):
            shown = {**value, "id": mint(prefix, index)}
        elif known:
            taken.add(str(identity))
        missing.append(_done(index, shown, None, check))
    return missing


def _done(
    index: int, value: dict[str, Any], item: ItemState | None, check: Checker
) -> dict[str, Any]:
    event = {"type": "response.output_item.done", "output_index": index, "item": value}
    complete_item(event, item, check)
    return event
