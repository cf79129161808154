"""Which entry of a terminal's output is which of the streamed items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.response import ItemState, ResponseState


def match_output(
    state: ResponseState, output: list[Any]
) -> list[tuple[ItemState | None, dict[str, Any]]]:
    """Pair the items of a terminal's output with the streamed ones.

    By call id, else by id, else by position, where the types agree; None for an item that was not
    streamed. Entries that are no items are left out.
    """
    ordered = state.ordered()
    by_call = {item.call_id: item for item in reversed(ordered) if item.call_id}
    taken: set[int] = set()
    pairs: list[tuple[ItemState | None, dict[str, Any]]] = []
    for value in output:
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            continue
        call_id, identity = value.get("call_id"), value.get("id")
        # A call is known by its call id alone: providers were seen to give ids twice.
        item = by_call.get(call_id) if isinstance(call_id, str) else None
        if item is None or not _may_be(item, value, taken):
            item = named = _named(identity, state)
            if item is None or not _may_be(item, value, taken):
                item = _placed(len(pairs), identity, named, state, ordered)
                if item is not None and not _may_be(item, value, taken):
                    item = None
        if item is not None:
            taken.add(item.index)
        pairs.append((item, value))
    return pairs


def _named(identity: object, state: ResponseState) -> ItemState | None:
    index = state.ids.get(identity) if isinstance(identity, str) else None
    return None if index is None else state.items[index]


def _placed(
    position: int,
    identity: object,
    named: ItemState | None,
    state: ResponseState,
    ordered: list[ItemState],
) -> ItemState | None:
    """Return the item at a position, unless the entry's id says that it is another one."""
    if position >= len(ordered):
        return None
    item = ordered[position]
    return item if named is None or state.reused.get(item.index) == identity else None


def _may_be(item: ItemState, value: dict[str, Any], taken: set[int]) -> bool:
    """Say whether a terminal's entry can be another version of a streamed item."""
    if item.index in taken or item.type != value["type"]:
        return False
    call_id = value.get("call_id")
    return not call_id or not item.call_id or item.call_id == call_id
