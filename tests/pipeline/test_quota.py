"""Quota events: what passes of one, order, caps, and what a rolled-back hop takes with it."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.quota import EVENT, MAX_BYTES, MAX_EVENTS, QuotaLog, bucket, rebuild

FULL: dict[str, Any] = {
    "type": EVENT,
    "plan_type": "plus",
    "rate_limits": {
        "allowed": True,
        "limit_reached": False,
        "primary": {
            "used_percent": 87.5,
            "window_minutes": 300,
            "reset_after_seconds": 18000,
            "reset_at": 1785269351,
        },
        "secondary": None,
    },
    "code_review_rate_limits": None,
    "additional_rate_limits": [
        {"limit_name": "spark", "rate_limit": {"allowed": True, "primary": {"used_percent": 3}}}
    ],
    "credits": {"has_credits": False, "unlimited": False, "balance": "0"},
    "metered_limit_name": "codex_other",
    "limit_name": "Other",
    "promo": None,
}


def event(used: float, *, name: str | None = None, window: str = "primary") -> dict[str, Any]:
    body: dict[str, Any] = {"type": EVENT, "rate_limits": {window: {"used_percent": used}}}
    return body | ({"limit_name": name} if name else {})


def used(record: dict[str, Any], window: str = "primary") -> float:
    value: float = record["rate_limits"][window]["used_percent"]
    return value


def test_a_known_event_passes_whole() -> None:
    assert rebuild(FULL) == FULL
    assert rebuild(FULL) is not FULL
    assert bucket(FULL) == "codex_other"
    assert [bucket(event(1, name="x")), bucket(event(1))] == ["x", "codex"]


def test_fields_stand_in_a_fixed_order() -> None:
    backwards = dict(reversed(FULL.items()))
    assert orjson.dumps(rebuild(backwards)) == orjson.dumps(rebuild(FULL))


@pytest.mark.parametrize(
    "unknown",
    [
        {"account_id": "acct_1"},
        {"plan_type": {"email": "someone"}},
        {"plan_type": "x" * 300},
        {"plan_type": "line\nbreak"},
        {"plan_type": "\ud83d"},
        {"rate_limits": [1]},
        {"rate_limits": "all of it"},
        {"credits": 7},
        {"limit_name": 7},
        {"promo": 7},
        {"additional_rate_limits": "more"},
    ],
)
def test_what_is_unknown_stays_behind(unknown: dict[str, Any]) -> None:
    assert rebuild({"type": EVENT, "promo": "hi"} | unknown) in (
        {"type": EVENT, "promo": "hi"},
        None,
    )
    assert rebuild({"type": EVENT} | unknown) is None


def test_kinds_are_checked_at_every_depth() -> None:
    wild = {
        "rate_limits": {
            "allowed": "yes",
            "user": "me",
            "primary": {"used_percent": True, "window_minutes": 1 << 80, "reset_at": "2026-12-01"},
            "secondary": [],
        },
        "additional_rate_limits": {"ok": {"allowed": True, "secret": 1}, "bad\n": {}, "no": 4},
        "credits": {"balance": 4.25, "card": "4111"},
        "promo": {"message": "more", "link": "x"},
    }
    assert rebuild(wild) == {
        "type": EVENT,
        "rate_limits": {"primary": {"reset_at": "2026-12-01"}},
        "additional_rate_limits": {"ok": {"allowed": True}},
        "credits": {"balance": 4.25},
        "promo": {"message": "more"},
    }


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
names = st.sampled_from([*FULL, "primary", "allowed", "used_percent", "balance", "canary"])
wild_events = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=6),
).map(lambda value: {"rate_limits": value, "credits": value, "additional_rate_limits": [value]})


@given(wild_events)
def test_nothing_unknown_gets_through(wild: dict[str, Any]) -> None:
    before = copy.deepcopy(wild)
    record = rebuild(wild)
    assert repr(wild) == repr(before)
    assert record is not None
    assert b"canary" not in orjson.dumps(record)
    assert rebuild(record) == record


def test_adjacent_repetitions_say_nothing() -> None:
    log = QuotaLog()
    assert log.append_codex_rate_limit_event(event(1)) == event(1)
    assert log.append_codex_rate_limit_event(event(1) | {"account": "x"}) is None
    assert log.append_codex_rate_limit_event(event(2)) == event(2)
    assert log.append_codex_rate_limit_event(event(1)) == event(1)
    assert log.append_codex_rate_limit_event({"type": EVENT}) is None
    assert [used(record) for record in log.events] == [1, 2, 1]


def test_a_rolled_back_hop_takes_its_public_events_only() -> None:
    log = QuotaLog()

    def receive(quota: dict[str, Any]) -> bool:
        record = log.append_codex_rate_limit_event(quota)
        return record is not None and log.publish(record)

    assert receive(event(1))
    mark = log.mark()
    assert receive(event(2))
    log.rollback(mark)
    assert [used(record) for record in log.public] == [1]
    assert [used(record) for record in log.events] == [1, 2]
    assert not receive(event(1))  # new to the log, but the client has just seen it
    assert [used(record) for record in log.events] == [1, 2, 1]
    assert receive(event(3))


streams = st.lists(
    st.builds(
        event,
        st.integers(0, 100),
        name=st.sampled_from([None, "a", "b" * 200]),
        window=st.sampled_from(["primary", "secondary"]),
    ),
    max_size=150,
)


@given(streams)
def test_caps_drop_the_oldest_but_never_the_newest_of_a_window(
    events: list[dict[str, Any]],
) -> None:
    log = QuotaLog()
    accepted = [
        record
        for quota in events
        if (record := log.append_codex_rate_limit_event(quota)) is not None
    ]
    assert len(log.events) <= MAX_EVENTS
    assert sum(len(orjson.dumps(record)) for record in log.events) <= MAX_BYTES
    arrived = iter(accepted)
    assert all(any(record is kept for record in arrived) for kept in log.events)  # in order
    newest = {(bucket(r), window): used(r, window) for r in accepted for window in r["rate_limits"]}
    kept = log.newest()
    assert newest == {
        (name, window): used(record, window)
        for name, record in kept.items()
        for window in record["rate_limits"]
    }


def test_a_hundred_buckets_do_not_break_the_caps() -> None:
    log = QuotaLog()
    for i in range(100):
        record = log.append_codex_rate_limit_event(event(i, name=f"bucket {i} " + "x" * 200))
        assert record is not None
        assert log.publish(record)
    for records in (log.events, log.public):
        assert len(records) <= MAX_EVENTS
        assert sum(len(orjson.dumps(record)) for record in records) <= MAX_BYTES
        assert used(records[-1]) == 99


def test_one_event_above_the_cap_is_not_kept() -> None:
    entry = dict.fromkeys(("limit_name", "metered_limit_name", "metered_feature"), "x" * 250)
    window = dict.fromkeys(FULL["rate_limits"]["primary"], 123456789.25)
    limits = {"primary": window, "secondary": window}
    huge = {"additional_rate_limits": [entry | {"rate_limit": limits, "rate_limits": limits}] * 99}
    assert rebuild(huge) is None


def test_newest_keeps_windows_that_the_last_event_left_out() -> None:
    log = QuotaLog()
    log.append_codex_rate_limit_event(event(1, window="secondary") | {"plan_type": "plus"})
    log.append_codex_rate_limit_event(event(2))
    log.append_codex_rate_limit_event(event(3, name="spark"))
    assert log.newest() == {
        "codex": {
            "type": EVENT,
            "plan_type": "plus",
            "rate_limits": {"primary": {"used_percent": 2}, "secondary": {"used_percent": 1}},
        },
        "spark": event(3, name="spark"),
    }
