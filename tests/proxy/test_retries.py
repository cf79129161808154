from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from proxy.retries import Retries
from proxy.sessions import identify
from tests.builders import user

if TYPE_CHECKING:
    from proxy.sessions import Identity

ASKED = [user("hello")]


def identity(turn_id: str | None = "t1", **changes: Any) -> Identity:
    metadata = {"thread_id": "thread", "turn_id": turn_id}
    found = identify([], {"client_metadata": metadata}, "local", codex_path=False)
    return replace(found, **changes)


def counted(count: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-stainless-retry-count", count.encode())]


def test_the_newest_run_counts() -> None:
    retries = Retries()
    with retries.attempt(identity(), [], ASKED) as first:
        with retries.attempt(identity(), [], [user("hello")]) as second:
            with retries.attempt(identity(), [], ASKED) as third:
                assert (first.superseded, second.superseded) == (True, True)
            assert not third.superseded
        assert first.superseded  # it stays what it is when the other has ended
    assert len(retries) == 0


def test_a_run_that_has_ended_is_no_matter() -> None:
    retries = Retries()
    with retries.attempt(identity(), [], ASKED) as first:
        pass
    with retries.attempt(identity(), [], ASKED):
        assert not first.superseded


@pytest.mark.parametrize(
    ("other", "asked"),
    [
        (identity("t2"), ASKED),
        (identity(None), ASKED),
        (identity(session="elsewhere"), ASKED),
        (identity(tenant="another"), ASKED),
        (identity(), [*ASKED, user("and more")]),
        (identity(), "hello"),
    ],
)
def test_what_is_another_request(other: Identity, asked: object) -> None:
    retries = Retries()
    with retries.attempt(identity(), [], ASKED) as first, retries.attempt(other, [], asked):
        assert not first.superseded


@pytest.mark.parametrize(
    ("counts", "superseded"),
    [
        (("0", "1"), True),
        (("1", "2"), True),
        (("", "1"), True),
        (("0", "0"), False),
        (("", ""), False),
        (("1", "1"), False),
        (("0", "-1"), False),
        (("0", "x" * 100), False),
        (("0", "9" * 100), False),
    ],
)
def test_without_a_turn_id_the_count_of_retries_tells(
    counts: tuple[str, str],
    superseded: bool,
) -> None:
    retries = Retries()
    none = identity(None)
    with (
        retries.attempt(none, counted(counts[0]), ASKED) as first,
        retries.attempt(none, counted(counts[1]), ASKED),
    ):
        assert first.superseded is superseded


def test_a_run_that_raises_is_counted_out() -> None:
    retries = Retries()
    with pytest.raises(OSError, match="broken"), retries.attempt(identity(), [], ASKED):
        raise OSError("broken")
    assert len(retries) == 0
