"""Where in a client's history a past turn stands, if it stands there as it was.

A turn is searched by the first of its visible items that clients don't drop, and then compared
item by item around it. Two turns never share an item, and what is put back for one is known when
the next is placed: a turn's place is counted in the items that its provider was sent.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from typing import TYPE_CHECKING

from pipeline.items import is_output, join_keys, keys_match, was_answered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.history import HiddenGroup, Slot
    from pipeline.jsonspans import Json


class History:
    """The items of one request, and which of them are known to belong to a past turn.

    Args:
        items: The input as the client sent it.
        groups: All turns that may be asked for.
    """

    def __init__(self, items: Sequence[Json], groups: Iterable[HiddenGroup]) -> None:
        self.items = items
        self._positions: defaultdict[str, list[int]] = defaultdict(list)
        self._keys: dict[int, tuple[str, ...]] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._digested = False
        self._taken: set[int] = set()
        self._inserted: list[int] = []
        self._last_inserted: defaultdict[int, list[tuple[str, ...]]] = defaultdict(list)
        self._put_back: set[str] = set()
        known = {
            key.partition(":")[2] for each in groups for slot in each.slots for key in slot.keys
        }
        for at, item in enumerate(items):
            # Nothing else is done with most items of a long history.
            if isinstance(item, dict) and (
                _is_name(item.get("call_id"), known) or _is_name(item.get("id"), known)
            ):
                for key in self._named_at(at):
                    self._positions[key].append(at)

    def named(self, keys: Iterable[str]) -> int | None:
        """Return where the item with the id among ``keys`` stands."""
        for key in keys:
            if key.startswith("id:") and key in self._positions:
                return self._positions[key][0]
        return None

    def place(self, group: HiddenGroup, schemes: tuple[str, ...]) -> dict[int, int] | None:
        """Find a turn and take its items.

        Args:
            group: The turn.
            schemes: Of what kinds the keys are by which it is searched.

        Returns:
            The positions of its visible items by slot; None if it isn't there as it was, or if
            what it hid is there already.
        """
        visible = [number for number, slot in enumerate(group.slots) if slot.hidden is None]
        hidden = [key for slot in group.slots if slot.hidden is not None for key in slot.keys]
        if not visible or any(key in self._positions or key in self._put_back for key in hidden):
            return None
        anchors = [number for number in visible if group.slots[number].reasoning is None]
        anchor = (anchors or visible)[0]
        for key in group.slots[anchor].keys:
            if key.startswith(schemes):
                for at in self._nearest(self._search(key), group.depth):
                    place = self._align(group, visible, anchor, at)
                    if place and self._taken.isdisjoint(place.values()):
                        self._taken.update(place.values())
                        return place
        return None

    def insert(self, index: int, slots: Sequence[Slot]) -> None:
        """Note what goes back in front of the item at ``index``."""
        self._last_inserted[index].append(slots[-1].keys)
        for slot in slots:
            self._put_back.update(slot.keys)
            insort(self._inserted, index)

    def _nearest(self, found: Sequence[int], depth: int) -> list[int]:
        """Sort look-alikes: a turn begins at its depth, unless something was taken away."""

        def distance(at: int) -> tuple[bool, int]:
            sent = at + bisect_right(self._inserted, at)
            return (sent < depth, abs(sent - depth))

        return sorted(found, key=distance) if len(found) > 1 else list(found)

    def _search(self, key: str) -> Sequence[int]:
        if key.startswith("sha:") and not self._digested:
            self._digested = True
            for at, item in enumerate(self.items):
                if isinstance(item, dict) and was_answered(item):
                    for each in self._keys_at(at):
                        if each.startswith("sha:"):
                            self._positions[each].append(at)
        return self._positions.get(key, ())

    def _keys_at(self, at: int) -> tuple[str, ...]:
        if at not in self._keys:
            item = self.items[at]
            self._keys[at] = join_keys(item) if isinstance(item, dict) else ()
        return self._keys[at]

    def _named_at(self, at: int) -> tuple[str, ...]:
        if at not in self._names:
            item = self.items[at]
            self._names[at] = join_keys(item, digest=False) if isinstance(item, dict) else ()
        return self._names[at]

    def _is(self, at: int, known: tuple[str, ...]) -> bool:
        if not 0 <= at < len(self.items) or not isinstance(self.items[at], dict):
            return False
        if keys_match(known, self._named_at(at)):  # most are known by name: no digest
            return True
        return bool(known) and known[-1].startswith("sha:") and keys_match(known, self._keys_at(at))

    def _align(
        self, group: HiddenGroup, visible: list[int], anchor: int, at: int
    ) -> dict[int, int] | None:
        """Match all visible items around the anchor at ``at``; only reasoning may be missing."""
        slots = group.slots
        if not self._is(at, slots[anchor].keys):
            return None
        place = {anchor: at}
        first = at
        for number in reversed([each for each in visible if each < anchor]):
            if self._is(first - 1, slots[number].keys):
                first -= 1
                place[number] = first
        behind = [each for each in visible if each > anchor]
        outputs = _outputs(slots) if behind else set()
        for number in behind:
            following = at + 1
            while following < len(self.items) and not outputs.isdisjoint(self._keys_at(following)):
                following += 1
            if self._is(following, slots[number].keys):
                place[number] = at = following
            elif slots[number].reasoning is None:
                return None
        return place if min(place) == 0 or self._follows(first, group.before) else None

    def _follows(self, first: int, before: tuple[str, ...]) -> bool:
        """Tell whether in front of ``first`` is what was in front of the turn."""
        if any(keys_match(before, keys) for keys in self._last_inserted.get(first, ())):
            return True
        for at in range(first - 1, -1, -1):
            if self._is(at, before):
                return True
            # Outputs of parallel calls may come in another order than before.
            if not (is_output(before) and is_output(self._keys_at(at))):
                return False
        return not before


def _outputs(slots: Iterable[Slot]) -> set[str]:
    """Return the keys of the outputs of all calls of a turn."""
    calls = [key for slot in slots for key in slot.keys if key.startswith("call:")]
    return {key.replace("call:", "result:", 1) for key in calls}


def _is_name(value: Json, known: set[str]) -> bool:
    return isinstance(value, str) and value in known
