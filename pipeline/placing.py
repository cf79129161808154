"""Where in a client's history a past turn stands, if it stands there as it was.

A turn is searched by the first of its visible items that clients don't drop, and then compared
item by item around it. Two turns never share an item, and what is put back for one is known when
the next is placed: a turn's place is counted in the items that its provider was sent.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING

from pipeline.items import is_output, join_keys, keys_match, was_answered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.history import HiddenGroup, Slot
    from pipeline.survey import Survey


class History:
    """The items of one request, and which of them are known to belong to a past turn.

    Args:
        survey: The input as the client sent it.
    """

    def __init__(self, survey: Survey) -> None:
        self.items = survey.items
        self._survey = survey
        self._first = survey.first
        self._keys: dict[int, tuple[str, ...]] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._digests: dict[str, list[int]] | None = None
        self._taken: set[int] = set()
        self._inserted: list[int] = []
        self._last_inserted: dict[int, list[tuple[str, ...]]] = {}
        self._put_back: set[str] = set()

    def named(self, keys: Iterable[str]) -> int | None:
        """Return where the item with the id among ``keys`` stands."""
        for key in keys:
            if key.startswith("id:") and key in self._first:
                return self._first[key]
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
        slots = group.slots
        visible, spoken = [], []
        for number, slot in enumerate(slots):
            if slot.hidden is not None:
                for key in slot.keys:
                    if key in self._first or key in self._put_back:
                        return None
                continue
            visible.append(number)
            if slot.reasoning is None:
                spoken.append(number)
        if not visible:
            return None
        anchor = (spoken or visible)[0]
        keys = slots[anchor].keys
        for key in keys:
            if key.startswith(schemes):
                for at in self._nearest(self._search(key), group.depth):
                    # Found by its strongest key, it is the one; by another, that may forbid it.
                    if key != keys[0] and not self._is(at, keys):
                        continue
                    place = self._align(group, visible, anchor, at)
                    if place and self._taken.isdisjoint(place.values()):
                        self._taken.update(place.values())
                        return place
        return None

    def insert(self, index: int, slots: Sequence[Slot]) -> None:
        """Note what goes back in front of the item at ``index``."""
        self._last_inserted.setdefault(index, []).append(slots[-1].keys)
        for slot in slots:
            self._put_back.update(slot.keys)
            insort(self._inserted, index)

    def _nearest(self, found: Sequence[int], depth: int) -> Sequence[int]:
        """Sort look-alikes: a turn begins at its depth, unless something was taken away."""
        if len(found) < 2:
            return found

        def distance(at: int) -> tuple[bool, int]:
            sent = at + bisect_right(self._inserted, at)
            return (sent < depth, abs(sent - depth))

        return sorted(found, key=distance)

    def _search(self, key: str) -> Sequence[int]:
        if not key.startswith("sha:"):
            return self._survey.find_all(key)
        if self._digests is None:
            self._digests = {}
            for at, item in enumerate(self.items):
                if isinstance(item, dict) and was_answered(item):
                    for each in self._keys_at(at):
                        if each.startswith("sha:"):
                            self._digests.setdefault(each, []).append(at)
        return self._digests.get(key, ())

    def _keys_at(self, at: int) -> tuple[str, ...]:
        keys = self._keys.get(at)
        if keys is None:
            item = self.items[at]
            keys = self._keys[at] = join_keys(item) if isinstance(item, dict) else ()
        return keys

    def _named_at(self, at: int) -> tuple[str, ...]:
        names = self._names.get(at)
        if names is None:
            item = self.items[at]
            names = join_keys(item, digest=False) if isinstance(item, dict) else ()
            self._names[at] = names
        return names

    def _is(self, at: int, known: tuple[str, ...]) -> bool:
        if not known or not 0 <= at < len(self.items):
            return False
        # Most are known by name, and need no digest.
        if not known[0].startswith("sha:") and keys_match(known, self._named_at(at)):
            return True
        return known[-1].startswith("sha:") and keys_match(known, self._keys_at(at))

    def _align(
        self, group: HiddenGroup, visible: list[int], anchor: int, at: int
    ) -> dict[int, int] | None:
        """Match the visible items around the anchor at ``at``; only reasoning may be missing."""
        slots = group.slots
        place = {anchor: at}
        first, behind = at, visible.index(anchor) + 1
        for number in reversed(visible[: behind - 1]):
            if self._is(first - 1, slots[number].keys):
                first -= 1
                place[number] = first
        outputs = _outputs(slots) if visible[behind:] else set()
        for number in visible[behind:]:
            following = at + 1
            while following < len(self.items) and not outputs.isdisjoint(self._named_at(following)):
                following += 1
            if self._is(following, slots[number].keys):
                place[number] = at = following
            elif slots[number].reasoning is None:
                return None
        return place if min(place) == 0 or self._follows(first, group.before) else None

    def _follows(self, first: int, before: tuple[str, ...]) -> bool:
        """Tell whether in front of ``first`` is what was in front of the turn."""
        for keys in self._last_inserted.get(first, ()):
            if keys_match(before, keys):
                return True
        for at in range(first - 1, -1, -1):
            if self._is(at, before):
                return True
            # Outputs of parallel calls may come in another order than before.
            if not (is_output(before) and is_output(self._named_at(at))):
                return False
        return not before


def _outputs(slots: Iterable[Slot]) -> set[str]:
    """Return the keys of the outputs of all calls of a turn."""
    calls = [key for slot in slots for key in slot.keys if key.startswith("call:")]
    return {key.replace("call:", "result:", 1) for key in calls}
