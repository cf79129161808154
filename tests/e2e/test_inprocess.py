"""What only shows from inside: sinks that fail, a recall that hangs, nothing left behind."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Never

import pytest

from proxy.speech import Speech
from tests import builders
from tests.builders import message, recall_call
from tests.e2e import checks
from tests.e2e.client import Exchange
from tests.e2e.inprocess import InProcess, delay_recall
from tests.e2e.process import eventually
from tests.e2e.replies import says, streamed
from tests.upstreams import Gate, ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
ANSWER = message("hi")


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as running:
        yield running


def raises(_: object) -> Never:
    raise RuntimeError("the sink is broken")


@pytest.fixture
def blocks() -> Iterator[Callable[[object], object]]:
    """Return a sink that never comes back, until the test is over."""
    over = threading.Event()
    yield lambda _: over.wait()
    over.set()


@pytest.mark.parametrize("empty", [True, False], ids=["an empty completion", "a recall"])
@pytest.mark.parametrize("how", ["raises", "blocks"])
def test_a_broken_sink_changes_no_byte(
    tmp_path: Path,
    provider: ScriptedProvider,
    monkeypatch: pytest.MonkeyPatch,
    blocks: Callable[[object], object],
    how: str,
    *,
    empty: bool,
) -> None:
    """Case 14."""
    replies = [says()] if empty else [says(HIDDEN), says(ANSWER, response_id="resp_B")]
    url = f"{provider.url}/v1"
    provider.script([*replies, *replies])
    with (
        InProcess(tmp_path / "sound", url) as sound,
        Exchange(sound.port, builders.request()) as one,
    ):
        expected = one.body()
    monkeypatch.setattr("proxy.app.log_record", raises if how == "raises" else blocks)
    with InProcess(tmp_path / "broken", url) as broken:
        with Exchange(broken.port, builders.request()) as exchange:
            assert exchange.body() == expected
        broken.reaches(1, "turns_total", outcome="completed")
        broken.reaches(int(empty), "empty_completions_total")


def test_a_client_that_leaves_while_recall_runs(
    tmp_path: Path, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 8: the recall is cancelled, nothing is committed, nothing follows."""
    started, cancelled = Gate("recall started"), Gate("recall cancelled")

    async def hangs(*_: Any, **__: Any) -> Never:  # run_recall's arguments
        started.open()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.open()
            raise
        raise AssertionError("nobody sets that future")

    monkeypatch.setattr("proxy.turns.run_recall", hangs)
    provider.script([says(HIDDEN)])
    with InProcess(tmp_path / "app", f"{provider.url}/v1") as proxy:
        exchange = Exchange(proxy.port, builders.request(builders.user("Remember marmalade.")))
        exchange.next_event("response.in_progress")
        started.wait_for(1)
        exchange.close()
        cancelled.wait_for(1)
        proxy.reaches(0, "turns_in_flight")
        proxy.reaches(1, "turns_total", outcome="client_disconnect")
        assert proxy.metric("ingested_entries_total") == 0
        assert len(provider.requests) == 1


def test_a_recall_that_breaks_is_answered_as_such(
    tmp_path: Path, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(*_: Any, **__: Any) -> Never:  # run_recall's arguments
        raise RuntimeError("canary: the disk is gone")

    monkeypatch.setattr("proxy.turns.run_recall", breaks)
    provider.script([says(HIDDEN), says(ANSWER, response_id="resp_B")])
    with (
        InProcess(tmp_path / "app", f"{provider.url}/v1") as proxy,
        Exchange(proxy.port, builders.request()) as exchange,
    ):
        assert checks.answer_of(checks.received(exchange)) == "hi"
    result = provider.requests[-1].json()["input"][-1]
    assert result["call_id"] == "call_hidden_1"
    assert "fail" in result["output"]
    assert "canary" not in result["output"]


def test_the_recall_of_a_slow_memory_keeps_the_client_awake(
    tmp_path: Path, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 9, while recall is silent."""
    gate = Gate("recall may answer")
    delay_recall(monkeypatch, gate)
    provider.script([says(HIDDEN), says(ANSWER, response_id="resp_B")])
    config = "[server]\nkeepalive_seconds = 0.1\n"
    with (
        InProcess(tmp_path / "app", f"{provider.url}/v1", config) as proxy,
        Exchange(proxy.port, builders.request()) as exchange,
    ):
        frames = []
        for frame in exchange.frames():
            frames.append(frame)
            signs = [f for f in frames if not f.is_comment and "in_progress" in f.event["type"]]
            if len(signs) == 4 and not gate.is_open:
                gate.open()
    events = checks.written(frames)
    checks.well_formed(events)
    assert checks.answer_of(events) == "hi"


def test_many_turns_leave_no_task(tmp_path: Path, provider: ScriptedProvider) -> None:
    with InProcess(tmp_path / "app", f"{provider.url}/v1") as proxy:
        with proxy.get("/readyz") as exchange:
            assert exchange.status == 200
        before = proxy.tasks()
        for number in range(5):
            provider.script([says(HIDDEN), streamed(builders.stream(ANSWER, response_id="resp_B"))])
            exchange = Exchange(proxy.port, builders.request())
            if number % 2:
                exchange.next_event("response.created")
                exchange.close()
                proxy.reaches(0, "turns_in_flight")
                provider._replies.clear()
            else:
                with exchange:
                    checks.received(exchange)
        proxy.reaches(0, "turns_in_flight")
        eventually(lambda: proxy.tasks() <= before, "no task is left")


@pytest.mark.parametrize("hop", [1, 2])
def test_an_accident_of_ours_is_told_as_one(
    tmp_path: Path, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch, hop: int
) -> None:
    """The client gets its one error, and no record says that it left."""
    before = [says(HIDDEN)][: hop - 1]
    provider.script(before)
    sound = Speech.encode

    def fails(self: Speech, *about: Any) -> Any:  # as Speech.encode
        if len(provider.requests) >= hop - 1:
            raise ValueError("an accident")
        return sound(self, *about)

    monkeypatch.setattr(Speech, "encode", fails)
    with InProcess(tmp_path / "one", f"{provider.url}/v1") as proxy:
        with Exchange(proxy.port, builders.request()) as exchange:
            data = exchange.body()
        assert exchange.ended
        assert b"the proxy failed unexpectedly" in data
        assert exchange.status == (500 if hop == 1 else 200)
        assert data.count(b'"type":"response.failed"') == hop - 1
        proxy.reaches(1, "turns_total", outcome="failed")
        assert proxy.metric("turns_total", outcome="client_disconnect") == 0
