"""What a turn leaves for the next request: its hidden items, with keys to find their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline import jsontext
from pipeline.history import hidden_group, hidden_slot, visible_slot
from pipeline.identity import is_minted_id
from pipeline.lifecycle import ItemPhase
from pipeline.request import input_items

if TYPE_CHECKING:
    from typing import Any

    from pipeline.history import HiddenGroup, Slot
    from pipeline.hop import Hop
    from pipeline.request import Request
    from pipeline.splice import ClientStream


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
        self._hops = 0

    def add(self, hop: Hop, client: ClientStream, outputs: list[bytes]) -> None:
        """Add a hop that is closed, once.

        Args:
            hop: The hop.
            client: Knows which of its items are visible, and as what.
            outputs: The items that answer its hidden calls, in call order; none where the turn
                ended before they were answered, so that the calls are not put back either.
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
                self._slots.append(visible_slot(shown, text, withheld=withheld))
                # Without its ciphertext a reasoning item is no use to its provider.
                self.has_hidden = self.has_hidden or withheld
            elif outputs or item.index not in hop.interception.recall_indices:
                self._hide(text)
        for output in outputs:
            self._hide(output)

    def group(self) -> HiddenGroup:
        """Return the record."""
        return hidden_group(input_items(self._request.body), self._slots)

    def _hide(self, text: bytes) -> None:
        self.has_hidden = True
        self._slots.append(hidden_slot(text))
