"""Requests are edited as text: nothing but our own additions changes (case 16)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.builders import message
from tests.e2e.client import SDK_HEADERS
from tests.e2e.replies import streamed

if TYPE_CHECKING:
    from tests.e2e.conftest import Lab

TOOL = '{ "type":"function","name":"shell", "parameters":{"type" : "object"} }'
ODD = (
    r'"big": 123456789012345678901234567890, "exact": 1.10, "tiny": 1E-7, '
    r'"twice": 1, "twice": 2, "lone": "\ud83d", "escaped": "\u00e9\/", '
    '"plain": "é🙂",\n\t"model" : "m", "stream":true, "store": false,'
)
"""What a parser and a printer between client and upstream would change."""
INCLUDE = '"include": ["reasoning.encrypted_content"]'
REPLY = builders.stream(message("hi"))


def sent(lab: Lab, text: str, *headers: tuple[str, str]) -> str:
    with lab.post(text.encode(), streamed(REPLY), headers=(*SDK_HEADERS, *headers)) as exchange:
        assert exchange.status == 200, exchange.body()
        exchange.body()
    return lab.seen().body.decode()


@pytest.mark.parametrize("end", ["}", "\n }\n"])
def test_only_the_tool_is_added(shared_lab: Lab, end: str) -> None:
    before = f'{{{ODD} {INCLUDE}, "input": "hi", "tools": [{TOOL}'
    after = f' ], "tail": [1,  2]{end}'
    text = sent(shared_lab, before + after)
    assert text.startswith(before)
    assert text.endswith(after)
    added = text[len(before) : len(text) - len(after)]
    assert json.loads(added.removeprefix(","))["name"] == "recall"


def test_include_is_added_too(shared_lab: Lab) -> None:
    before = f'{{{ODD} "input": "hi", "tools": [{TOOL}'
    text = sent(shared_lab, before + "] }")
    assert text.startswith(before)
    parsed = json.loads(text)
    assert parsed["include"] == ["reasoning.encrypted_content"]
    assert [tool["name"] for tool in parsed["tools"]] == ["shell", "recall"]
    assert parsed["big"] == 123456789012345678901234567890


def test_the_last_of_two_members_counts(shared_lab: Lab) -> None:
    before = f'{{"tools": [], {ODD} {INCLUDE}, "input": "hi", "tools": [{TOOL}'
    text = sent(shared_lab, before + "]}")
    assert text.startswith(before)
    assert text.endswith("]}")


def test_a_member_that_only_looks_like_the_tools(shared_lab: Lab) -> None:
    fake = json.dumps(f'"tools": [{TOOL}]')
    before = f'{{{ODD} {INCLUDE}, "tools": [{TOOL}'
    after = f'], "input": {fake}}}'
    text = sent(shared_lab, before + after)
    assert text.startswith(before)
    assert text.endswith(after)


@pytest.mark.parametrize("tools", [f'"tools": [{TOOL}],', '"tools": [],', ""])
def test_without_injection_the_bytes_are_the_same(shared_lab: Lab, tools: str) -> None:
    text = f'  {{{ODD} {tools} "input": "hi"}}\n'
    assert sent(shared_lab, text, ("x-sottovoce-recall", "off")) == text


@pytest.mark.parametrize(
    "target", ["/v1/embeddings?a=%2F&a=b", "/v1/files/%E4%BD%A0/content", "/v1/%2e%2e/x"]
)
def test_other_paths_pass_through_untouched(shared_lab: Lab, target: str) -> None:
    data = b"\x00\xff not json"
    lab = shared_lab
    lab.provider.script([streamed(REPLY, headers=[("x-own", "1"), ("server", "theirs")])])
    with lab.post(data, target=target) as exchange:
        assert exchange.body() == builders.body(REPLY)
        assert exchange.headers["x-own"] == "1"
        assert exchange.headers["server"] == "theirs"
        assert "date" not in exchange.headers
    assert lab.seen().body == data
    assert lab.seen().target.decode() == target
