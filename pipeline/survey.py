"""What a history is asked, told in one pass over it: what the memory may know of it, and where.

Most items of a long history are calls and their outputs. Nothing is done with one of these but to
note its ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.identity import MINTED_LENGTH, is_minted_id
from pipeline.items import INPUT_ROLES, has_lasting_id, item_type, join_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.jsonspans import Json

# Tuples, not sets: what is sent as a type may be unhashable.
_CALLS: Final = ("function_call", "custom_tool_call")
_RESULTS: Final = ("function_call_output", "custom_tool_call_output")


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
        first: Where the first item with a join key stands; none is found by a digest.
        minted: Positions of the items whose id was minted.
    """

    __slots__ = ("_again", "first", "items", "lookup_keys", "minted")

    def __init__(self, items: Sequence[Json], id_key: bytes | None = None) -> None:
        self.items = items
        self.minted: list[int] = []
        self.first: dict[str, int] = {}
        self._again: dict[str, list[int]] = {}
        asked: list[str] = []
        first = self.first
        for at, item in enumerate(items):
            if type(item) is not dict:
                continue
            kind, call_id, id_ = item.get("type"), item.get("call_id"), item.get("id")
            if type(id_) is not str:
                id_ = None
            elif id_key is not None and len(id_) >= MINTED_LENGTH and is_minted_id(id_key, id_):
                self.minted.append(at)
            if not call_id or type(call_id) is not str or "role" in item:
                asked += self._note_other(at, item)
                continue
            if kind in _RESULTS:
                key = "result:" + call_id
            elif kind in _CALLS:
                key = "call:" + call_id
                asked.append(key)
            else:
                asked += self._note_other(at, item)
                continue
            if key in first:
                self._repeats(key, at)
            else:
                first[key] = at
            if id_:
                key = "id:" + id_
                if key in first:
                    self._repeats(key, at)
                else:
                    first[key] = at
        self.lookup_keys = [*dict.fromkeys(asked)]

    def __repr__(self) -> str:
        return f"<Survey of {len(self.items)} items>"

    def find_all(self, key: str) -> Sequence[int]:
        """Return where all items with a join key stand; none is found by a digest."""
        at = self.first.get(key)
        return () if at is None else self._again.get(key) or (at,)

    def _repeats(self, key: str, at: int) -> None:
        self._again.setdefault(key, [self.first[key]]).append(at)

    def _note_other(self, at: int, item: dict[str, Any]) -> tuple[str, ...]:
        """Note an item of any type; return the keys that the store is asked for."""
        own = item.get("role") in INPUT_ROLES
        if own and "call_id" not in item:
            return ()
        named = join_keys(item, digest=False)
        for key in named:
            if self.first.setdefault(key, at) != at:
                self._repeats(key, at)
        kind = item_type(item)
        if own or kind.endswith("_output"):
            return ()
        # Reasoning without a summary says the same as any other: only its id finds anything.
        if kind == "reasoning":
            return named
        if named and named[0].startswith("call:"):
            return named[:1]
        return named if has_lasting_id(item) else join_keys(item)
