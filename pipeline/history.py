"""The ledger's pure half: what clients never had of past turns, and where it goes back.

A client's history lacks the hidden calls of earlier turns and their outputs. Each turn leaves a
`HiddenGroup`: its items in upstream order, hidden ones as texts, visible ones as the join keys of
`pipeline.items` by which they are recognised when the client sends them back.

A group goes back as a whole or not at all. Every visible item has to be there in order, with
nothing between them but the outputs of their own calls; only reasoning may be missing, since many
clients drop it. What stands in front of the first visible item goes back only if the item before
it is the one that was there. So a history that was edited or compacted gets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pipeline.items import INPUT_ROLES, is_output, item_type, join_keys
from pipeline.jsonplaces import find
from pipeline.jsonspans import value_end
from pipeline.jsontext import dumps, loads
from pipeline.placing import History

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pipeline.jsonspans import Json
    from pipeline.survey import Survey

_HIDDEN: Final = "hidden:"
"""What stands in front of the keys of items that no client sends back."""


def is_fresh(body: dict[str, Any]) -> bool:
    """Tell whether all that a request says is its client's own: nothing of it was answered yet.

    What has an id or a ciphertext may be of ours, whatever its role.
    """
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict) or item.get("role") not in INPUT_ROLES:
            return False
        if "id" in item or "encrypted_content" in item:
            return False
    return True


def keys_if_hidden(items: Iterable[Json]) -> list[str]:
    """Return the keys of items that a provider has, to ask whether they were hidden."""
    found = (join_keys(item, digest=False) for item in items if isinstance(item, dict))
    return list(dict.fromkeys(_HIDDEN + key for keys in found for key in keys))


class Slot(NamedTuple):
    """One item of a past turn: made by `hidden_slot` or `visible_slot`.

    Args:
        hidden: The text of an item that the client never saw, None for one that it saw.
        keys: Join keys of the item.
        reasoning: The text of visible reasoning as the provider wrote it.
        withheld: Whether the client got that reasoning without its ciphertext.
        rest: The content of a message, as JSON text, that the client got joined with messages in
            front of hidden items: what is left of it once these are back in their places.
        value: What ``hidden`` says, if that is at hand; never changed in place.
    """

    hidden: bytes | None
    keys: tuple[str, ...]
    reasoning: bytes | None = None
    withheld: bool = False
    rest: bytes | None = None
    value: dict[str, Any] | None = None

    @property
    def text(self) -> bytes:
        """The item that is put back; a visible one but reasoning has none."""
        return self.hidden if self.hidden is not None else self.reasoning or b""

    @property
    def cipher(self) -> bytes | None:
        """The ciphertext that was withheld from the client, as JSON text."""
        if self.reasoning is None or not self.withheld:
            return None
        return _member(self.reasoning, loads(self.reasoning), "encrypted_content")


def _member(text: bytes, value: dict[str, Any], key: str) -> bytes | None:
    if value.get(key) is None:
        return None
    span, _ = find(text, value, (key,))
    return text[span.start : span.end]


def hidden_slot(text: bytes) -> Slot:
    """Return the slot of a hidden call, or of its output, from the text that was sent."""
    value = loads(text)
    return Slot(text, join_keys(value, digest=False), value=value)


def visible_slot(item: dict[str, Any], text: bytes, *, withheld: bool = False) -> Slot:
    """Return the slot of an item that the client saw.

    Args:
        item: The item as the client saw it, with the id that it got.
        text: The item as the provider wrote it.
        withheld: Whether we left the ciphertext out of what the client saw.
    """
    reasoning = text if item_type(item) == "reasoning" else None
    return Slot(None, join_keys(item), reasoning, withheld)


@dataclass(frozen=True, slots=True)
class HiddenGroup:
    """What one turn did, hop by hop: its items and their hidden outputs in upstream order.

    Args:
        slots: The items.
        before: Join keys of the last input item in front of them; none if there was no item.
        depth: How many input items stood in front, as sent: tells look-alikes apart.
    """

    slots: tuple[Slot, ...]
    before: tuple[str, ...]
    depth: int = 0

    def lookup_keys(self) -> tuple[str, ...]:
        """Return the keys under which a store has to find the group."""
        keys: dict[str, None] = {}
        for slot in self.slots:
            if slot.hidden is None:
                kept = [key for key in slot.keys if not (slot.reasoning and key[:4] == "sha:")]
                keys |= dict.fromkeys(kept)
        return tuple(keys)

    def hidden_keys(self) -> tuple[str, ...]:
        """Return the keys under which a store has to find it by what the client never saw."""
        kept = [slot for slot in self.slots if slot.hidden is not None or slot.withheld]
        keys = [key for slot in kept for key in slot.keys if key[:4] != "sha:"]
        return tuple(dict.fromkeys(_HIDDEN + key for key in keys))

    def turn_keys(self) -> bytes:
        """Return what records of one turn share that differ in their texts alone.

        A turn may be recorded before the results of its hidden calls are there, and again with
        them: the later record replaces the earlier.
        """
        return dumps([self.depth, list(self.before), [list(slot.keys) for slot in self.slots]])

    def hides(self) -> bool:
        """Tell whether anything of the turn was hidden from the client."""
        return any(slot.hidden is not None or slot.withheld for slot in self.slots)

    def pending_outputs(self) -> tuple[bytes, ...]:
        """Return the hidden outputs at its end, which no later hop of the turn has sent.

        A request that continues the turn by ``previous_response_id`` has to bring them.
        """
        outputs: list[bytes] = []
        for slot in self.slots[::-1]:
            if slot.hidden is None or not is_output(slot.keys):
                break
            outputs.insert(0, slot.hidden)
        return tuple(outputs)

    def to_json(self) -> bytes:
        """Serialize the group; the items' texts stand in it as they are."""
        return _head(self.before, self.depth) + b",".join(map(_slot_to_json, self.slots)) + b"]}"

    @classmethod
    def from_json(cls, data: bytes) -> HiddenGroup:
        """Read what `to_json` wrote."""
        value = loads(data)
        slots, at = [], len(_head(value["before"], value["depth"]))
        for each in value["slots"]:
            slot, end = _slot_from_json(data, at, each)
            slots.append(slot)
            at = end + 1  # the comma
        return cls(tuple(slots), tuple(value["before"]), value["depth"])


