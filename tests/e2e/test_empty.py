"""Completions with nothing in them pass, and are told of (case 14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.builders import message, recall_call, usage
from tests.e2e import checks
from tests.e2e.process import eventually
from tests.e2e.replies import says, streamed
from tests.upstreams import answer

if TYPE_CHECKING:
    from tests.e2e.conftest import Lab

WARNING = "empty completion → client"
PLAIN_REQUEST = builders.request(tools=None, tool_choice=None)


def test_an_observed_one_passes_unchanged(lab: Lab) -> None:
    events = builders.stream(usage=usage(9, 1))
    with lab.post(PLAIN_REQUEST, streamed(events)) as exchange:
        assert exchange.body() == builders.body(events)
    _told_once(lab)


def test_one_with_tools_passes(lab: Lab) -> None:
    with lab.post(builders.request(), says()) as exchange:
        assert checks.received(exchange)[-1]["response"]["output"] == []
    _told_once(lab)


def test_one_after_a_recall_passes(lab: Lab) -> None:
    hidden = recall_call("call_hidden_1", {"query": "x"})
    with lab.post(builders.request(), says(hidden), says(response_id="resp_B")) as exchange:
        assert checks.received(exchange)[-1]["response"]["output"] == []
    _told_once(lab)


def test_one_in_json_passes(lab: Lab) -> None:
    body = builders.response("resp_A", "completed", usage=usage(9, 1))
    with lab.post(PLAIN_REQUEST | {"stream": False}, answer(body)) as exchange:
        assert exchange.json() == body
    _told_once(lab)


def _told_once(lab: Lab) -> None:
    lab.proxy.reaches(1, "empty_completions_total")
    eventually(lambda: lab.proxy.said.count(WARNING) == 1, "the warning line")


@pytest.mark.parametrize(
    "item",
    [message("hi"), builders.refusal("No."), builders.function_call("c1", "shell", {})],
    ids=["text", "a refusal", "a call"],
)
def test_what_has_something_is_not_empty(shared_lab: Lab, item: builders.Item) -> None:
    with shared_lab.post(PLAIN_REQUEST, says(item)) as exchange:
        checks.received(exchange)
    shared_lab.is_idle()
    assert shared_lab.proxy.metric("empty_completions_total") == 0
