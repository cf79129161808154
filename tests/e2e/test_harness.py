"""The harness itself: it reads what a provider sends, and it sees what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.e2e import checks
from tests.e2e.client import Exchange, Frame
from tests.upstreams import Gate, ScriptedProvider, stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.builders import Event

    Change = Callable[[list[Event]], list[Event]]

STREAM = builders.stream(
    builders.reasoning("Hm."), builders.function_call("c1", "shell", {}), builders.message("hi you")
)


def test_events_are_read_as_they_arrive() -> None:
    gate = Gate()
    first, *rest = builders.frames(STREAM)
    with (
        ScriptedProvider([stream(first[:9], first[9:], gate, b"".join(rest))]) as provider,
        Exchange(provider.port, {}) as exchange,
    ):
        assert exchange.next_event("response.created") == STREAM[0]
        gate.open()
        assert checks.written(exchange.frames()) == STREAM[1:]
        assert exchange.ended


def test_what_is_sent_is_well_formed() -> None:
    checks.well_formed(checks.written(map(Frame, builders.frames(STREAM))))


def _without(type_: str) -> Change:
    def change(events: list[Event]) -> list[Event]:
        return builders.numbered([event for event in events if event["type"] != type_])

    return change


def _shifted(events: list[Event]) -> list[Event]:
    return [
        event | ({"output_index": event["output_index"] + 1} if "output_index" in event else {})
        for event in events
    ]


def _with_other_id(events: list[Event]) -> list[Event]:
    response = events[-1]["response"] | {"id": "resp_B"}
    return [*events[:-1], events[-1] | {"response": response}]


def _with_bad_usage(events: list[Event]) -> list[Event]:
    usage = builders.usage(1, 2) | {"total_tokens": 3.0}
    response = events[-1]["response"] | {"usage": usage}
    return [*events[:-1], events[-1] | {"response": response}]


BROKEN: dict[str, Change] = {
    "no created": _without("response.created"),
    "no terminal": _without("response.completed"),
    "two terminals": lambda events: builders.numbered([*events, events[-1]]),
    "an event after the terminal": lambda events: builders.numbered([*events, events[1]]),
    "a gap in the numbers": lambda events: events[:3] + events[4:],
    "an item never done": _without("response.output_item.done"),
    "indices from 1": _shifted,
    "another response id": _with_other_id,
    "usage that is not integer": _with_bad_usage,
    "text that was lost": lambda events: builders.numbered(events[:-6] + events[-5:]),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_what_is_wrong_is_seen(name: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        checks.well_formed(BROKEN[name](STREAM))


@pytest.mark.parametrize("name", sorted(set(builders.FRAMINGS) - {"plain", "comments"}))
def test_another_framing_is_seen(name: str) -> None:
    frames = map(Frame, builders.frames(STREAM, builders.FRAMINGS[name]))
    with pytest.raises((AssertionError, ValueError)):
        checks.written(frames)
