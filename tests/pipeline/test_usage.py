"""Usage: what is repaired, what becomes null, and the two figures of a turn."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.response import ResponseState
from pipeline.tally import Tally
from pipeline.usage import add_usage, is_complete_usage, usable_usage
from tests import corpus

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
counts = st.integers(0, 10_000)
details = st.fixed_dictionaries(
    {}, optional={"cached_tokens": counts, "cache_write_tokens": counts}
)
near_usages = st.fixed_dictionaries(
    {},
    optional={
        "input_tokens": counts | counts.map(float) | json_values,
        "output_tokens": counts | counts.map(float),
        "total_tokens": counts | counts.map(float) | json_values,
        "input_tokens_details": details | json_values,
        "output_tokens_details": st.fixed_dictionaries({}, optional={"reasoning_tokens": counts}),
        "cost": st.floats(0, 1),
    },
)


def usage(input_: int, output: int, *, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": input_,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_ + output,
    }


@pytest.mark.parametrize(
    "value",
    [
        None,
        usage(1, 2),
        {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        usage(1, 2) | {"input_tokens_details": None, "output_tokens_details": None},
        usage(1, 2) | {"cost": 0.01, "is_byok": False, "cost_details": {"upstream": None}},
        usage(1, 2) | {"input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 1}},
    ],
)
def test_what_clients_read_stays(value: dict[str, Any] | None) -> None:
    assert is_complete_usage(value)
    assert usable_usage(value) is value


@pytest.mark.parametrize(
    ("value", "repaired"),
    [
        ({"input_tokens": 1, "output_tokens": 2}, usage(1, 2)),
        ({"input_tokens": 1.0, "output_tokens": 2, "total_tokens": 3.0}, usage(1, 2)),
        (usage(1, 2) | {"total_tokens": None}, usage(1, 2)),
        (usage(1, 2) | {"output_tokens_details": {}}, usage(1, 2)),
        (usage(1, 2) | {"input_tokens_details": {"cached_tokens": None}}, usage(1, 2)),
        (usage(9, 2) | {"input_tokens_details": {"cached_tokens": 4.0}}, usage(9, 2, cached=4)),
        (
            usage(1, 2) | {"input_tokens_details": {"cache_write_tokens": 5.0, "audio": 1.5}},
            usage(1, 2)
            | {"input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 5, "audio": 1.5}},
        ),
    ],
)
def test_what_has_a_plain_meaning_is_repaired(
    value: dict[str, Any], repaired: dict[str, Any]
) -> None:
    before = copy.deepcopy(value)
    assert not is_complete_usage(value)
    assert usable_usage(value) == repaired
    assert value == before


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        "10",
        7,
        {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        usage(1, 2) | {"input_tokens": "1"},
        usage(1, 2) | {"input_tokens": True},
        usage(1, 2) | {"output_tokens": 1.5},
        usage(1, 2) | {"output_tokens": float("inf")},
        usage(1, 2) | {"output_tokens": -1},
        usage(1, 2) | {"output_tokens": 1 << 63},
        usage(1, 2) | {"total_tokens": "3"},
        usage(1, 2) | {"input_tokens_details": []},
        usage(1, 2) | {"input_tokens_details": {"cached_tokens": "4"}},
    ],
)
def test_what_takes_guessing_becomes_null(value: object) -> None:
    assert not is_complete_usage(value)
    assert usable_usage(value) is None


@given(near_usages | json_values)
def test_whatever_comes_is_complete_or_null_afterwards(value: object) -> None:
    repaired = usable_usage(value)
    assert is_complete_usage(repaired)
    assert usable_usage(repaired) is repaired
    if is_complete_usage(value):
        assert repaired is value


def test_the_sum_is_field_wise() -> None:
    first = usage(100, 10, cached=40) | {"num_sources_used": 2, "cost": 0.5, "tier": "flex"}
    second = usage(150, 5, cached=90, reasoning=3) | {"num_sources_used": 1, "cost": 0.25}
    second["input_tokens_details"]["cache_write_tokens"] = 7
    second |= {"tier": None, "output_tokens_details": {"reasoning_tokens": 3}}
    assert add_usage(first, second) == usage(250, 15, cached=130, reasoning=3) | {
        "input_tokens_details": {"cached_tokens": 130, "cache_write_tokens": 7},
        "num_sources_used": 3,
        "cost": 0.75,
        "tier": "flex",
    }
    assert add_usage(None, first) is first
    assert add_usage(first, None) is first
    assert add_usage(None, None) is None
    added = add_usage(first | {"input_tokens_details": None}, second)
    assert added is not None
    assert added["input_tokens_details"] == {
        "cached_tokens": 90,
        "cache_write_tokens": 7,
    }


@given(near_usages, near_usages)
def test_a_sum_of_usable_usages_is_usable(first: dict[str, Any], second: dict[str, Any]) -> None:
    one, other = usable_usage(first), usable_usage(second)
    before = copy.deepcopy((one, other))
    total = add_usage(one, other)
    assert is_complete_usage(total)
    assert (one, other) == before
    if one and other and total:
        for key in ("input_tokens", "output_tokens", "total_tokens"):
            assert total[key] == one[key] + other[key]


def reporting(reported: dict[str, Any] | None) -> ResponseState:
    state = ResponseState()
    state.usage = reported
    return state


def test_the_two_figures_of_a_turn() -> None:
    tally = Tally("sum")
    for reported in (usage(100, 10, cached=40), None):
        tally.count_hop(reporting(reported))
        assert tally.spent == tally.context == usage(100, 10, cached=40)
    tally.count_hop(reporting(usage(150, 5, cached=90)))
    assert tally.spent == tally.reported == usage(250, 15, cached=130)
    assert tally.context == usage(150, 5, cached=90)
    assert tally.output_tokens == 15
    assert not tally.aside


def test_what_no_hop_has_used_is_spent_only() -> None:
    tally = Tally("last")
    tally.count_hop(reporting(usage(100, 10)))
    tally.count_aside(None)
    assert not tally.aside
    tally.count_aside(usage(7, 3))
    assert tally.aside
    assert tally.spent == usage(107, 13)
    assert tally.reported == usage(100, 10)


@corpus.each
def test_real_usage_needs_no_repair(recorded: corpus.Recorded) -> None:
    assert is_complete_usage(recorded.events[-1].get("response", {}).get("usage"))
