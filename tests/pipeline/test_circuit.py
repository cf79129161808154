"""Who is skipped, for how long, and who may try."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.circuit import CALLERS, FAILURES, OPEN_SECONDS, Circuits, CircuitState
from pipeline.errors import UpstreamError
from pipeline.taxonomy import ErrorKind, Failure

COUNTED = (ErrorKind.NETWORK, ErrorKind.RATE_LIMIT, ErrorKind.AUTH)
OTHERS = tuple(kind for kind in ErrorKind if kind not in COUNTED)


def failure(kind: ErrorKind = ErrorKind.NETWORK, *, personal: bool = False) -> Failure:
    return Failure(kind, UpstreamError("no"), personal=personal)


def fail(
    circuits: Circuits,
    *kinds: ErrorKind,
    now: float = 0.0,
    caller: str | None = None,
    personal: bool = False,
) -> None:
    for kind in kinds:
        visit = circuits.enter("a", caller, now, forced=True)
        assert visit is not None
        visit.failed(failure(kind, personal=personal), now)


def opened() -> Circuits:
    circuits = Circuits()
    fail(circuits, *[ErrorKind.NETWORK] * FAILURES)
    return circuits


@pytest.mark.parametrize("kinds", [[kind] * 5 for kind in COUNTED] + [[*COUNTED, *COUNTED][:5]])
def test_five_in_a_row_open_it(kinds: list[ErrorKind]) -> None:
    circuits = Circuits()
    fail(circuits, *kinds[:4])
    assert circuits.passes("a", None, 0.0)
    assert circuits.state("a", 0.0) is CircuitState.CLOSED
    fail(circuits, *kinds[4:])
    assert not circuits.passes("a", None, 0.0)
    assert circuits.enter("a", None, OPEN_SECONDS - 0.1) is None
    assert circuits.state("a", 0.0) is CircuitState.OPEN
    assert circuits.passes("b", None, 0.0)


@pytest.mark.parametrize("kind", OTHERS)
def test_any_other_word_of_the_upstream_ends_the_row(kind: ErrorKind) -> None:
    circuits = Circuits()
    fail(circuits, *[ErrorKind.NETWORK] * 4, kind, *[ErrorKind.NETWORK] * 4)
    assert circuits.passes("a", None, 0.0)


def test_an_answer_ends_the_row() -> None:
    circuits = Circuits()
    fail(circuits, *[ErrorKind.NETWORK] * 4)
    visit = circuits.enter("a", None, 0.0)
    assert visit is not None
    assert not visit.trial
    visit.answered()
    fail(circuits, *[ErrorKind.NETWORK] * 4)
    assert circuits.passes("a", None, 0.0)


def test_after_a_while_one_request_tries() -> None:
    circuits = opened()
    assert circuits.state("a", OPEN_SECONDS) is CircuitState.TRIAL
    visit = circuits.enter("a", None, OPEN_SECONDS)
    assert visit is not None
    assert visit.trial
    assert circuits.enter("a", None, OPEN_SECONDS) is None
    assert not circuits.passes("a", None, OPEN_SECONDS)
    visit.answered()
    assert circuits.state("a", OPEN_SECONDS) is CircuitState.CLOSED
    fail(circuits, *[ErrorKind.NETWORK] * 4, now=OPEN_SECONDS)
    assert circuits.passes("a", None, OPEN_SECONDS)


@pytest.mark.parametrize("kind", COUNTED)
def test_a_trial_that_fails_opens_it_again(kind: ErrorKind) -> None:
    circuits = opened()
    visit = circuits.enter("a", None, 40.0)
    assert visit is not None
    visit.failed(failure(kind), 41.0)
    assert not circuits.passes("a", None, 41.0 + OPEN_SECONDS - 0.1)
    assert circuits.passes("a", None, 41.0 + OPEN_SECONDS)


def test_a_trial_whose_client_left_is_given_back() -> None:
    circuits = opened()
    visit = circuits.enter("a", None, 40.0)
    assert visit is not None
    visit.left()
    again = circuits.enter("a", None, 40.0)
    assert again is not None
    assert again.trial
    again.answered()
    again.left()
    assert circuits.passes("a", None, 40.0)


def test_the_last_resort_is_never_skipped() -> None:
    circuits = opened()
    visit = circuits.enter("a", None, 1.0, forced=True)
    assert visit is not None
    assert not visit.trial
    visit.failed(failure(), 1.0)
    assert circuits.passes("a", None, OPEN_SECONDS)


def test_a_request_that_came_before_it_opened_does_not_prolong_it() -> None:
    circuits = Circuits()
    slow = circuits.enter("a", None, 0.0)
    assert slow is not None
    fail(circuits, *[ErrorKind.NETWORK] * FAILURES)
    slow.failed(failure(), 29.0)
    assert circuits.passes("a", None, OPEN_SECONDS)


def test_a_trial_that_was_overtaken_counts_as_one_failure() -> None:
    circuits = opened()
    trial = circuits.enter("a", None, 40.0)
    other = circuits.enter("a", None, 40.0, forced=True)
    assert trial is not None
    assert other is not None
    other.answered()
    trial.failed(failure(), 41.0)
    assert circuits.passes("a", None, 41.0)


def test_one_clients_bad_key_closes_the_way_for_nobody_else() -> None:
    circuits = Circuits()
    fail(circuits, *[ErrorKind.AUTH] * FAILURES, caller="mallory", personal=True)
    assert not circuits.passes("a", "mallory", 0.0)
    assert circuits.passes("a", "alice", 0.0)
    assert circuits.passes("a", None, 0.0)
    assert circuits.state("a", 0.0) is CircuitState.OPEN


def test_an_upstream_that_is_down_is_down_for_all() -> None:
    circuits = Circuits()
    for caller in "vwxyz":
        fail(circuits, ErrorKind.NETWORK, caller=caller)
    assert not circuits.passes("a", "alice", 0.0)
    assert not circuits.passes("a", None, 0.0)


def test_our_own_key_is_the_upstreams_own_business() -> None:
    circuits = Circuits()
    fail(circuits, *[ErrorKind.AUTH] * FAILURES, personal=True)
    assert not circuits.passes("a", None, 0.0)


def test_a_callers_failure_gives_the_upstreams_trial_back() -> None:
    circuits = opened()
    trial = circuits.enter("a", "mallory", 40.0)
    assert trial is not None
    trial.failed(failure(ErrorKind.AUTH, personal=True), 40.0)
    assert circuits.passes("a", "alice", 40.0)


def test_the_callers_are_bounded() -> None:
    circuits = Circuits()
    for number in range(CALLERS + 10):
        fail(circuits, ErrorKind.AUTH, caller=str(number), personal=True)
    assert len(circuits._callers) == CALLERS


steps = st.lists(
    st.tuples(
        st.floats(0, 20),
        st.sampled_from([*ErrorKind, None, "left"]),
        st.sampled_from([None, "alice", "bob"]),
        st.booleans(),
    ),
    max_size=60,
)


@given(steps)
def test_it_never_stays_shut(script: list[tuple[float, object, str | None, bool]]) -> None:
    """Whatever happened: 30 s later somebody gets through, and one answer closes it."""
    circuits, now = Circuits(), 0.0
    for delay, outcome, caller, personal in script:
        now += delay
        visit = circuits.enter("a", caller, now)
        if visit is None:
            assert not circuits.passes("a", caller, now)
        elif outcome is None:
            visit.answered()
            assert circuits.passes("a", caller, now)
        elif isinstance(outcome, ErrorKind):
            visit.failed(failure(outcome, personal=personal), now)
        visit and visit.left()
    for caller in (None, "alice", "bob"):
        visit = circuits.enter("a", caller, now + OPEN_SECONDS)
        assert visit is not None
        visit.answered()
        assert circuits.passes("a", caller, now + OPEN_SECONDS)
