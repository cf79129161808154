"""Values of plugins, written within bounds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import jsontext
from proxy.plugin_values import DEPTH, error_name, text_of, written


class Loud(list[Any]):
    """A list that raises where it is asked."""

    def __iter__(self) -> Never:
        raise RuntimeError

    def __len__(self) -> Never:
        raise RuntimeError


class LoudText(str):
    __slots__ = ()

    def __str__(self) -> Never:
        raise RuntimeError

    def __len__(self) -> Never:
        raise RuntimeError


@dataclass
class Pair:
    left: object
    right: object


class Colour(StrEnum):
    RED = "red"


class Odd(Enum):
    LIST = ([],)


def own_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def own_dict() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = {"b": [value]}
    return value


def own_pair() -> Pair:
    value = Pair(1, None)
    value.right = value
    return value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(VALUES)
def test_what_fits_is_written_as_json(value: Any) -> None:
    text = written(value, 1_000_000).encode()
    assert jsontext.loads(text) == jsontext.loads(jsontext.dumps(value))


@given(VALUES, st.integers(0, 40))
def test_what_does_not_fit_begins_as_it_would(value: Any, limit: int) -> None:
    whole = written(value, 1_000_000)
    part = written(value, limit)
    assert part[: limit + 1] == whole[: limit + 1]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Loud([1, (2, 3)]), "[1,[2,3]]"),
        ({LoudText("a"): LoudText("b")}, '{"a":"b"}'),
        (Pair(Colour.RED, date(2026, 1, 2)), '{"left":"red","right":"2026-01-02"}'),
        ([Decimal("1.50"), 2**70], "[1.50,1180591620717411303424]"),
        ("\ud800", '"\\ud800"'),
    ],
)
def test_values_that_are_more_than_json(value: object, text: str) -> None:
    assert written(value, 1000) == text


@pytest.mark.parametrize(
    "value", [object(), b"x", {1: 2}, {1, 2}, Decimal("NaN"), Odd.LIST, Pair, [print]]
)
def test_values_that_are_none(value: object) -> None:
    with pytest.raises(TypeError):
        written(value, 1000)


@pytest.mark.parametrize(
    "value", [own_list(), own_dict(), own_pair(), nested(DEPTH + 1), nested(100_000)]
)
def test_values_that_are_too_deep(value: object) -> None:
    with pytest.raises(ValueError, match="too deeply"):
        written(value, 32_768)


def test_the_deepest_value() -> None:
    assert json.loads(written(nested(DEPTH), 32_768)) == nested(DEPTH)


def test_a_value_that_doubles_with_each_level_is_cut() -> None:
    value: list[Any] = []
    for _ in range(100):
        value = [value, value]
    assert 1000 < len(written(value, 1000)) < 1010


def test_a_long_text_inside_is_cut() -> None:
    assert written(["x" * 10_000_000], 10) == f'["{"x" * 11}"'


def test_texts() -> None:
    text = text_of(LoudText("abc"))
    assert type(text) is str
    assert text == "abc"
    assert text_of(5) is None


def test_names_of_errors() -> None:
    assert error_name(ValueError("x")) == "ValueError"
    assert error_name(type("a\nb", (Exception,), {})()) == "a b"
    assert error_name(type("\n", (Exception,), {})()) == "an error without a name"
