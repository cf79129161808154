"""Hidden items that went back into a request: whatever its provider says, its client hears none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.discretion import INSTEAD
from tests import builders
from tests.builders import message, opening, output, recall_call, user
from tests.e2e import checks
from tests.e2e.client import SDK_HEADERS
from tests.e2e.replies import says, streamed
from tests.upstreams import response

if TYPE_CHECKING:
    from tests.e2e.client import Headers
    from tests.e2e.conftest import Lab
    from tests.upstreams import Reply

JSON: Final = [("content-type", "application/json")]
HIDDEN: Final = recall_call("call_hidden_1", {"query": "where the canary lives"})
FIRST: Final = user("first")
HISTORY: Final = (FIRST, message("hi"), user("second"))
QUOTE: Final = "No tool output found for function call call_hidden_1 (recall)."
UNDECLARED: Final = {
    "no tools": ({"tools": None, "tool_choice": None}, SDK_HEADERS),
    "recall off": ({}, (*SDK_HEADERS, ("x-sottovoce-recall", "off"))),
    "no choice": ({"tool_choice": "none"}, SDK_HEADERS),
    "another tool": ({"tool_choice": {"type": "function", "name": "shell"}}, SDK_HEADERS),
    "compaction": ({"input": [*HISTORY, {"type": "compaction_trigger"}]}, SDK_HEADERS),
    "declared": ({}, SDK_HEADERS),
}
each_request = pytest.mark.parametrize(
    ("members", "headers"), UNDECLARED.values(), ids=UNDECLARED.keys()
)


@pytest.fixture
def recalled(shared_lab: Lab) -> Lab:
    """A conversation of which the first turn had a hidden call."""
    replies = says(HIDDEN, response_id="resp_A"), says(message("hi"), response_id="resp_B")
    with shared_lab.post(builders.request(FIRST), *replies) as exchange:
        assert list(exchange.frames())
    return shared_lab


def knows_nothing(data: bytes) -> None:
    assert not [word for word in (b"recall", b"call_hidden_1", b"canary") if word in data]


@each_request
def test_an_error_that_quotes_them(
    recalled: Lab, members: dict[str, Any], headers: Headers
) -> None:
    error = {"message": QUOTE, "type": "invalid_request_error", "code": "odd", "param": None}
    asked = builders.request(*HISTORY) | members
    asked = {name: value for name, value in asked.items() if value is not None}
    named = [*JSON, ("x-request-id", "req_CALL_hidden_1"), ("openai-version", "1")]
    refusal = response(400, json.dumps({"error": error}).encode(), headers=named)
    with recalled.post(asked, refusal, headers=headers) as exchange:
        assert exchange.json() == {"error": error | {"message": INSTEAD}}
        assert "x-request-id" not in exchange.headers
        assert exchange.headers["openai-version"] == "1"
    assert b"call_hidden_1" in recalled.seen().body
    for event in ({"type": "error"} | error | {"type": "error"}, builders.failed("odd", QUOTE)):
        with recalled.post(asked, streamed([*opening(), event]), headers=headers) as exchange:
            told = exchange.body()
        knows_nothing(told)
        assert INSTEAD.encode() in told


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/v1/responses/input_tokens"])
def test_an_error_of_a_path_that_is_no_turn(recalled: Lab, path: str) -> None:
    refusal = response(400, json.dumps({"error": {"message": QUOTE}}).encode(), headers=JSON)
    asked = {"model": "m", "input": list(HISTORY)}
    with recalled.post(asked, refusal, target=path) as exchange:
        assert exchange.json() == {"error": {"message": INSTEAD}}
    assert b"call_hidden_1" in recalled.seen().body
    plain = b'{ "error": {"message": "No model m."} }'
    with recalled.post(asked, response(404, plain, headers=JSON), target=path) as exchange:
        assert (exchange.status, exchange.body()) == (404, plain)


@pytest.mark.parametrize("form", ["json", "sse"])
def test_what_a_compaction_retains_of_them(recalled: Lab, form: str) -> None:
    kept = [FIRST, {"type": "compaction", "id": "cmp_1", "encrypted_content": "zz"}]
    whole = [FIRST, HIDDEN, output("call_hidden_1", "canary"), kept[1]]
    body = {"id": "cmp", "object": "response.compaction", "output": whole}
    reply: Reply = response(200, json.dumps(body).encode(), headers=JSON)
    if form == "sse":
        done = [builders.item_done(item, at) for at, item in enumerate(whole)]
        end = {"type": "response.completed", "response": body}
        reply = streamed(builders.numbered([*done, end]))
    asked = {"model": "m", "input": list(HISTORY)}
    with recalled.post(asked, reply, target="/v1/responses/compact") as exchange:
        if form == "json":
            assert exchange.json() == body | {"output": kept}
        else:
            events = [frame.event for frame in exchange.frames()]
            assert [event.get("output_index") for event in events] == [0, 1, None]
            assert [event["sequence_number"] for event in events] == [0, 1, 2]
            assert events[-1]["response"]["output"] == kept
    with recalled.post(builders.request(*kept, user("on")), says(message("so"))) as exchange:
        assert checks.received(exchange)
    assert b"call_hidden_1" not in recalled.seen().body


def test_what_a_streamed_compaction_retains_of_them(recalled: Lab) -> None:
    asked = builders.request(*HISTORY, {"type": "compaction_trigger"})
    retained = (HIDDEN, output("call_hidden_1", "canary") | {"id": "fco_1"}, message("summary"))
    with recalled.post(asked, says(*retained)) as exchange:
        events = checks.received(exchange)
        knows_nothing(json.dumps(events).encode())
    assert [checks.text_of(item) for item in events[-1]["response"]["output"]] == ["summary"]


ANSWERED: Final = output("call_hidden_1", "canary") | {"id": "fco_1", "status": "completed"}
ODD: Final = {"type": "odd_call", "id": "odd_1", "name": "recall", "status": "completed"}


@pytest.mark.parametrize("item", [ANSWERED, ODD], ids=["an answer", "a kind that nobody knows"])
@pytest.mark.parametrize("only_in_terminal", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_an_item_that_tells_of_a_hidden_call(
    shared_lab: Lab, item: dict[str, Any], *, only_in_terminal: bool, stream: bool
) -> None:
    events = builders.stream(HIDDEN, item)
    if only_in_terminal:
        events = [one for one in events if one.get("output_index") != 1]
    first: Reply = streamed(builders.numbered(events))
    if not stream:
        body = json.dumps(events[-1]["response"]).encode()
        first = response(200, body, headers=JSON)
    rest: Reply = says(message("so"), response_id="resp_B")
    if not stream:
        done = builders.stream(message("so"), response_id="resp_B")[-1]["response"]
        rest = response(200, json.dumps(done).encode(), headers=JSON)
    with shared_lab.post(builders.request(text="odd", stream=stream), first, rest) as exchange:
        answer = checks.received(exchange)[-1]["response"] if stream else exchange.json()
        knows_nothing(json.dumps(answer).encode())
    assert [checks.text_of(one) for one in answer["output"]] == ["so"]
