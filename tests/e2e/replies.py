"""Replies of the scripted provider in the words of a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests import builders
from tests.upstreams import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.builders import Event, Framing, Item
    from tests.upstreams import Received, Reply, Step, Steps


def says(
    *items: Item,
    before: Mapping[int, Step] | None = None,
    framing: Framing = builders.PLAIN,
    headers: Sequence[tuple[str, str]] = (),
    **options: Any,  # whatever builders.stream takes
) -> Callable[[Received], Steps]:
    """Stream items, with the request's tools and choices echoed as providers do.

    Args:
        items: In output order.
        before: Steps that stand in front of an event, by the event's number.
        framing: Of the events.
        headers: Of the answer.
        options: For ``builders.stream``.
    """

    def reply(received: Received) -> Steps:
        events = builders.stream(*items, echo=received.json(), **options)
        return streamed(events, before=before, framing=framing, headers=headers)

    return reply


def streamed(
    events: Sequence[Event],
    *,
    before: Mapping[int, Step] | None = None,
    framing: Framing = builders.PLAIN,
    headers: Sequence[tuple[str, str]] = (),
) -> Steps:
    """Stream events as they are."""
    steps: list[Step] = []
    for number, frame in enumerate(builders.frames(events, framing)):
        if before and number in before:
            steps.append(before[number])
        steps.append(frame)
    return stream(*steps, headers=headers)


HIDDEN: Final = builders.recall_call("call_hidden_1", {"query": "canary"})
ANSWER: Final = builders.message("你好🙂, it is fine.")
ANSWERED: Final[Mapping[str, tuple[Reply, ...]]] = {
    "without a recall": (says(ANSWER, usage=builders.usage(250, 15, cached=130)),),
    "with a recall": (
        says(HIDDEN, usage=builders.usage(100, 10, cached=40)),
        says(ANSWER, response_id="resp_B", usage=builders.usage(150, 5, cached=90)),
    ),
    "with a recall and sparse events": (
        says(HIDDEN, sparse=True, usage=builders.usage(100, 10, cached=40)),
        says(ANSWER, response_id="resp_B", sparse=True, usage=builders.usage(150, 5, cached=90)),
    ),
}
"""Streams that say ``ANSWER``, and use 250 and 15 tokens, in all the ways in which they may."""
