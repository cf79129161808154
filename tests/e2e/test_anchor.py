"""`recall.anchor`: the client sees a line, its provider and the memory never do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.builders import message, recall_call, user
from tests.e2e import checks
from tests.e2e.client import SDK_HEADERS
from tests.e2e.replies import says
from tests.upstreams import answer

if TYPE_CHECKING:
    from tests.e2e.conftest import StartLab

HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
LINE = "Consulted memory."


@pytest.mark.parametrize("stream", [True, False])
def test_a_line_for_the_client_alone(start_lab: StartLab, stream: bool) -> None:
    lab = start_lab(config="[recall]\nanchor = true\n")
    asked = builders.request(stream=stream)
    if stream:
        with lab.post(asked, says(HIDDEN), says(message("hi"), response_id="resp_B")) as exchange:
            response = checks.received(exchange)[-1]["response"]
    else:
        replies = [
            answer(builders.response("resp_A", "completed", output=[HIDDEN])),
            answer(builders.response("resp_B", "completed", output=[message("hi")])),
        ]
        with lab.post(asked, *replies) as exchange:
            response = exchange.json()
    assert [checks.text_of(item) for item in response["output"]] == [LINE, "hi"]

    kept = lab.seen().json()["input"]
    history = [*asked["input"], *response["output"], user("And then?")]
    with lab.post(
        builders.request(*history), says(message("Then this.")), headers=SDK_HEADERS
    ) as exchange:
        checks.received(exchange)
    assert lab.seen().json()["input"] == [*kept, message("hi"), user("And then?")]
    lab.proxy.reaches(4, "ingested_entries_total")
    assert LINE not in lab.proxy.command("recall", "list", "--json")
