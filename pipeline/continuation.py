"""The request of the next hop: what this hop sent, what it got, and what we answer.

A follow-up only adds to the text of the request before it, so the provider finds its cached
prefix and reasoning keeps the item that followed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.request import Request, with_array_input, with_elements

if TYPE_CHECKING:
    from collections.abc import Sequence


def follow_up(
    request: Request,
    *,
    items: Sequence[bytes],
    max_output_tokens: int | None,
) -> Request:
    """Return the request that continues a turn after hidden calls.

    Args:
        request: The request of the hop that made the calls. A string input becomes a message of
            the user, an absent one begins with the hop's output.
        items: All output items of that hop, as the provider wrote them, in its order; behind
            them what answers its hidden calls, in call order.
        max_output_tokens: What is left for the hop, where the turn has a limit.
    """
    added = with_elements(with_array_input(request), {"input": items})
    if max_output_tokens is None:
        return added
    return added.with_members({"max_output_tokens": max_output_tokens})
