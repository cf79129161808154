"""When a turn leaves a join record, and what is saved with it.

The record itself is ``join``'s. It is saved before the terminal is sent, since the client's next
request may follow at once; and once more before that, where the client has calls of its own beside
hidden ones that still run: it may go on with them come what may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.commands import SaveJoin
from pipeline.join import JoinRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.history import HiddenGroup
    from pipeline.hop import Hop
    from pipeline.options import TurnOptions
    from pipeline.request import Request
    from pipeline.rounds import Rounds
    from pipeline.view import ClientView


class Joining:
    """Makes the commands that save a turn's join record.

    Args:
        request: The principal request, as its upstream got it.
        options: What is fixed for the turn.
        view: Knows what the client saw.
        rounds: Knows what answers the hidden calls of a hop that is not answered yet.
    """

    def __init__(
        self, request: Request, options: TurnOptions, view: ClientView, rounds: Rounds
    ) -> None:
        record = JoinRecord if options.form is None else options.form.join
        self._record = record(request, options.id_key)
        self._withhold = options.withhold_ciphertext
        self._view = view
        self._rounds = rounds
        self._unsent: tuple[bytes, ...] = ()

    def answer(self, hop: Hop, outputs: list[bytes], *, sent: bool) -> None:
        """Take the items that answer the hidden calls of a hop.

        Args:
            hop: The hop, closed.
            outputs: The items, in call order.
            sent: Whether a continuation takes them to the upstream; else the client's next request
                has to.
        """
        self._record.add(hop, self._view.client, outputs)
        if not sent:
            self._unsent = tuple(outputs)

    def provisional(self, hops: Sequence[Hop]) -> SaveJoin:
        """Return the record in case that no result of the running hidden calls comes."""
        outputs = self._rounds.unanswered()
        record = self._record.so_far()
        record.add(hops[-1], self._view.client, outputs)
        return self._command(record.group(), hops, tuple(outputs))

    def final(self, hops: Sequence[Hop], *, whole: bool, waiting: bool) -> SaveJoin | None:
        """Return the record of a turn that ends; None where there is nothing to join.

        Args:
            hops: All of the turn's; the last one is closed.
            whole: Whether the last one's response came to an end.
            waiting: Whether it did and its hidden calls have no result, and get none any more.
        """
        hop = hops[-1]
        hides = hop.interception.recall_indices or hop.interception.dropped
        if hop.number == 1 and not hides and not self._withholds(hop):
            return None  # most turns: nothing was kept from the client
        outputs = self._rounds.unanswered() if waiting else []
        self._record.add(hop, self._view.client, outputs, whole=whole or waiting)
        if self._record.has_hidden:
            return self._command(self._record.group(), hops, self._unsent)
        return None if hop.number == 1 else self._command(None, hops, self._unsent)

    def _withholds(self, hop: Hop) -> bool:
        """Say whether the client gets an item of a hop without its ciphertext."""
        return self._withhold and any(
            "encrypted_content" in item.value for item in hop.state.items.values()
        )

    def _command(
        self, group: HiddenGroup | None, hops: Sequence[Hop], outputs: tuple[bytes, ...]
    ) -> SaveJoin:
        last_tries = {hop.number: hop for hop in hops}.values()
        return SaveJoin(
            group,
            str(self._view.response.get("id") or ""),
            tuple(hop.state.id for hop in last_tries if hop.state.id),
            outputs,
        )
