"""What a turn leaves for the next one: on a slow or failing disk, over restarts and retries."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any, Never

import pytest

import recall.joins
from pipeline.budget import UNANSWERED
from tests import builders
from tests.builders import function_call, message, output, recall_call, user
from tests.e2e import checks
from tests.e2e.client import Exchange
from tests.e2e.inprocess import InProcess, delay_recall
from tests.e2e.replies import says
from tests.upstreams import Gate, ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.builders import Item

HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
SHELL = function_call("call_shell_1", "shell", {"command": "ls"})
ANSWER = message("hi")


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as running:
        yield running


@pytest.fixture
def start(tmp_path: Path, provider: ScriptedProvider) -> Callable[..., InProcess]:
    """Return what starts a proxy; the second one and all further share the first one's state."""
    names = iter(("first", "second", "third"))

    def started() -> InProcess:
        return InProcess(tmp_path / next(names), f"{provider.url}/v1", state=tmp_path / "first")

    return started


def recalls(proxy: InProcess, provider: ScriptedProvider) -> list[Item]:
    """Have a turn with a hidden call; return what its client sends as history afterwards."""
    provider.script([says(HIDDEN), says(ANSWER, response_id="resp_B")])
    with Exchange(proxy.port, builders.request()) as exchange:
        shown = checks.received(exchange)[-1]["response"]["output"]
    return [user("hello"), *shown, user("And then?")]


def sent_after(proxy: InProcess, provider: ScriptedProvider, history: list[Item]) -> list[Item]:
    """Send the next request; return the input that the provider got."""
    provider.script([says(message("Then this."), response_id="resp_C")])
    with Exchange(proxy.port, builders.request(*history)) as exchange:
        checks.received(exchange)
    items = provider.requests[-1].json()["input"]
    assert isinstance(items, list)
    return items


