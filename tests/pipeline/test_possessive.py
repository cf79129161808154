from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.jsonspans import KEY
from pipeline.possessive import repeated

PACKAGES = ("pipeline", "proxy", "recall", "telemetry")
GROUPS = (r'[^"]*+"(?<=[^\\]\\")', r'\\.[^"\\]*+', "ab?c", r'[^"\\]++|\\.')


@pytest.mark.parametrize("group", GROUPS)
@given(text=st.text('ab"\\c', max_size=12))
def test_both_forms_match_the_same(group: str, text: str) -> None:
    sound = re.match(repeated(group), text)
    atomic = re.match(repeated(group, broken=True), text)
    assert sound is not None
    assert atomic is not None
    assert sound.span() == atomic.span()


def test_what_was_repeated_is_not_given_up() -> None:
    for broken in (False, True):
        assert re.fullmatch(repeated("ab", broken=broken) + "ab", "abab") is None


def test_a_key_is_found_where_the_engine_is_broken_too() -> None:
    for text in (b'"a": 1', b'"a" :1', b'"a\\"b": 1', b'"a\\\\": 1', b'"": 1'):
        match = KEY.match(text)
        assert match is not None
        assert text[match.end() :] == b"1"


def test_no_group_is_repeated_possessively_elsewhere() -> None:
    root = Path(__file__).parents[2]
    sources = [path for each in PACKAGES for path in (root / each).rglob("*.py")]
    found = [
        f"{path.name}: {line.strip()}"
        for path in sources
        if path.name != "possessive.py"
        for line in path.read_text().splitlines()
        if re.search(r"\)(?:[*+?]|\{[\d,]+\})\+", line)
    ]
    assert not found, "use pipeline.possessive.repeated"
