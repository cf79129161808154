from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.tool import DECLARATION, NAME, RecallInput, Within, parse_recall_input

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "query": JSON,
        "scope": JSON | st.sampled_from(["all", "project", "session"]),
        "ids": JSON | st.lists(st.text(max_size=300), max_size=10),
        "offset": JSON,
        "limit": JSON | st.integers(0, 30),
    },
)


def test_declaration_is_byte_stable() -> None:
    assert hashlib.sha256(DECLARATION).hexdigest() == (
        "4908e6d7ea71a1b7b4005472cabcfef7e2c11764bfa7bdb567e6c364a5ccfdf3"
    )


def test_declaration_is_a_function_tool_for_both_layouts() -> None:
    tool = json.loads(DECLARATION)
    assert tool["type"] == "function"
    assert tool["name"] == NAME
    assert tool["strict"] is False
    assert list(tool["parameters"]["properties"]) == ["query", "scope", "ids", "offset", "limit"]
    assert tool["parameters"]["properties"]["scope"]["enum"] == list(Within)
    assert json.dumps(tool, separators=(",", ":")).encode() == DECLARATION


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"query":"x"}', RecallInput("x")),
        (
            '{"query":" x ","scope":null,"ids":null,"offset":null,"limit":null}',
            RecallInput("x"),
        ),
        ('{"query":"x","scope":"session"}', RecallInput("x", Within.SESSION)),
        ('{"ids":["m1"," m2 ","m1",""]}', RecallInput(ids=("m1", "m2"))),
        ('{"ids":"m1"}', RecallInput(ids=("m1",))),
        ('{"query":"x","offset":8.0,"limit":20}', RecallInput("x", offset=8, limit=20)),
        ('{"query":"x","unknown":[1]}', RecallInput("x")),
        (json.dumps({"query": "q" * 512}), RecallInput("q" * 512)),
        ('{"query":"\\ud83d"}', RecallInput("\ud83d")),
    ],
)
def test_usable_arguments(arguments: str, expected: RecallInput) -> None:
    assert parse_recall_input(arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("", "`query`"),
        ("{}", "`query`"),
        ('{"query":null}', "`query`"),
        ('{"query":"  ","ids":[]}', "`query`"),
        ("nonsense", "one JSON object"),
        ("[1]", "one JSON object"),
        ("[" * 100_000, "one JSON object"),
        ('{"query":"x', "one JSON object"),
        ('{"query":5}', "`query` must be a string"),
        (json.dumps({"query": "q" * 513}), "512"),
        ('{"query":"x","scope":"everything"}', "all, project, session"),
        ('{"query":"x","scope":["all"]}', "all, project, session"),
        ('{"ids":["m1",2]}', "list of strings"),
        ('{"ids":{"m1":1}}', "list of strings"),
        (json.dumps({"ids": [f"m{n}" for n in range(1, 10)]}), "at most 8"),
        (json.dumps({"ids": ["m" * 257]}), "256"),
        ('{"query":"x","limit":0}', "`limit` must be a whole number from 1 to 20"),
        ('{"query":"x","limit":21}', "`limit`"),
        ('{"query":"x","limit":true}', "`limit`"),
        ('{"query":"x","limit":"5"}', "`limit`"),
        ('{"query":"x","limit":NaN}', "`limit`"),
        ('{"query":"x","offset":-1}', "`offset`"),
        ('{"query":"x","offset":1.5}', "`offset`"),
    ],
)
def test_wrong_arguments_say_what_to_fix(arguments: str, what: str) -> None:
    answer = parse_recall_input(arguments)
    assert isinstance(answer, str)
    assert answer.startswith("recall was not run: ")
    assert what in answer


@given(ARGUMENTS.map(json.dumps) | st.text())
def test_any_arguments_give_an_input_in_bounds_or_a_short_sentence(arguments: str) -> None:
    result = parse_recall_input(arguments)
    if isinstance(result, str):
        assert len(result) < 200
        return
    assert result.query or result.ids
    assert len(result.query) <= 512
    assert len(result.ids) <= 8
    assert all(len(each) <= 256 for each in result.ids)
    assert 0 <= result.offset <= 200
    assert 1 <= result.limit <= 20


@given(st.text(min_size=12, alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_the_answer_repeats_nothing_that_came(secret: str) -> None:
    answer = parse_recall_input(json.dumps({"query": "x", "scope": secret, "limit": secret}))
    assert isinstance(answer, str)
    assert secret not in answer
