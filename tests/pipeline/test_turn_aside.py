"""What a turn used beside its hops: it is spent, and no part of the context."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.commands import Send
from pipeline.errors import UpstreamError
from pipeline.outcome import Ending
from tests import builders
from tests.builders import message, usage
from tests.playbook import broken, chunk, opened, turn

if TYPE_CHECKING:
    from pipeline.commands import Command

ASIDE = usage(1000, 50)
HOP = usage(100, 10)


def said(commands: list[Command]) -> bytes:
    return b"".join(command.data for command in commands if isinstance(command, Send))


@pytest.mark.parametrize(("report", "told"), [("sum", 1160), ("last", 110)])
@pytest.mark.parametrize("tools", [True, False], ids=["declared", "observed"])
def test_usage(report: Any, told: int, tools: bool) -> None:
    running = turn(report=report, **({} if tools else {"tools": ()}))
    running.start()
    commands = running.receive(replace(opened(), spent=ASIDE))
    data = builders.body(builders.stream(message("hi"), usage=HOP))
    commands += running.receive(chunk(data))
    assert running.outcome is not None
    assert running.outcome.ending is Ending.COMPLETED
    assert running.outcome.spent is not None
    assert running.outcome.spent["total_tokens"] == 1160
    assert running.outcome.context == HOP
    assert b'"total_tokens":%d' % told in said(commands)


def test_a_stream_without_it_passes_as_it_came() -> None:
    running = turn(tools=())
    running.start()
    running.receive(opened())
    data = builders.body(builders.stream(message("hi"), usage=HOP))
    assert said(running.receive(chunk(data))) == data


def test_a_failure_counts_it_too() -> None:
    running = turn()
    running.start()
    running.receive(replace(broken(UpstreamError("reset")), spent=ASIDE))
    assert running.outcome is not None
    assert running.outcome.ending is Ending.FAILED
    assert running.outcome.spent == ASIDE
    assert running.outcome.context is None
