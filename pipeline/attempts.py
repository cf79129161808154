"""Which request comes next: the continuation, the same once more, or the recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.continuation import follow_up
from pipeline.errors import FailureCategory, SottovoceError, UpstreamError, UpstreamRefusedError
from pipeline.join import as_sent
from pipeline.lifecycle import ItemPhase
from pipeline.recovery import is_too_long, may_recover, restrict_tools, shorten

if TYPE_CHECKING:
    from pipeline.hop import Hop
    from pipeline.options import TurnOptions
    from pipeline.request import Request


class Attempts:
    """The requests of a turn.

    Args:
        request: The principal one.
        options: What is fixed for the turn.

    Attributes:
        recovering: Why the current hop is a recovery; None while there was none.
        cause: The failure that made it necessary, where it was one.
    """

    def __init__(self, request: Request, options: TurnOptions) -> None:
        self.recovering: FailureCategory | None = None
        self.cause: SottovoceError | None = None
        self._request = request
        self._options = options
        self._answered: list[tuple[list[bytes], list[bytes]]] = []
        self._retried: set[int] = set()

    @property
    def number(self) -> int:
        """The ordinal of the hop that the next request opens, or opens again."""
        return len(self._answered) + 1

    def continuation(
        self, hop: Hop, outputs: list[bytes], *, max_output_tokens: int | None, last: bool
    ) -> Request:
        """Return the request that answers a hop's hidden calls.

        Args:
            hop: The hop, closed.
            outputs: The items that answer them, in call order.
            max_output_tokens: What is left of the client's limit, where it set one.
            last: The model was told before that there is no further round: this is a recovery.
        """
        items = [
            as_sent(item.value, self._options.id_key)
            for item in hop.state.ordered()
            if item.phase is ItemPhase.DONE
        ]
        self._answered.append((items, outputs))
        request = follow_up(
            hop.request, items=[*items, *outputs], max_output_tokens=max_output_tokens
        )
        if not last:
            return request
        self.recovering = FailureCategory.DEPTH_EXHAUSTED
        return self._restricted(request)

    def after(self, error: SottovoceError, hop: Hop, *, committed: bool) -> Request | None:
        """Return the request that makes up for a failure without being noticed; None if none can.

        Args:
            error: What happened to the hop.
            hop: The hop.
            committed: Whether the client's answer has begun.
        """
        if self._may_retry(error, hop, committed=committed):
            self._retried.add(hop.number)
            return hop.request
        recoverable = hop.number > 1 and not hop.visible and self.recovering is None
        if not recoverable or not may_recover(error):
            return None
        self.recovering = FailureCategory.FOLLOW_UP_FAILED
        self.cause = error
        return self._restricted(self._shorter() if is_too_long(error) else hop.request)

    def _may_retry(self, error: SottovoceError, hop: Hop, *, committed: bool) -> bool:
        """Say whether a transport that broke may be tried once more: nothing of it was shown."""
        if not isinstance(error, UpstreamError) or isinstance(error, UpstreamRefusedError):
            return False
        if not hop.opened or hop.number in self._retried:
            return False
        return not (hop.visible or (committed and hop.number == 1))

    def _shorter(self) -> Request:
        """Return the principal request with every hop's items, and little of each result."""
        request = self._request
        for items, outputs in self._answered:
            answers = [shorten(output) for output in outputs]
            request = follow_up(request, items=[*items, *answers], max_output_tokens=None)
        return request

    def _restricted(self, request: Request) -> Request:
        names = self._options.hidden_names
        return restrict_tools(request, names) if names else request
