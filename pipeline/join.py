"""What a turn leaves for the next request: its hidden items, with keys to find their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline import jsontext
from pipeline.history import HiddenGroup, Slot, input_items, join_keys
from pipeline.lifecycle import ItemPhase
from pipeline.request import unminted

if TYPE_CHECKING:
    from pipeline.hop import Hop
    from pipeline.request import Request
    from pipeline.response import ItemState
    from pipeline.splice import ClientStream


class JoinRecord:
    """Collects the items of a turn, hop by hop, in the upstream's order.

    Attributes:
        has_hidden: Whether there is anything to put back.
    """

    def __init__(self, request: Request) -> None:
        self.has_hidden = False
        self._request = request
        self._slots: list[Slot] = []
        self._hops = 0

    def add_hop(self, hop: Hop, client: ClientStream, outputs: list[bytes], id_key: bytes) -> None:
        """Add a hop whose hidden calls were answered.

        Args:
            hop: The hop, closed.
            client: Knows which of its items are visible, and as what.
            outputs: The items that answer its hidden calls, in call order.
            id_key: Key of minted ids, which go to no upstream.
        """
        if hop.number <= self._hops:
            return
        self._hops = hop.number
        for item in hop.state.ordered():
            if item.phase is not ItemPhase.DONE:
                continue
            if client.index_of(item.index) is not None:
                self._slots.append(_visible_slot(item, client))
            elif outputs or item.index not in hop.interception.recall_indices:
                self._hide(jsontext.dumps(unminted(item.value, id_key)))
        for output in outputs:
            self._hide(output)

    def add_last_hop(self, hop: Hop, client: ClientStream, id_key: bytes) -> None:
        """Add the hop that ended the turn, unless it is there: hidden calls have no answer."""
        self.add_hop(hop, client, [], id_key)

    def group(self) -> HiddenGroup:
        """Return the record."""
        items = input_items(self._request.body)
        before = join_keys(items[-1]) if items else ()
        return HiddenGroup(tuple(self._slots), before)

    def _hide(self, text: bytes) -> None:
        self.has_hidden = True
        self._slots.append(Slot(hidden=text, keys=(), cipher=None))


def _visible_slot(item: ItemState, client: ClientStream) -> Slot:
    shown: dict[str, Any] = client.visible(item.value, client.id_of(item) or None)
    cipher = None
    if "encrypted_content" in item.value and "encrypted_content" not in shown:
        cipher = jsontext.dumps(item.value["encrypted_content"])
    return Slot(hidden=None, keys=join_keys(shown), cipher=cipher)
