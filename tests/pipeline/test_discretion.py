"""A provider that fails quotes what it was sent: nothing of a hidden call may come out of that."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from pipeline.discretion import INSTEAD, RUN, Discretion
from pipeline.lifecycle import EVENTS
from pipeline.restored import Restored
from tests import builders
from tests.builders import body, function_call, item_events, message, numbered, opening, recall_call
from tests.playbook import Answer, run_turn
from tests.sent import check_sent

CALL_ID: Final = "call_hidden_1"
ARGUMENTS: Final = {"query": "where the canary lives"}
HIDDEN: Final = recall_call(CALL_ID, ARGUMENTS)
QUOTES: Final = {
    "the query alone": "Nothing can be asked about Where the Canary lives.",
    "the name": "Invalid schema for function 'recall': must be an object.",
    "the call id": f"No tool output found for function call {CALL_ID}.",
    "the item id": f"Item '{HIDDEN['id']}' was provided without its following item.",
    "the arguments": f"Not understood: {HIDDEN['arguments']}",
    "in another case": f"TOOL RECALL, {CALL_ID.upper()}",
    "a part of the arguments": "Not understood: the canary lives",
    "the arguments once more as JSON": f"Not understood: {json.dumps(HIDDEN['arguments'])}",
}
CANARIES: Final = (b"recall", CALL_ID.encode(), HIDDEN["id"].encode(), b"canary")
each_quote = pytest.mark.parametrize("quote", QUOTES.values(), ids=QUOTES)


def told(message: str, **more: Any) -> dict[str, Any]:
    return {"message": message, "type": "invalid_request_error", "code": "odd", **more}


def knows_nothing(data: bytes) -> None:
    assert not [canary for canary in CANARIES if canary in data]


@each_quote
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("done", [True, False])
def test_an_error_event(quote: str, *, flat: bool, done: bool) -> None:
    """Beside a visible item; then the stream ends, and the turn with the provider's words."""
    error = {"type": "error"} | (told(quote, type="error") if flat else {"error": told(quote)})
    events = [*opening(), *item_events(message("visible"), 0), *item_events(HIDDEN, 1), error]
    if done:
        events.append(builders.failed("odd", quote))
    played = run_turn(None, [body(numbered(events))])
    events = check_sent(played.client_bytes)
    knows_nothing(played.client_bytes)
    failed = events[-1]["response"]["error"]
    assert (failed["code"], failed["message"]) == ("odd", INSTEAD)


@each_quote
@pytest.mark.parametrize("status", [400, 500])
def test_a_continuation_that_is_refused(quote: str, status: int) -> None:
    refusal = Answer(json.dumps({"error": told(quote)}).encode(), status=status)
    first = builders.stream(message("visible"), HIDDEN)
    played = run_turn(None, [first, refusal, refusal])
    events = check_sent(played.client_bytes)
    assert events[-1]["type"] == "response.failed"
    knows_nothing(played.client_bytes)
    assert INSTEAD in events[-1]["response"]["error"]["message"]


@each_quote
def test_a_continuation_that_fails(quote: str) -> None:
    failure = [*opening("resp_B"), builders.failed("odd", quote, response_id="resp_B")]
    played = run_turn(None, [builders.stream(message("visible"), HIDDEN), failure, failure])
    assert check_sent(played.client_bytes)[-1]["type"] == "response.failed"
    knows_nothing(played.client_bytes)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.tools_changed", "tools": [{"type": "function", "name": "recall"}]},
        {"type": "response.call_started", "call_id": CALL_ID},
    ],
)
def test_an_event_of_which_nobody_knows_what_it_is_about(event: dict[str, Any]) -> None:
    assert event["type"] not in EVENTS
    events = [*opening(), *item_events(HIDDEN, 0), event, *item_events(message("visible"), 1)]
    ended = builders.terminal("resp_A", "incomplete", output=[HIDDEN, message("visible")])
    played = run_turn(None, [body(numbered([*events, ended]))])
    check_sent(played.client_bytes)
    knows_nothing(played.client_bytes)