def _head(before: Sequence[str], depth: int) -> bytes:
    return dumps({"before": list(before), "depth": depth})[:-1] + b',"slots":['


def _slot_to_json(slot: Slot) -> bytes:
    members = [b'"keys":' + dumps(list(slot.keys))]
    if slot.hidden is not None:
        members.append(b'"hidden":' + slot.hidden)
    if slot.reasoning is not None:
        members.append(b'"reasoning":' + slot.reasoning)
    if slot.withheld:
        members.append(b'"withheld":true')
    if slot.rest is not None:
        members.append(b'"rest":' + slot.rest)
    return b"{" + b",".join(members) + b"}"


def _slot_from_json(data: bytes, start: int, value: dict[str, Any]) -> tuple[Slot, int]:
    """Read the slot that was written at ``start``; also return where it ends.

    Where its texts stand follows from how it was written. It is read with every request of its
    conversation: a walk over its members would take most of the time that a look-up takes.
    """
    texts: dict[str, bytes] = {}
    end = start + len(b'{"keys":') + len(dumps(value["keys"]))
    for name in ("hidden", "reasoning", "withheld", "rest"):
        if name in value:
            begin = end + len(b',"":') + len(name)
            end = value_end(data, begin, value[name])
            texts[name] = data[begin:end]
    slot = Slot(
        texts.get("hidden"),
        tuple(value["keys"]),
        texts.get("reasoning"),
        "withheld" in texts,
        texts.get("rest"),
        value.get("hidden"),
    )
    return slot, end + 1


def hidden_group(items: Sequence[Json], slots: Iterable[Slot]) -> HiddenGroup:
    """Return the group of a turn.

    Args:
        items: The input items of its request as it was sent (`pipeline.request.input_items`).
        slots: All items of all hops in upstream order, each hop's hidden outputs behind its items.
    """
    last = items[-1] if items else None
    before = join_keys(last) if isinstance(last, dict) else ()
    return HiddenGroup(tuple(slots), before, len(items))


