"""What gives hidden calls away in data that belongs to no item: their ids, their tools' names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pipeline.response import ItemState


class Giveaways:
    """The ids of the calls of a hop that are hidden or may be, and what its turn hid before.

    Args:
        names: Of the hidden tools.
    """

    __slots__ = ("_earlier", "_ids", "_names", "_texts")

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._texts = [f'"{name}"'.encode() for name in names]
        self._ids: dict[bytes, int] = {}
        self._earlier: frozenset[bytes] = frozenset()

    def note(self, item: ItemState) -> None:
        """Take a call's ids, as far as they are known."""
        for known in (item.id, item.call_id):
            if known:
                self._ids[_encoded(known)] = item.index

    def inherit(self, earlier: Giveaways, is_hidden: Callable[[int], bool]) -> None:
        """Know what gives the calls of the hop before this one away.

        Args:
            earlier: What that hop knew.
            is_hidden: Tells of its output indices whether the call is hidden.
        """
        self._texts = [*earlier._texts, *earlier._ids]
        hidden = [known for known, index in earlier._ids.items() if is_hidden(index)]
        self._earlier = earlier._earlier.union(hidden)

    def index_of(self, call_id: str) -> int | None:
        """Return the output index of the hop's call with an id, if there is one."""
        return self._ids.get(_encoded(call_id))

    def was_hidden(self, call_id: str) -> bool:
        """Tell whether a call of an earlier hop was hidden."""
        return bool(self._earlier) and _encoded(call_id) in self._earlier

    def mentioned(self, data: bytes) -> int | None:
        """Return the output index of the call that some data mentions; None where it does not."""
        for known, index in self._ids.items():
            if known in data:
                return index
        return None

    def names_a_tool(self, data: bytes) -> bool:
        """Tell whether JSON is about a hidden tool, or about a call of an earlier hop."""
        return any(text in data for text in self._texts)

    def is_word_in(self, raw: bytes) -> bool:
        """Tell whether a hidden tool's name is a word of some data that is no JSON."""
        words = (rb"(?<!\w)%s(?!\w)" % re.escape(name.encode()) for name in self._names)
        return any(re.search(word, raw) for word in words)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