def test_words_about_the_clients_own_pass_as_they_came() -> None:
    failure = builders.failed("odd", "No output for call_of_client.")
    data = body([*opening(), failure])
    call = function_call("call_of_client", "shell", {})
    request = builders.request(call, tools=None, tool_choice=None)
    played = run_turn(request, [data])
    assert played.client_bytes == data


class TestBodies:
    REQUEST: Final = {
        "tools": [{"type": "function", "name": "shell"}, {"type": "function", "name": "recall"}],
        "input": [
            HIDDEN,
            {"type": "function_call_output", "call_id": CALL_ID, "output": "It lives in a mine."},
            function_call("call_2", "shell", {"command": "recall.sh"}),
        ],
    }

    @pytest.mark.parametrize("quote", [*QUOTES.values(), "It lives in a mine.", "at tools[1].type"])
    def test_what_gives_a_call_away_is_replaced(self, quote: str) -> None:
        discretion = Discretion({"recall"}, self.REQUEST, [])
        for shape in (
            {"error": told(quote, param="tools[1].name")},
            {"detail": quote},
            [{"detail": [quote]}],
        ):
            shown = discretion.body(json.dumps(shape).encode())
            knows_nothing(shown)
            assert INSTEAD.encode() in shown
            assert b"tools[1]" not in shown
        assert discretion.body(f"<p>{quote}</p>".encode()) == INSTEAD.encode()

    @pytest.mark.parametrize(
        "text",
        [
            "No tool output found for function call call_2.",
            "Invalid schema for function 'shell' at tools[0].parameters, not tools[10].",
            "The context recalled is too long.",
            "Unknown: total_recall, recalls",
        ],
    )
    def test_what_gives_none_away_passes_as_it_came(self, text: str) -> None:
        discretion = Discretion({"recall"}, self.REQUEST, [])
        for data in (json.dumps({"error": told(text)}, indent=1).encode(), text.encode(), b"\xff"):
            assert discretion.body(data) is data

    def test_without_a_hidden_tool_nothing_is_hidden(self) -> None:
        data = json.dumps({"error": told(QUOTES["the name"])}).encode()
        assert Discretion((), self.REQUEST, []).body(data) is data

    @pytest.mark.parametrize("start", range(5))
    def test_a_run_of_a_hidden_text_is_a_quotation_of_it(self, start: int) -> None:
        result = "".join(chr(0x4E00 + each) for each in range(90))
        discretion = Discretion(
            (), {}, (), Restored([json.dumps(HIDDEN | {"arguments": result}).encode()])
        )
        for at in range(start, len(result) - RUN, 5):
            assert discretion.is_betrayed_by(f"… {result[at : at + RUN]} …")
            assert not discretion.is_betrayed_by(f"… {result[at : at + RUN - 1]} …")

    def test_what_was_put_back_is_hidden_without_a_declaration(self) -> None:
        restored = Restored([json.dumps(item).encode() for item in self.REQUEST["input"][:2]])
        request = {"input": self.REQUEST["input"]}
        discretion = Discretion((), request, (), restored)
        for quote in (*QUOTES.values(), "It lives in a mine."):
            assert discretion.message(quote) == INSTEAD
        assert discretion.message("No output for call_2.") == "No output for call_2."

    def test_a_name_that_the_client_uses_itself_gives_nothing_away(self) -> None:
        restored = Restored([json.dumps(HIDDEN).encode()])
        request = {"tools": [{"type": "function", "name": "recall"}], "input": []}
        discretion = Discretion((), request, (), restored)
        assert discretion.message("recall is no tool") == "recall is no tool"
        assert discretion.message(f"recall of {CALL_ID}") == INSTEAD

    def test_a_response_is_named_as_its_client_knows_it(self) -> None:
        discretion = Discretion((), {}, (), Restored((), ("resp_A", "resp_B")))
        assert discretion.body(b'{"error":"no resp_B"}') == b'{"error":"no resp_A"}'
        assert discretion.body(b"no resp_B") == b"no resp_A"
        assert discretion.body(data := b"no other") is data
