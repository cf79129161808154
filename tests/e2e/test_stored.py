"""Responses that the provider stores, asked for by the id that the client knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests import builders
from tests.builders import function_call, message, output, recall_call, user
from tests.e2e import checks
from tests.e2e.replies import says
from tests.upstreams import response

if TYPE_CHECKING:
    from tests.e2e.process import Lab
    from tests.upstreams import Steps

JSON = [("content-type", "application/json")]
HIDDEN = recall_call("call_hidden_1", {"query": "canary"})


def _stored(body: Any) -> Steps:
    return response(200, json.dumps(body).encode(), headers=JSON)


def _response(id_: str, *items: Any, **members: Any) -> dict[str, Any]:
    used = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return {"id": id_, "object": "response", "output": list(items), "usage": used, **members}


@pytest.fixture
def recalled(lab: Lab) -> Lab:
    replies = says(HIDDEN, response_id="resp_A"), says(message("hi"), response_id="resp_B")
    with lab.post(builders.request(store=True), *replies) as exchange:
        assert list(exchange.frames())
    return lab


def test_it_is_shown_as_its_client_saw_it(recalled: Lab) -> None:
    recalled.provider.script(
        [
            _stored(_response("resp_A", HIDDEN, created_at=1)),
            _stored(_response("resp_B", message("hi"), created_at=2)),
        ]
    )
    with recalled.proxy.get("/v1/responses/resp_A?include=x") as exchange:
        assert exchange.status == 200
        whole = exchange.json()
    assert whole["id"] == "resp_A"
    assert whole["created_at"] == 1
    assert [checks.text_of(item) for item in whole["output"]] == ["hi"]
    assert whole["usage"]["total_tokens"] == 4
    targets = [request.target for request in recalled.provider.requests[2:]]
    assert targets == [b"/v1/responses/resp_A?include=x", b"/v1/responses/resp_B?include=x"]


def test_its_input_items_lack_what_was_hidden(recalled: Lab) -> None:
    page = {"object": "list", "data": [user("hello"), output("call_hidden_1", "secret"), HIDDEN]}
    recalled.provider.script([_stored(page)])
    with recalled.proxy.get("/v1/responses/resp_A/input_items") as exchange:
        assert exchange.json()["data"] == [user("hello")]


def test_it_is_deleted_for_every_hop(recalled: Lab) -> None:
    recalled.provider.script(
        [_stored({"id": hop, "deleted": True}) for hop in ("resp_A", "resp_B")]
    )
    with recalled.proxy.ask("DELETE", "/v1/responses/resp_A") as exchange:
        assert exchange.json() == {"id": "resp_A", "deleted": True}
    methods = [request.method for request in recalled.provider.requests[2:]]
    assert methods == ["DELETE", "DELETE"]


def test_an_error_names_the_id_that_the_client_knows(recalled: Lab) -> None:
    body = {"error": {"message": "Response with id 'resp_B' not found."}}
    recalled.provider.script(
        [
            _stored(_response("resp_A", HIDDEN)),
            response(404, json.dumps(body).encode(), headers=JSON),
        ]
    )
    with recalled.proxy.get("/v1/responses/resp_A") as exchange:
        assert exchange.status == 404
        assert exchange.json()["error"]["message"] == "Response with id 'resp_A' not found."


def test_its_stream_can_not_be_resumed(recalled: Lab) -> None:
    with recalled.proxy.get("/v1/responses/resp_A?stream=true&starting_after=3") as exchange:
        assert exchange.status == 400
        assert "can't be resumed" in exchange.json()["error"]["message"]
    assert len(recalled.provider.requests) == 2


def test_a_mixed_response_is_continued_with_the_hidden_answers(lab: Lab) -> None:
    shell = function_call("call_shell", "shell", {"command": "ls"})
    first = builders.request(store=True)
    with lab.post(first, says(HIDDEN, shell, response_id="resp_A")) as exchange:
        assert list(exchange.frames())
    second = builders.request(
        output("call_shell", "a.txt"), store=True, previous_response_id="resp_A"
    )
    with lab.post(second, says(message("done"), response_id="resp_B")) as exchange:
        assert list(exchange.frames())
    sent = lab.provider.requests[-1].json()
    assert sent["previous_response_id"] == "resp_A"
    assert [item["call_id"] for item in sent["input"]] == ["call_hidden_1", "call_shell"]
