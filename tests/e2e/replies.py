"""Replies of the scripted provider in the words of a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests import builders
from tests.upstreams import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.builders import Event, Framing, Item
    from tests.upstreams import Received, Step, Steps


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
