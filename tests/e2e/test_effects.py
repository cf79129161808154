"""Transaction hooks: committed once a turn is delivered, undone in reverse where it is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from recall.tool import RecallResult
from tests import builders
from tests.builders import message, recall_call
from tests.e2e.client import Exchange
from tests.e2e.inprocess import InProcess
from tests.e2e.replies import says, streamed
from tests.upstreams import Counter, Gate, Reset, ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ONE, TWO = recall_call("c1", {"query": "one"}), recall_call("c2", {"query": "two"})
DONE = says(message("hi"), response_id="resp_B")


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as running:
        yield running


@dataclass(frozen=True, slots=True)
class Hooks:
    """What hooks did; those of the first call raise."""

    done: list[str] = field(default_factory=list)
    recalled: Counter = field(default_factory=lambda: Counter("recalls"))


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    made = Hooks()

    def hook(kind: str, query: str) -> Callable[[], None]:
        def run() -> None:
            made.done.append(f"{kind} {query}")
            if query == "one":
                raise RuntimeError("canary: the hook is broken")

        return run

    async def recalls(_: object, __: object, arguments: str, **___: Any) -> RecallResult:
        query = "one" if "one" in arguments else "two"
        made.recalled.add()
        return RecallResult(None, "found", (), hook("commit", query), hook("rollback", query))

    monkeypatch.setattr("proxy.turns.run_recall", recalls)
    return made


@pytest.fixture
def proxy(tmp_path: Path, provider: ScriptedProvider) -> Iterator[InProcess]:
    with InProcess(tmp_path / "app", f"{provider.url}/v1") as running:
        yield running


def settled(proxy: InProcess, outcome: str) -> None:
    proxy.reaches(1, "turns_total", outcome=outcome)
    proxy.reaches(0, "turns_in_flight")


def test_hooks_run_after_delivery_and_are_undone_in_reverse(
    provider: ScriptedProvider, proxy: InProcess, hooks: Hooks
) -> None:
    """One that raises is counted, and stops no other."""
    gate = Gate("the answer may end")
    provider.script(
        [says(ONE), says(TWO, response_id="resp_2"), says(message("hi"), before={3: gate})]
    )
    with Exchange(proxy.port, builders.request()) as exchange:
        exchange.next_event("response.output_item.added")
        assert hooks.done == []
        gate.open()
        exchange.body()
    settled(proxy, "completed")
    assert hooks.done == ["commit one", "commit two"]
    proxy.reaches(1, "hook_failures_total", hook="commit")

    hooks.done.clear()
    gate = Gate("the answer never ends")
    provider.script(
        [says(ONE), says(TWO, response_id="resp_2"), says(message("hi"), before={3: gate})]
    )
    exchange = Exchange(proxy.port, builders.request())
    exchange.next_event("response.output_item.added")
    exchange.close()
    settled(proxy, "client_disconnect")
    gate.open()
    assert hooks.done == ["rollback two", "rollback one"]
    proxy.reaches(1, "hook_failures_total", hook="rollback")


ENDS = {
    "incomplete": builders.terminal(status="incomplete", output=[ONE, TWO]),
    "provider_failed": builders.failed("server_error", "no"),
    "failed": {"type": "response.new"},
}


@pytest.mark.parametrize("outcome", ENDS)
def test_nothing_is_committed_of_a_response_that_did_not_complete(
    provider: ScriptedProvider, proxy: InProcess, hooks: Hooks, outcome: str
) -> None:
    """Its results are thrown away, although the client has its terminal."""
    gate = Gate("the answer may end")
    events = [*builders.stream(ONE, TWO)[:-1], ENDS[outcome]]
    provider.script([streamed(events, before={len(events) - 1: gate})])
    with Exchange(proxy.port, builders.request()) as exchange:
        hooks.recalled.wait_for(2)
        gate.open()
        exchange.body()
    settled(proxy, outcome)
    assert sorted(hooks.done) == ["rollback one", "rollback two"]


def test_what_was_answered_is_committed_where_the_turn_fails_later(
    provider: ScriptedProvider, proxy: InProcess, hooks: Hooks
) -> None:
    broken = builders.frames(builders.stream(message("so"), response_id="resp_2"))[:5]
    provider.script([says(ONE), [*streamed([])[:-1], *broken, Reset()]])
    with Exchange(proxy.port, builders.request()) as exchange:
        exchange.body()
    settled(proxy, "failed")
    assert hooks.done == ["commit one"]


def test_a_client_that_leaves_after_the_last_byte_was_served(
    provider: ScriptedProvider, proxy: InProcess, hooks: Hooks
) -> None:
    """Codex drops the socket at the terminal; that is no failure."""
    provider.script([says(ONE), DONE])
    exchange = Exchange(proxy.port, builders.request())
    exchange.next_event("response.completed")
    exchange.close()
    settled(proxy, "completed")
    assert hooks.done == ["commit one"]