def hold_up(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Let writes wait for a gate."""
    save_group = recall.joins.save_group

    async def waits(*arguments: Any, **options: Any) -> bool:  # save_group's own
        await gate.reaches(1)
        return await save_group(*arguments, **options)

    monkeypatch.setattr(recall.joins, "save_group", waits)


def test_a_write_that_is_slow(
    provider: ScriptedProvider, start: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate("the record may be written")
    hold_up(monkeypatch, gate)
    monkeypatch.setattr("proxy.driver.SAVE_SECONDS", 0.05)
    with start() as proxy:
        history = recalls(proxy, provider)  # it has its terminal
        kept = provider.requests[1].json()["input"]
        proxy.reaches(1, "join_write_misses_total")
        assert sent_after(proxy, provider, history)[: len(kept)] == kept
        gate.open()
        assert sent_after(proxy, provider, history)[: len(kept)] == kept
    with start() as proxy:
        assert sent_after(proxy, provider, history)[: len(kept)] == kept
        assert proxy.metric("join_records_lost_total") == 0


def test_the_terminal_waits_for_the_record(
    provider: ScriptedProvider, start: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate("the record may be written")
    hold_up(monkeypatch, gate)
    monkeypatch.setattr("proxy.driver.SAVE_SECONDS", 30.0)
    provider.script([says(HIDDEN), says(ANSWER, response_id="resp_B")])
    with start() as proxy, Exchange(proxy.port, builders.request()) as exchange:
        kinds = []
        for frame in exchange.frames():
            kinds.append(frame.event["type"])
            if kinds[-1] == "response.output_item.done":
                # Everything but the terminal has left, and another connection sees the record.
                history = [user("hello"), frame.event["item"], user("And then?")]
                kept = sent_after(proxy, provider, history)
                assert [item.get("call_id") for item in kept[1:3]] == ["call_hidden_1"] * 2
                assert kinds.count("response.completed") == 0
                gate.open()
        assert kinds[-1] == "response.completed"


def test_no_visible_event_waits_for_a_record(
    provider: ScriptedProvider, start: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixed turn saves one while its recalls still run: its client may begin with its call."""
    durable, recalled = Gate("the record may be written"), Gate("the recall may end")
    hold_up(monkeypatch, durable)
    delay_recall(monkeypatch, recalled)
    monkeypatch.setattr("proxy.driver.SAVE_SECONDS", 30.0)
    provider.script([says(HIDDEN, SHELL)])
    with start() as running, Exchange(running.port, builders.request()) as exchange:
        kinds = []
        for frame in exchange.frames():
            kinds.append(frame.event["type"])
            if kinds[-1] == "response.output_item.done":
                assert not durable.is_open
                recalled.open()
                durable.open()
        assert kinds.count("response.output_item.done") == 1
        assert kinds[-1] == "response.completed"
        assert running.metric("join_write_misses_total") == 0


def test_the_records_of_a_turn_delay_its_terminal_once(
    provider: ScriptedProvider, start: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    durable, recalled = Gate("the record may be written"), Gate("the recall may end")
    hold_up(monkeypatch, durable)
    delay_recall(monkeypatch, recalled)
    monkeypatch.setattr("proxy.driver.SAVE_SECONDS", 0.05)
    provider.script([says(HIDDEN, SHELL)])
    with start() as running, Exchange(running.port, builders.request()) as exchange:
        exchange.next_event("response.output_item.done")
        recalled.open()
        exchange.next_event("response.completed")
        running.reaches(0, "turns_in_flight")
        assert running.metric("join_write_misses_total") == 1
        durable.open()


def test_a_write_that_fails(
    provider: ScriptedProvider, start: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_group, failures = recall.joins.save_group, iter([True])

    async def fails_once(*arguments: Any, **options: Any) -> bool:
        if next(failures, False):
            raise sqlite3.OperationalError("database or disk is full")
        return await save_group(*arguments, **options)

    monkeypatch.setattr(recall.joins, "save_group", fails_once)
    with start() as proxy:
        history = recalls(proxy, provider)
        kept = provider.requests[1].json()["input"]
        assert proxy.metric("join_write_misses_total") == 1
        assert sent_after(proxy, provider, history)[: len(kept)] == kept
    with start() as proxy:
        assert sent_after(proxy, provider, history)[: len(kept)] == kept


def test_a_memory_that_can_not_be_read_fails_no_turn(
    provider: ScriptedProvider, start: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> Never:
        raise sqlite3.DatabaseError("the file is no database")

    with start() as proxy:
        history = recalls(proxy, provider)
        monkeypatch.setattr(recall.joins, "find_groups", broken)
        assert sent_after(proxy, provider, history) == history


@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "the proxy is gone"])
def test_a_mixed_turn_that_has_no_results_yet(
    provider: ScriptedProvider,
    start: Callable[..., InProcess],
    monkeypatch: pytest.MonkeyPatch,
    *,
    leaves: bool,
) -> None:
    """Its client has its own call, and goes on with that: on this proxy or its successor."""

    async def hangs(*_: Any, **__: Any) -> Never:  # run_recall's arguments
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody sets that future")

    saved = Gate("the record is durable")
    save_response_id = recall.joins.save_response_id

    async def tells(*arguments: Any, **options: Any) -> None:
        await save_response_id(*arguments, **options)
        saved.open()

    monkeypatch.setattr("proxy.turns.run_recall", hangs)
    monkeypatch.setattr(recall.joins, "save_response_id", tells)
    provider.script([says(HIDDEN, SHELL)])
    history = [user("hello"), SHELL, output("call_shell_1", "files")]
    with start() as proxy:
        exchange = Exchange(proxy.port, builders.request())
        exchange.next_event("response.output_item.done")
        saved.wait_for(1)
        if leaves:
            exchange.close()
            proxy.reaches(1, "turns_total", outcome="client_disconnect")
            kept = sent_after(proxy, provider, history)
        else:
            with start() as other:  # on the same file, and knows nothing else
                kept = sent_after(other, provider, history)
            exchange.close()
    assert kept == [
        user("hello"),
        HIDDEN,
        SHELL,
        output("call_hidden_1", UNANSWERED),
        output("call_shell_1", "files"),
    ]


@pytest.mark.parametrize(
    ("marks", "kept"),
    [
        ({"client_metadata": {"thread_id": "thread", "turn_id": "t1"}}, 1),
        ({"prompt_cache_key": "thread"}, 2),
    ],
    ids=["a retry", "two samples"],
)
def test_a_request_that_is_sent_again_while_it_runs(
    provider: ScriptedProvider,
    start: Callable[..., InProcess],
    marks: dict[str, object],
    kept: int,
) -> None:
    """The client reads one answer: memory and ledger know of one turn."""
    asked = builders.request(user("Tell me a word.")) | marks
    gate = Gate("the first answer may end")
    provider.script(
        [
            says(HIDDEN),
            says(message("Anchor."), response_id="resp_B", before={1: gate}),
            says(recall_call("call_hidden_2", {"query": "canary"}), response_id="resp_C"),
            says(message("Bollard."), response_id="resp_D"),
        ]
    )
    with start() as proxy, Exchange(proxy.port, asked) as first:
        first.next_event("response.created")
        provider.requests_seen.wait_for(2)
        with Exchange(proxy.port, asked) as second:
            assert checks.answer_of(checks.received(second)) == "Bollard."
        gate.open()
        for _ in first.frames():
            pass
        proxy.reaches(0, "turns_in_flight")
    with start() as proxy:  # everything was written before the first one ended
        store = proxy.app.state.services.store
        (count,) = store.database.read(
            lambda connection: connection.execute("SELECT count(*) FROM hidden_group").fetchone()
        )
        assert count == kept
        assert store.count() == 1 + kept  # the question, and the answers
