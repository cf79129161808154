from __future__ import annotations

from typing import Any

from pipeline.outcome import Ending, TurnOutcome
from proxy.usage_board import UsageBoard
from tests.builders import usage


def outcome(spent: dict[str, Any] | None, ending: Ending = Ending.COMPLETED) -> TurnOutcome:
    return TurnOutcome(ending, spent=spent)


def test_every_turn_counts_also_one_that_failed() -> None:
    board = UsageBoard()
    board.add("a", outcome(usage(10, 2)), {})
    board.add("a", outcome(usage(5, 1), Ending.FAILED), {})
    board.add("a", outcome(None, Ending.CLIENT_DISCONNECT), {})
    board.add("b", outcome(usage(1, 1)), {})
    shown = board.show("a")
    assert shown["turns"] == 3
    assert shown["usage"] == {"total": usage(15, 3), "last": usage(5, 1)}
    assert board.show("nobody")["turns"] == 0


def test_the_newest_of_each_bucket_stays() -> None:
    board = UsageBoard()
    for number in range(100):
        board.add("a", outcome(None), {"codex": {"at": number}, f"other {number}": {}})
        quota = board.show("a")["quota"]
        assert quota["codex"] == {"at": number}
        assert f"other {number}" in quota
    assert len(quota) == 64


def test_the_tenant_that_was_silent_for_longest_is_forgotten() -> None:
    board = UsageBoard()
    for number in range(1000):
        board.add(str(number), outcome(None), {})
    board.add("0", outcome(None), {})
    board.add("new", outcome(None), {})
    assert board.show("0")["turns"] == 2
    assert board.show("1")["turns"] == 0
