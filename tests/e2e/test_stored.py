"""Responses that the provider stores, asked for by the id that the client knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from recall.tool import DECLARATION
from tests import builders
from tests.builders import function_call, message, output, recall_call, user
from tests.e2e import checks
from tests.e2e.process import Proxy
from tests.e2e.replies import says
from tests.upstreams import response, stream

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Lab
    from tests.upstreams import Steps

JSON = [("content-type", "application/json")]
OURS: Final = json.loads(DECLARATION)
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


@pytest.mark.parametrize("streamed", [True, False])
def test_our_tool_is_not_in_a_response_that_did_not_call_it(lab: Lab, *, streamed: bool) -> None:
    """No record was left of it: what was declared is known by what it is."""
    body = _response("resp_T", message("hi"), tools=[builders.CLIENT_TOOL, OURS])
    shown = _response("resp_T", message("hi"), tools=[builders.CLIENT_TOOL])
    if streamed:
        event = {"type": "response.completed", "response": body}
        steps = stream(b"event: odd\r\ndata: {}\r\n\r\n", *builders.frames([event]))
        lab.provider.script([steps])
        with lab.proxy.get("/v1/responses/resp_T?stream=true") as exchange:
            odd, frame = exchange.frames()
        assert odd.raw == b"event: odd\r\ndata: {}\r\n\r\n"
        assert frame.event["response"] == shown
        return
    for method, target in (("GET", "resp_T"), ("POST", "resp_T/cancel"), ("DELETE", "resp_T")):
        lab.provider.script([_stored(body)])
        with lab.proxy.ask(method, f"/v1/responses/{target}") as exchange:
            assert exchange.json() == shown


@pytest.mark.parametrize("change", [{}, {"parameters": {}, "description": "Mine."}])
def test_a_response_without_our_tool_passes_as_it_came(lab: Lab, change: dict[str, Any]) -> None:
    tools = [OURS | change] if change else []
    body = json.dumps(_response("resp_T", message("hi"), tools=tools), indent=2).encode()
    lab.provider.script([response(200, body, headers=JSON)])
    with lab.proxy.get("/v1/responses/resp_T") as exchange:
        assert exchange.body() == body
    lab.provider.script([response(404, b"{ }", headers=JSON)])
    with lab.proxy.get("/v1/responses/resp_T") as exchange:
        assert (exchange.status, exchange.body()) == (404, b"{ }")


def _page(*items: Any, more: bool = False) -> dict[str, Any]:
    edges = {"first_id": items[0]["id"], "last_id": items[-1]["id"]}
    return {"object": "list", "data": list(items), **edges, "has_more": more}


USER: Final = user("hello") | {"id": "msg_u"}
PAIR: Final = (output("call_hidden_1", "secret") | {"id": "fco_1"}, HIDDEN)
OTHERS: Final = recall_call("call_of_client", {"query": "mine"})


def test_input_items_of_a_later_response_lack_what_was_put_back(
    recalled: Lab, tmp_path: Path
) -> None:
    shown = _page(OTHERS, USER)
    recalled.provider.script([_stored(_page(*PAIR, OTHERS, USER, *PAIR[:1]))])
    with recalled.proxy.get("/v1/responses/resp_later/input_items") as exchange:
        assert exchange.json() == shown
    recalled.proxy.__exit__()
    url = f"{recalled.provider.url}/v1"
    with Proxy(tmp_path / "again", upstream=url, beside=recalled.proxy) as again:
        recalled.provider.script([_stored(_page(*PAIR, OTHERS, USER))])
        with again.get("/v1/responses/resp_later/input_items") as exchange:
            assert exchange.json() == shown


@pytest.mark.parametrize("response_id", ["resp_A", "resp_later"])
def test_a_page_that_has_hidden_items_only_is_not_the_last(recalled: Lab, response_id: str) -> None:
    pages = [_page(*PAIR, more=True), _page(USER)]
    recalled.provider.script([_stored(page) for page in pages])
    with recalled.proxy.get(f"/v1/responses/{response_id}/input_items?limit=2") as exchange:
        assert exchange.json() == pages[1]
    target = recalled.provider.requests[-1].target
    assert target.endswith(b"/input_items?limit=2&after=" + HIDDEN["id"].encode())
    recalled.provider.script([_stored(_page(*PAIR))])
    with recalled.proxy.get(f"/v1/responses/{response_id}/input_items") as exchange:
        nothing: dict[str, Any] = {"data": [], "first_id": None, "last_id": None}
        assert exchange.json() == _page(*PAIR) | nothing


@pytest.mark.parametrize("members", [{}, {"stream": False}, {"tools": None, "tool_choice": None}])
def test_the_response_that_is_continued_has_the_id_that_its_client_knows(
    recalled: Lab, members: dict[str, Any]
) -> None:
    request = builders.request(store=True, previous_response_id="resp_A", **members)
    answer = _response("resp_C", message("so"), status="completed", previous_response_id="resp_B")
    reply = _stored(answer)
    if request["stream"]:
        created = {"type": "response.created", "response": answer | {"output": []}}
        items = builders.item_events(message("so"), 0)
        last = {"type": "response.completed", "response": answer}
        reply = stream(*builders.frames(builders.numbered([created, *items, last])))
    with recalled.post(request, reply) as exchange:
        told = exchange.body()
    assert recalled.seen().json()["previous_response_id"] == "resp_B"
    assert b"resp_B" not in told
    assert b"resp_A" in told
    recalled.provider.script([_stored(answer)])
    with recalled.proxy.get("/v1/responses/resp_C") as exchange:
        assert exchange.json()["previous_response_id"] == "resp_A"


def test_an_error_names_the_response_that_the_client_continues(recalled: Lab) -> None:
    request = builders.request(store=True, previous_response_id="resp_A")
    error = {"error": {"message": "Previous response with id 'resp_B' not found."}}
    with recalled.post(request, response(400, json.dumps(error).encode(), headers=JSON)) as told:
        assert told.json()["error"]["message"] == "Previous response with id 'resp_A' not found."
