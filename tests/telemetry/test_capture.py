from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.capture import (
    BATCH,
    Channel,
    Door,
    EmptyCompletion,
    Loss,
    Record,
    TurnRecord,
    capture_empty_completion,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUND = 30.0
"""Seconds that a test waits before it calls something stuck."""

EMPTY = EmptyCompletion("responses", "m", "s", "stop", 0, 1)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that a blocking sink waits for, set at the end so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


def test_a_record_reaches_every_sink_in_order() -> None:
    first: list[Record] = []
    second: list[Record] = []
    door = Door({"first": first.append, "second": second.append})
    records = [TurnRecord(turn=str(n), outcome="completed") for n in range(20)]
    for record in records:
        door.post(record)
    assert door.drain(BOUND)
    assert first == records
    assert second == records


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()]
)
def test_a_sink_that_raises_is_counted_and_called_again(error: BaseException) -> None:
    seen: list[Record] = []

    def sink(record: Record) -> None:
        seen.append(record)
        raise error

    door = Door({"bad": sink, "good": lambda _record: None})
    door.post(EMPTY)
    door.post(EMPTY)
    assert door.drain(BOUND)
    assert len(seen) == 2
    assert door.losses() == {
        ("bad", Loss.RAISED): 2,
        ("bad", Loss.DROPPED): 0,
        ("good", Loss.RAISED): 0,
        ("good", Loss.DROPPED): 0,
    }


def test_a_sink_that_blocks_for_ever_holds_up_nobody(gate: threading.Event) -> None:
    entered = threading.Event()
    other: list[Record] = []

    def stuck(_record: Record) -> None:
        entered.set()
        gate.wait()

    door = Door({"stuck": stuck, "other": other.append}, capacity=4)
    door.post(EMPTY)
    assert entered.wait(BOUND)
    for _ in range(10):
        door.post(EMPTY)
        assert door._channels[1].drain(BOUND)
    assert len(other) == 11
    assert door.losses()["stuck", Loss.DROPPED] == 6
    assert door.losses()["other", Loss.DROPPED] == 0
    assert not door.drain(0.01)


def test_what_waited_is_delivered_when_the_sink_goes_on(gate: threading.Event) -> None:
    seen: list[int] = []

    def sink(value: int) -> None:
        gate.wait()
        seen.append(value)

    channel: Channel[int] = Channel("slow", sink, capacity=3)
    for value in range(3):
        channel.put(value)
    gate.set()
    assert channel.drain(BOUND)
    assert seen == [0, 1, 2]


def test_what_comes_close_together_is_passed_on_at_once(gate: threading.Event) -> None:
    kept: list[int] = []
    passed_on: list[list[int]] = []

    def sink(value: int) -> None:
        gate.wait()
        kept.append(value)

    def flush() -> None:
        passed_on.append(kept.copy())
        kept.clear()

    channel: Channel[int] = Channel("lines", sink, flush=flush)
    for value in range(3 * BATCH):
        channel.put(value)
    gate.set()
    assert channel.drain(BOUND)
    assert [value for each in passed_on for value in each] == list(range(3 * BATCH))
    assert len(passed_on) < BATCH
    assert kept == []


def test_what_a_sink_can_not_pass_on_is_counted() -> None:
    def flush() -> None:
        raise OSError

    def sink(value: int) -> None:
        if value == 1:
            raise ValueError

    channel: Channel[int] = Channel("lines", sink, flush=flush)
    for value in range(3):
        channel.put(value)
    assert channel.drain(BOUND)
    assert channel.losses() == {Loss.RAISED: 3, Loss.DROPPED: 0}


def test_closing_delivers_what_waits_and_ends_the_thread() -> None:
    seen: list[Record] = []
    door = Door({"sink": seen.append})
    door.post(EMPTY)
    thread = door._channels[0]._thread
    assert thread is not None
    assert door.close(BOUND)
    thread.join(BOUND)
    assert not thread.is_alive()
    assert door.close(BOUND)
    door.post(EMPTY)
    assert seen == [EMPTY]
    assert door.losses()["sink", Loss.DROPPED] == 1


def test_no_thread_starts_before_the_first_record() -> None:
    channel: Channel[int] = Channel("idle", print)
    assert channel.drain(0)
    assert not any(thread.name == "sink idle" for thread in threading.enumerate())


def test_a_thread_that_can_not_start_costs_the_record_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    seen: list[int] = []
    channel: Channel[int] = Channel("poor", seen.append)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        channel.put(1)
    assert channel.losses()[Loss.DROPPED] == 1
    channel.put(2)
    assert channel.drain(BOUND)
    assert seen == [2]


def test_capture_empty_completion_hands_over_what_the_record_needs() -> None:
    seen: list[Record] = []
    door = Door({"sink": seen.append})
    capture_empty_completion(
        door,
        protocol="codex",
        model="m",
        session="thread-1",
        stop_reason="stop",
        output_tokens=0,
        recall_depth=2,
    )
    assert door.drain(BOUND)
    assert seen == [EmptyCompletion("codex", "m", "thread-1", "stop", 0, 2)]


@given(st.lists(st.booleans(), max_size=60))
def test_every_record_is_either_taken_or_counted(outcomes: list[bool]) -> None:
    taken: list[bool] = []

    def sink(fails: bool) -> None:
        if fails:
            raise OSError
        taken.append(fails)

    channel: Channel[bool] = Channel("mixed", sink, capacity=16)
    for outcome in outcomes:
        channel.put(outcome)
    assert channel.drain(BOUND)
    assert len(taken) + sum(channel.losses().values()) == len(outcomes)
    assert channel.close(BOUND)


def test_the_repr_tells_the_state() -> None:
    assert "idle waiting=0" in repr(Channel("idle", print))