@dataclass(slots=True)
class Insertion:
    """Items that go in front of the input item at ``index`` (or behind the last), in order.

    Args:
        index: Where.
        texts: JSON texts.
        values: What these say, where that is at hand.
    """

    index: int
    texts: tuple[bytes, ...]
    values: tuple[Any, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class ItemEdit:
    """Members of the input item at ``index`` that get JSON texts, or are taken out."""

    index: int
    members: tuple[tuple[str, bytes], ...] = ()
    dropped: tuple[str, ...] = ()


Restoration: TypeAlias = Insertion | ItemEdit
"""One change of a request's input. All indices are those of the input as the client sent it."""


def minted_ids(survey: Survey) -> list[ItemEdit]:
    """Take ids that we minted out of items: their provider has never seen them."""
    items = survey.items
    # Of a reference nothing would be left.
    taken = [at for at in survey.minted if not items[at].keys() <= {"id", "type"}]
    return [ItemEdit(at, dropped=("id",)) for at in taken]


def restorations(survey: Survey, groups: Sequence[HiddenGroup]) -> list[Restoration]:
    """Find where past turns' hidden items go back into a client's history.

    Args:
        survey: The input of the request.
        groups: What the store has for its `Survey.lookup_keys`.

    Returns:
        The changes; none for a group whose turn isn't there as it was, or whose hidden calls are.
    """
    if not groups:
        return []
    groups = _newest(groups)
    history = History(survey)
    places: dict[int, dict[int, int]] = {}
    runs: dict[int, dict[int, list[Slot]]] = {}
    # Who is recognised by an id comes first, or a look-alike could take its place.
    # And who stood further in front comes first: what goes back for it moves those behind.
    waiting = [*range(len(groups))]
    if len(groups) > 1:
        waiting.sort(key=lambda number: groups[number].depth)
    for schemes in (("call:", "id:"), ("call:", "id:", "sha:")):
        for number in waiting:
            if place := history.place(groups[number], schemes):
                places[number] = place
                runs[number] = _runs(groups[number], place, history)
                for index, run in runs[number].items():
                    history.insert(index, run)
        waiting = [number for number in waiting if number not in places]
    found: list[Restoration] = []
    placed = [*places]
    if len(placed) > 1:
        placed.sort(key=lambda each: min(places[each].values()))
    for number in placed:
        for index, run in runs[number].items():
            values = tuple([slot.value or loads(slot.text) for slot in run])
            found.append(Insertion(index, tuple([slot.text for slot in run]), values))
        for slot, index in places[number].items():
            if (rest := groups[number].slots[slot].rest) is not None:
                found.append(ItemEdit(index, (("content", rest),)))
    for number, group in enumerate(groups):
        for at, each in enumerate(group.slots):
            if each.withheld:
                found += _ciphertext(each, places.get(number, {}).get(at), history)
    return found


def _newest(groups: Sequence[HiddenGroup]) -> list[HiddenGroup]:
    """Return the last record of each turn: an earlier one was made before its results came."""
    if len(groups) == 1:
        return [*groups]
    turns: dict[tuple[object, ...], HiddenGroup] = {}
    for group in groups:
        turns[group.depth, group.before, tuple([slot.keys for slot in group.slots])] = group
    return list(turns.values())


def _runs(group: HiddenGroup, place: dict[int, int], history: History) -> dict[int, list[Slot]]:
    """Return what goes back in front of which item."""
    runs: dict[int, list[Slot]] = {}
    index = min(place.values())
    for number, slot in enumerate(group.slots):
        if number in place:
            index = place[number] + 1
        elif slot.hidden is not None or _goes_back(group, number, history):
            runs.setdefault(index, []).append(slot)
    return runs


def _goes_back(group: HiddenGroup, number: int, history: History) -> bool:
    """Tell whether a visible slot goes back that the client's history lacks."""
    slot = group.slots[number]
    if slot.reasoning is None or history.named(slot.keys) is not None:
        return False
    # Reasoning that the client dropped goes back with the hidden items. In front of one it was
    # sent before; behind the last it needs the ciphertext that makes it valid.
    hidden = [at for at, each in enumerate(group.slots) if each.hidden is not None]
    return bool(hidden) and (number < hidden[-1] or _has_ciphertext(loads(slot.reasoning)))


def _has_ciphertext(item: dict[str, Any]) -> bool:
    return item.get("encrypted_content") is not None


def _ciphertext(slot: Slot, place: int | None, history: History) -> Iterator[ItemEdit]:
    """Put withheld ciphertext back wherever its reasoning item is: without, the item is void."""
    if (cipher := slot.cipher) is None:
        return
    at = history.named(slot.keys)
    if at is None and place is not None and history.items[place].get("id") is None:
        at = place
    if at is not None and not _has_ciphertext(history.items[at]):
        yield ItemEdit(at, (("encrypted_content", cipher),))
