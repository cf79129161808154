"""What a history is asked, told in one pass over it: what the memory may know of it, and where.

Most items of a long history are calls and their outputs. Nothing is done with one of these but to
note its ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.identity import MINTED_LENGTH, is_minted_id
from pipeline.items import INPUT_ROLES, has_lasting_id, item_type, join_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.jsonspans import Json


class Survey:
    """The items of one request, and by which join keys they are found.

    Args:
        items: The input as the client sent it (`pipeline.request.input_items`).
        id_key: With what ids are minted here; None where nobody asks for these.

    Attributes:
        items: The same.
        lookup_keys: Keys of all that a provider once answered, without repetitions: what the store
            is asked for, which knows groups by their `HiddenGroup.lookup_keys`. Who has an id that
            clients send back as it was is asked for by this id alone.
        minted: Positions of the items whose id was minted.
    """

    __slots__ = ("_again", "_first", "items", "lookup_keys", "minted")

    def __init__(self, items: Sequence[Json], id_key: bytes | None = None) -> None:
        self.items = items
        self.minted: list[int] = []
        self._again: dict[str, list[int]] = {}
        calls: dict[str, int] = {}
        results: dict[str, int] = {}
        ids: dict[str, int] = {}
        self._first = {"call": calls, "result": results, "id": ids}
        by_type = {
            "function_call": calls,
            "function_call_output": results,
            "custom_tool_call": calls,
            "custom_tool_call_output": results,
        }
        keys: list[str] = []
        for at, item in enumerate(items):
            if type(item) is not dict:
                continue
            kind, call_id, id_ = item.get("type"), item.get("call_id"), item.get("id")
            if type(id_) is not str:
                id_ = None
            elif id_key and len(id_) >= MINTED_LENGTH and is_minted_id(id_key, id_):
                self.minted.append(at)
            first = by_type.get(kind) if type(kind) is str and "role" not in item else None
            if first is None or type(call_id) is not str or not call_id:
                keys += self._note_other(at, item)
                continue
            if first is calls:
                keys.append("call:" + call_id)
            if first.setdefault(call_id, at) != at:
                self._repeats("call:" if first is calls else "result:", call_id, at)
            if id_ and ids.setdefault(id_, at) != at:
                self._repeats("id:", id_, at)
        self.lookup_keys = [*dict.fromkeys(keys)]

    def __repr__(self) -> str:
        return f"<Survey of {len(self.items)} items>"

    def find(self, key: str) -> int | None:
        """Return where the first item with a join key stands; none is found by a digest."""
        scheme, _, name = key.partition(":")
        first = self._first.get(scheme)
        return first.get(name) if first is not None else None

    def find_all(self, key: str) -> Sequence[int]:
        """Return where all items with a join key stand."""
        at = self.find(key)
        return () if at is None else self._again.get(key) or (at,)

    def _repeats(self, scheme: str, name: str, at: int) -> None:
        found = self._again.setdefault(scheme + name, [self._first[scheme[:-1]][name]])
        found.append(at)

    def _note_other(self, at: int, item: dict[str, Any]) -> tuple[str, ...]:
        """Note an item of any type; return the keys that the store is asked for."""
        own = item.get("role") in INPUT_ROLES
        if own and "call_id" not in item:
            return ()
        named = join_keys(item, digest=False)
        for key in named:
            scheme, _, name = key.partition(":")
            if self._first[scheme].setdefault(name, at) != at:
                self._repeats(scheme + ":", name, at)
        kind = item_type(item)
        if own or kind.endswith("_output"):
            return ()
        # Reasoning without a summary says the same as any other: only its id finds anything.
        if kind == "reasoning":
            return named
        if named and named[0].startswith("call:"):
            return named[:1]
        return named if has_lasting_id(item) else join_keys(item)
