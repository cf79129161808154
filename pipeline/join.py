"""What a turn leaves for the next request: its hidden items, with keys to find their place."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final

from pipeline import jsontext
from pipeline.history import hidden_group, hidden_slot, visible_slot
from pipeline.identity import is_minted_id
from pipeline.lifecycle import ItemPhase
from pipeline.request import input_items

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Self

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
                self._show(visible_slot(shown, text, withheld=withheld), shown)
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

    def _show(self, slot: Slot, shown: dict[str, Any]) -> None:
        if shown.get("status") == "incomplete":
            self._unfinished.add(len(self._slots))
        self._slots.append(slot)

    def _hide_other(self, _: dict[str, Any], text: bytes) -> None:
        """Take an item that is no hidden call and that the client did not see all the same."""
        self._hide(text)

    def _hide(self, text: bytes) -> None:
        self.has_hidden = True
        self._slots.append(hidden_slot(text))


class OneMessageJoin(JoinRecord):
    """The record of a client that keeps a whole turn as one message with calls behind its text.

    What a hop said before its hidden calls comes back with what the last one said: the hidden
    items go in front of all of it, but for those that stood behind a call of the client.
    """

    def __init__(self, request: Request, id_key: bytes) -> None:
        super().__init__(request, id_key)
        self._parts: dict[str, list[str]] = {"text": [], "refusal": []}
        self._message_at: int | None = None

    def detach(self) -> None:
        """Share nothing with the record that this one is a copy of."""
        super().detach()
        self._parts = {member: list(texts) for member, texts in self._parts.items()}

    def _show(self, slot: Slot, shown: dict[str, Any]) -> None:
        if shown.get("type") != "message":
            self._slots.append(slot)
            return
        # Behind what was hidden so far, in front of whatever calls the client has to answer.
        self._message_at = len(self._slots)
        for member, texts in self._parts.items():
            said = [part.get(member) for part in shown.get("content") or ()]
            texts.append("".join(text for text in said if isinstance(text, str)))

    def _hide_other(self, value: dict[str, Any], text: bytes) -> None:
        # Such a client never sees reasoning. It goes back beside hidden calls, if it can be read.
        if value.get("encrypted_content") is not None:
            self._slots.append(hidden_slot(text))

    def group(self) -> HiddenGroup:
        """Return the record."""
        if self._message_at is not None:
            message = one_message(
                **{member: filter(None, texts) for member, texts in self._parts.items()}
            )
            self._slots.insert(self._message_at, visible_slot(message, jsontext.dumps(message)))
            self._message_at = None
        return super().group()


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
