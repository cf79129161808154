"""The walk along upstreams: order, attempts, delays, aborts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UpstreamError
from pipeline.failover import (
    Aborted,
    Answered,
    AttemptFailed,
    Done,
    GiveUp,
    Healed,
    RouterAbortError,
    Skipped,
    Sleep,
    Slept,
    TryUpstream,
    Walk,
    WalkPhase,
    backoff_ms,
    retry_after_ms,
)
from pipeline.taxonomy import ErrorKind, Failure

if TYPE_CHECKING:
    from pipeline.failover import WalkCommand, WalkEvent

NOW = 1_790_000_000.0
PASSING = (ErrorKind.RATE_LIMIT, ErrorKind.NETWORK)


def failure(
    kind: ErrorKind = ErrorKind.RATE_LIMIT,
    name: str = "no",
    *,
    retry_after_ms: int | None = None,
    spent: bool = False,
    inside: bool = False,
) -> Failure:
    return Failure(kind, UpstreamError(name), retry_after_ms, spent=spent, inside=inside)


def failed(
    kind: ErrorKind = ErrorKind.RATE_LIMIT, name: str = "no", *, retry_after_ms: int | None = None
) -> AttemptFailed:
    return AttemptFailed(failure(kind, name, retry_after_ms=retry_after_ms))


def play(walk: Walk, *events: WalkEvent) -> list[WalkCommand]:
    return [walk.start(), *(walk.receive(event) for event in events)]


# --- delays -------------------------------------------------------------------------------------


def test_the_delays() -> None:
    assert [backoff_ms(n) for n in range(1, 6)] == [1250, 2500, 4750, 8000, 8000]
    assert backoff_ms(1000) == 8000


@given(st.integers(1, 100), st.none() | st.integers(0, 10**6))
def test_what_the_upstream_asks_for_is_a_floor(n: int, floor: int | None) -> None:
    plain = min(500 * 2**n + 500 * n // 2, 8000)
    assert backoff_ms(n, floor) == max(plain, floor or 0)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3000),
        ({"Retry-After": " 3 "}, 3000),
        ({"retry-after": "0.5"}, 500),
        ({"retry-after": "-4"}, 0),
        ({"retry-after-ms": "1501"}, 1501),
        ({"retry-after-ms": "1500.2"}, 1501),
        ({"retry-after-ms": "-1"}, 0),
        ({"retry-after-ms": "20", "retry-after": "3"}, 20),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3000),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "inf"}, 10**15),
        ({"retry-after": "Mon, 21 Sep 2026 14:13:20 GMT"}, 0),
        ({"retry-after": "Mon, 99 Sep 2026 14:13:20 GMT"}, None),
    ],
)
def test_forms_of_retry_after(headers: dict[str, str], expected: int | None) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert retry_after_ms(raw, NOW) == expected


@given(st.integers(-(10**6), 10**6))
def test_a_date_counts_from_now(seconds: int) -> None:
    moment = datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=seconds)
    value = format_datetime(moment, usegmt=True).encode()
    assert retry_after_ms([(b"retry-after", value)], NOW) == max(seconds, 0) * 1000


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_header_breaks_it(one: bytes, other: bytes) -> None:
    delay = retry_after_ms([(b"retry-after-ms", one), (b"retry-after", other)], NOW)
    assert delay is None or 0 <= delay <= 10**15


# --- one upstream -------------------------------------------------------------------------------


def test_the_first_answer_ends_it() -> None:
    assert play(Walk(["a", "b"]), Answered()) == [TryUpstream("a", 1), Done()]


@pytest.mark.parametrize("kind", PASSING)
def test_what_may_pass_is_tried_three_times(kind: ErrorKind) -> None:
    last = failed(kind, "third")
    assert play(Walk(["a"]), failed(kind), Slept(), failed(kind), Slept(), last) == [
        TryUpstream("a", 1),
        Sleep(1250),
        TryUpstream("a", 2),
        Sleep(2500),
        TryUpstream("a", 3),
        GiveUp(last.failure.error),
    ]


@pytest.mark.parametrize("kind", [kind for kind in ErrorKind if kind not in PASSING])
def test_everything_else_is_tried_once(kind: ErrorKind) -> None:
    event = failed(kind)
    assert play(Walk(["a"]), event) == [TryUpstream("a", 1), GiveUp(event.failure.error)]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(failure(kind, **how), id=f"{kind} {how}")
        for kind in PASSING
        for how in ({"inside": True}, {"spent": True})
    ]
    + [pytest.param(failure(kind, retry_after_ms=30_001), id=f"{kind} later") for kind in PASSING],
)
def test_what_is_not_worth_it(event: Failure) -> None:
    commands = play(Walk(["a", "b"]), AttemptFailed(event))
    assert commands == [TryUpstream("a", 1), TryUpstream("b", 1)]


def test_the_upstreams_own_delay_is_the_floor_of_each() -> None:
    commands = play(Walk(["a"]), failed(retry_after_ms=30_000), Slept(), failed(retry_after_ms=100))
    assert commands[1] == Sleep(30_000)
    assert commands[3] == Sleep(2500)


def test_a_trial_is_one_attempt() -> None:
    event = AttemptFailed(failure(), once=True)
    assert play(Walk(["a", "b"]), event) == [TryUpstream("a", 1), TryUpstream("b", 1)]


def test_a_healed_request_goes_out_again_at_once_and_costs_no_attempt() -> None:
    commands = play(
        Walk(["a"]), failed(), Slept(), Healed(), failed(), Slept(), Healed(), Answered()
    )
    assert commands[2:] == [
        TryUpstream("a", 2),
        TryUpstream("a", 2),
        Sleep(2500),
        TryUpstream("a", 3),
        TryUpstream("a", 3),
        Done(),
    ]


# --- several ------------------------------------------------------------------------------------


def test_the_last_error_is_raised() -> None:
    first, last = failed(ErrorKind.AUTH, "first"), failed(ErrorKind.OVERFLOW, "last")
    assert play(Walk(["a", "b"]), first, last)[-1] == GiveUp(last.failure.error)


def test_each_upstream_has_its_own_delays() -> None:
    events = [failed(), Slept(), failed(), Slept(), failed()]
    commands = play(Walk(["a", "b"]), *events, *events)
    assert [command.ms for command in commands if isinstance(command, Sleep)] == [
        1250,
        2500,
        1250,
        2500,
    ]


def test_who_could_still_take_it() -> None:
    walk = Walk(["a", "b", "c"])
    walk.start()
    assert walk.ahead == ("b", "c")
    walk.receive(failed(ErrorKind.AUTH))
    assert walk.ahead == ("c",)
    walk.receive(Skipped())
    assert walk.ahead == ()


def test_who_is_skipped_is_not_asked_where_another_was() -> None:
    event = failed(ErrorKind.AUTH)
    assert play(Walk(["a", "b", "c"]), Skipped(), event, Skipped()) == [
        TryUpstream("a", 1),
        TryUpstream("b", 1),
        TryUpstream("c", 1),
        GiveUp(event.failure.error),
    ]


def test_who_is_skipped_is_the_last_resort() -> None:
    event = failed(ErrorKind.AUTH)
    assert play(Walk(["a", "b"]), Skipped(), Skipped(), event, failed(), Slept(), Answered()) == [
        TryUpstream("a", 1),
        TryUpstream("b", 1),
        TryUpstream("a", 1, forced=True),
        TryUpstream("b", 1, forced=True),
        Sleep(1250),
        TryUpstream("b", 2, forced=True),
        Done(),
    ]


# --- aborts -------------------------------------------------------------------------------------


def test_an_abort_before_the_first_attempt() -> None:
    walk = Walk(["a"])
    (command,) = [walk.receive(Aborted())]
    assert isinstance(command, GiveUp)
    assert isinstance(command.error, RouterAbortError)
    assert walk.phase is WalkPhase.OVER


def test_an_abort_during_the_first_attempt() -> None:
    command = play(Walk(["a", "b"]), Aborted())[-1]
    assert isinstance(command, GiveUp)
    assert isinstance(command.error, RouterAbortError)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([failed(ErrorKind.AUTH, "last")], id="before the next upstream"),
        pytest.param([failed(name="last")], id="during the sleep"),
        pytest.param([failed(name="last"), Slept()], id="during a later attempt"),
    ],
)
def test_an_abort_later_raises_the_last_error(events: list[WalkEvent]) -> None:
    command = play(Walk(["a", "b"]), *events, Aborted())[-1]
    assert isinstance(command, GiveUp)
    assert command.error.message == "last"


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([], Slept()),
        ([Answered()], Answered()),
        ([Answered()], Aborted()),
        ([failed()], failed()),
        ([failed(ErrorKind.AUTH)], Healed()),
    ],
)
def test_what_can_not_have_come_of_it_is_refused(events: list[WalkEvent], wrong: WalkEvent) -> None:
    walk = Walk(["a"])
    play(walk, *events)
    with pytest.raises(ValueError, match="takes no"):
        walk.receive(wrong)


# --- any script ---------------------------------------------------------------------------------

failures = st.builds(
    failure,
    st.sampled_from(ErrorKind),
    st.uuids().map(str),
    retry_after_ms=st.none() | st.integers(0, 60_000),
    spent=st.booleans(),
    inside=st.booleans(),
)
scripts = st.lists(st.lists(failures, max_size=4), min_size=1, max_size=5)
"""For each upstream how its attempts fail; then it answers."""


def expected(script: list[list[Failure]]) -> list[WalkCommand]:
    """Return what a walk must ask for, in the words of the rule."""
    commands: list[WalkCommand] = []
    last = None
    for number, outcomes in enumerate(script):
        for attempt in (1, 2, 3):
            commands.append(TryUpstream(str(number), attempt))
            if attempt > len(outcomes):
                return [*commands, Done()]
            last = outcomes[attempt - 1]
            passing = last.kind in PASSING and not last.inside and not last.spent
            if attempt == 3 or not passing or (last.retry_after_ms or 0) > 30_000:
                break
            delay = [1250, 2500][attempt - 1]
            commands.append(Sleep(max(delay, last.retry_after_ms or 0)))
    assert last is not None
    return [*commands, GiveUp(last.error)]


@given(scripts)
def test_any_script_of_failures(script: list[list[Failure]]) -> None:
    walk = Walk([str(number) for number in range(len(script))])
    left = [list(outcomes) for outcomes in script]
    commands = [walk.start()]
    while not isinstance(commands[-1], (Done, GiveUp)):
        match commands[-1]:
            case Sleep():
                commands.append(walk.receive(Slept()))
            case TryUpstream(upstream):
                outcomes = left[int(upstream)]
                event = AttemptFailed(outcomes.pop(0)) if outcomes else Answered()
                commands.append(walk.receive(event))
    assert commands == expected(script)
    assert walk.phase is WalkPhase.OVER


@given(scripts, st.integers(0, 20))
def test_any_abort_ends_it_with_the_last_error(script: list[list[Failure]], when: int) -> None:
    walk = Walk([str(number) for number in range(len(script))])
    left = [list(outcomes) for outcomes in script]
    command, last = walk.start(), None
    for _ in range(when):
        match command:
            case Sleep():
                command = walk.receive(Slept())
            case TryUpstream(upstream) if left[int(upstream)]:
                last = left[int(upstream)].pop(0)
                command = walk.receive(AttemptFailed(last))
            case _:
                break
    if isinstance(command, GiveUp):
        return
    command = walk.receive(Aborted())
    assert isinstance(command, GiveUp)
    if last is None:
        assert isinstance(command.error, RouterAbortError)
    else:
        assert command.error is last.error
