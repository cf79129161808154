"""What a turn leaves for the next request: its hidden items, with keys to find their place."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline import jsontext
from pipeline.history import hidden_group, hidden_slot, visible_slot
from pipeline.identity import is_minted_id
from pipeline.lifecycle import ItemPhase
from pipeline.request import input_items

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from pipeline.history import HiddenGroup, Slot
    from pipeline.hop import Hop
    from pipeline.request import Request
    from pipeline.splice import ClientStream

SEPARATOR: Final = "\n\n"
"""What stands between the texts of messages that a client keeps as one."""


def as_sent(value: dict[str, Any], id_key: bytes) -> bytes:
    """Return the text of an output item as it goes back to the upstream that made it.

    An id that we minted is left out: no upstream knows it.
    """
    if is_minted_id(id_key, value.get("id")):
        value = {name: one for name, one in value.items() if name != "id"}
    return jsontext.dumps(value)


class JoinRecord:
    """Collects the items of a turn, hop by hop, in the upstream's order.

    Args:
        request: The request as its upstream got it.
        id_key: Key of the ids that we mint.

    Attributes:
        has_hidden: Whether there is anything to put back.
    """

    def __init__(self, request: Request, id_key: bytes) -> None:
        self.has_hidden = False
        self._request = request
        self._id_key = id_key
        self._slots: list[Slot] = []
        self._unfinished: set[int] = set()
        self._hops = 0

    def add(
        self, hop: Hop, client: ClientStream, outputs: list[bytes], *, whole: bool = True
    ) -> None:
        """Add a hop that is closed, once.

        Args:
            hop: The hop.
            client: Knows which of its items are visible, and as what.
            outputs: The items that answer its hidden calls, in call order; none where the turn
                ended before they were answered, so that the calls are not put back either.
            whole: Whether its response came to an end. Of one that broke, or that was refused, only
                what the client saw counts: no provider will miss the rest.
        """
        if hop.number <= self._hops:
            return
        self._hops = hop.number
        for item in hop.state.ordered():
            if item.phase is not ItemPhase.DONE:
                continue
            text = as_sent(item.value, self._id_key)
            if client.index_of(item.index) is not None:
                shown = client.visible(item.value, client.id_of(item) or None)
                withheld = "encrypted_content" in item.value and "encrypted_content" not in shown
                self._show(visible_slot(shown, text, withheld=withheld), shown, text)
                # Without its ciphertext a reasoning item is no use to its provider.
                self.has_hidden = self.has_hidden or withheld
            elif not whole:
                continue
            elif item.index not in hop.interception.recall_indices:
                self._hide_other(item.value, text)
            elif outputs:
                self._hide(text)
        for output in outputs:
            self._hide(output)

    def so_far(self) -> Self:
        """Return a record of its own that begins with what this one has."""
        other = copy(self)
        other.detach()
        return other

    def detach(self) -> None:
        """Share nothing with the record that this one is a copy of."""
        self._slots, self._unfinished = list(self._slots), set(self._unfinished)

    def group(self) -> HiddenGroup:
        """Return the record."""
        slots = list(self._slots)
        # What was cut short some clients keep and some drop. Nothing goes back behind the last
        # such item, so who finds the turn without it finds it either way.
        while len(slots) - 1 in self._unfinished and any(s.hidden is None for s in slots[:-1]):
            slots.pop()
        return hidden_group(input_items(self._request.body), slots)

    def _show(self, slot: Slot, shown: dict[str, Any], _: bytes) -> None:
        if shown.get("status") == "incomplete":
            self._unfinished.add(len(self._slots))
        self._slots.append(slot)

    def _hide_other(self, _: dict[str, Any], text: bytes) -> None:
        """Take an item that is no hidden call and that the client did not see all the same."""
        self._hide(text)

    def _hide(self, text: bytes) -> None:
        self.has_hidden = True
        self._slots.append(hidden_slot(text))


class _Told(NamedTuple):
    """A message that the client saw: where it stands, and what it says."""

    slot: int
    hop: int
    text: bytes
    parts: dict[str, str]


class OneMessageJoin(JoinRecord):
    """The record of a client that keeps a whole turn as one message with calls behind its text.

    What was said in front of hidden calls and their outputs comes back with what was said behind
    them. It goes back to its place beside them, and is taken out of the client's message.
    """

    def __init__(self, request: Request, id_key: bytes) -> None:
        super().__init__(request, id_key)
        self._told: list[_Told] = []
        self._one_text = False

    def detach(self) -> None:
        """Share nothing with the record that this one is a copy of."""
        super().detach()
        self._told = list(self._told)

    def add(
        self, hop: Hop, client: ClientStream, outputs: list[bytes], *, whole: bool = True
    ) -> None:
        """Add a hop that is closed; see ``JoinRecord``."""
        self._one_text = client.one_text
        super().add(hop, client, outputs, whole=whole)

    def _show(self, slot: Slot, shown: dict[str, Any], text: bytes) -> None:
        if shown.get("type") != "message":
            self._slots.append(slot)
            return
        said = {
            member: "".join(
                part[member]
                for part in shown.get("content") or ()
                if isinstance(part.get(member), str)
            )
            for member in ("text", "refusal")
        }
        self._told.append(_Told(len(self._slots), self._hops, text, said))

    def _hide_other(self, value: dict[str, Any], text: bytes) -> None:
        # Such a client never sees reasoning. It goes back beside hidden calls, if it can be read.
        if value.get("encrypted_content") is not None:
            self._slots.append(hidden_slot(text))

    def group(self) -> HiddenGroup:
        """Return the record."""
        slots = self._joined(self._told) if self._told else self._slots
        return hidden_group(input_items(self._request.body), slots)

    def _joined(self, told: list[_Told]) -> list[Slot]:
        """Put the client's one message where its last words stood, those before as hidden ones."""
        first = len(told) - 1
        while first and all(slot.hidden is None for slot in self._slots[told[first - 1].slot :]):
            first -= 1
        message = self._message(told)
        slot = visible_slot(message, jsontext.dumps(message))
        if first:
            slot = slot._replace(rest=jsontext.dumps(self._message(told[first:])["content"]))
        # A client has its calls behind its text, whatever came first.
        calls = [at for at, one in enumerate(self._slots) if one.hidden is None]
        placed = [(one.slot, hidden_slot(one.text)) for one in told[:first]]
        placed.append((min([told[-1].slot, *calls]), slot))
        slots = list(self._slots)
        for before, (at, each) in enumerate(sorted(placed, key=lambda one: one[0])):
            slots.insert(at + before, each)
        return slots

    def _message(self, told: Iterable[_Told]) -> dict[str, Any]:
        """Return messages as the one that the client makes of them."""
        hops: dict[int, list[dict[str, str]]] = {}
        for number, one in enumerate(told):
            hops.setdefault(one.hop if self._one_text else -number, []).append(one.parts)

        def texts(member: str) -> Iterable[str]:
            return filter(None, ("".join(one[member] for one in each) for each in hops.values()))

        return one_message(text=texts("text"), refusal=texts("refusal"))


def one_message(*, text: Iterable[str], refusal: Iterable[str]) -> dict[str, Any]:
    """Return the message that stands for several, as it comes back from a client that joins them.

    Args:
        text: What each of them says.
        refusal: What each of them refuses with.
    """
    content: list[dict[str, Any]] = []
    if said := SEPARATOR.join(text):
        content.append({"type": "output_text", "text": said, "annotations": []})
    if refused := SEPARATOR.join(refusal):
        content.append({"type": "refusal", "refusal": refused})
    return {"type": "message", "role": "assistant", "content": content}
