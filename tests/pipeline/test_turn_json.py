"""Clients that want one JSON body: the same turn, answered at its end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commands import Send
from pipeline.errors import (
    FailureCategory,
    ProtocolError,
    SottovoceError,
    StreamFlagError,
    UpstreamError,
    UpstreamRefusedError,
)
from pipeline.events import KeepAliveDue
from pipeline.lifecycle import Dialect, Rule
from pipeline.outcome import Ending
from pipeline.reader import StreamMode
from tests import builders, strategies
from tests.builders import (
    body,
    frames,
    function_call,
    message,
    output,
    reasoning,
    recall_call,
    usage,
)
from tests.playbook import (
    Answer,
    Playbook,
    Played,
    bytewise,
    chunk,
    ended,
    limits,
    opened,
    run_turn,
    says,
    turn,
    whole,
)
from tests.sent import check_usage

RESET = UpstreamError("the upstream reset the connection")
ONCE = says(recall_call("c1", {"query": "x"}), usage=usage(100, 10, cached=40))
ANSWER = says(message("hi"), response_id="resp_B", usage=usage(150, 5, cached=90))


def play(*hops: Any, **options: Any) -> Played:
    return run_turn(hops=hops, client="json", **options)


def document(*items: builders.Item, status: str = "completed", **members: Any) -> bytes:
    """Return a response as a provider writes it: spaced, with numbers that a parse would lose."""
    response = builders.response("resp_A", status, output=list(items), **members)
    text = json.dumps(response, indent=1, ensure_ascii=False)
    return text.replace('"top_p": 0.98', '"top_p": 0.980').encode()


# ------------------------------------------------------------------------------ what passes


@pytest.mark.parametrize("chunking", [whole, bytewise])
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    "sent",
    [
        document(message("hi 🙂"), usage=usage(5, 2)),
        document(message("half"), status="incomplete", incomplete_details={"reason": "x"}),
        document(status="failed", error={"code": "server_error", "message": "no"}),
        document(function_call("c1", "shell", "{}"), reasoning("why")),
    ],
)
def test_what_needs_nothing_is_the_bytes_that_came(
    chunking: Any,
    declared: bool,
    sent: bytes,
) -> None:
    played = play(sent, chunking=chunking, declared=declared)
    assert played.client_bytes == sent
    assert played.performer.sent
    assert played.commands[-2] == Send(sent, last=True)


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        ("completed", Ending.COMPLETED),
        ("incomplete", Ending.INCOMPLETE),
        ("failed", Ending.PROVIDER_FAILED),
        ("cancelled", Ending.PROVIDER_FAILED),
    ],
)
def test_every_status_is_an_answer(status: str, ending: Ending) -> None:
    played = play(document(message("hi"), status=status, usage=usage(5, 2)))
    assert played.response["status"] == status
    assert played.outcome.ending is ending
    assert played.outcome.spent == usage(5, 2)


def test_the_body_deviates_from_nothing() -> None:
    assert play(document(message("hi"))).outcome.findings == {}


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        (b"<html>hello</html>", "text/html"),
        (b'{"object":"list"}', "application/json"),
        (b"", "application/json"),
        (b"not json", None),
    ],
)
@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_an_observed_body_of_any_kind_passes(
    data: bytes,
    content_type: str | None,
    chunking: Any,
) -> None:
    hops = [Answer(data, content_type=content_type)]
    played = run_turn(hops=hops, client="json", declared=False, chunking=chunking)
    assert played.client_bytes == data
    assert played.outcome.truncated_by is None


def test_an_observed_body_may_be_large() -> None:
    sent = document(message("x" * 5000))
    played = play(sent, declared=False, chunking=bytewise, limits=limits(retained_bytes=1000))
    assert played.client_bytes == sent
    assert played.outcome.truncated_by == "retained_bytes"


def test_a_passing_body_that_breaks_is_left_unfinished() -> None:
    data = Answer(b"<html>hel", content_type="text/html", cut=RESET)
    played = run_turn(hops=[data], client="json", declared=False)
    assert played.client_bytes == b"<html>hel"
    assert played.outcome.ending is Ending.FAILED


# ------------------------------------------------------------------------------ hidden calls


def test_a_hidden_call_is_answered_in_json() -> None:
    played = play(ONCE, ANSWER, results={"c1": "found it"})
    assert b"recall" not in played.client_bytes
    assert played.response["id"] == "resp_A"
    assert played.response["output"] == [message("hi")]
    assert played.response["usage"] == usage(250, 15, cached=130)
    assert played.response["tools"] == [builders.CLIENT_TOOL]
    first, second = (request.body for request in played.requests)
    assert first["stream"] is second["stream"] is False
    assert second["input"][1:] == [recall_call("c1", {"query": "x"}), output("c1", "found it")]
    (saved,) = played.performer.saved
    assert saved.hop_ids == ("resp_A", "resp_B")


def test_a_codex_upstream_is_streamed_for_a_json_client() -> None:
    played = play(ONCE, ANSWER, mode=StreamMode.SSE, dialect=Dialect.CODEX)
    assert [request.body["stream"] for request in played.requests] == [True, True]
    assert played.response["output"] == [message("hi")]
    assert played.response["usage"] == usage(250, 15, cached=130)
    assert b"recall" not in played.client_bytes


def test_json_and_stream_give_the_same_response() -> None:
    streamed = run_turn(hops=[ONCE, ANSWER]).response
    assert play(ONCE, ANSWER).response == streamed
    assert play(ONCE, ANSWER, mode=StreamMode.SSE).response == streamed


@given(st.data())
def test_any_turn_gives_the_same_response_as_its_stream(data: st.DataObject) -> None:
    mixed = data.draw(st.booleans())
    script = data.draw(strategies.scripts(mixed=mixed))
    streamed = run_turn(hops=script.hops, results=script.results)
    answered = play(
        *script.hops,
        results=script.results,
        mode=StreamMode.SSE,
        chunking=data.draw(strategies.chunkings()),
    )
    assert answered.response == streamed.response
    assert answered.outcome.spent == streamed.outcome.spent
    check_usage(answered.response["usage"])


def test_streams_of_a_json_client_leave_only_the_body() -> None:
    note = b"event: note\ndata: no json\n\n"
    sent = b": comment\n\nid: 7\nretry: 10\n\n" + note.join(frames(builders.stream(message("hi"))))
    played = play(sent, mode=StreamMode.SSE)
    assert played.response == builders.stream(message("hi"))[-1]["response"]


@pytest.mark.parametrize("habit", [strategies.empty_output, strategies.absent_output])
def test_an_empty_output_is_filled_in_json_too(habit: Any) -> None:
    events = habit(builders.stream(message("hi")))
    played = play(events, mode=StreamMode.SSE, dialect=Dialect.CODEX)
    assert played.response["output"] == [message("hi")]
    assert (Rule.OUTPUT_EMPTY, "response.completed") in played.outcome.findings


def test_incomplete_with_a_hidden_call() -> None:
    played = play(
        document(
            message("half"),
            recall_call("c1", "{}"),
            status="incomplete",
            incomplete_details={"reason": "max_output_tokens"},
        )
    )
    assert played.response["status"] == "incomplete"
    assert played.response["output"] == [message("half")]


def test_usage_is_repaired() -> None:
    sent = document(message("hi"), usage={"input_tokens": 5.0, "output_tokens": 2})
    assert play(sent).response["usage"] == usage(5, 2)


def test_no_sign_of_life_in_a_body() -> None:
    script = Playbook(turn(streamed=False, mode=StreamMode.JSON)).skip()
    sent = document(message("hi"))
    script.feed(
        opened(content_type="application/json"), KeepAliveDue(), chunk(sent), KeepAliveDue()
    )
    script.expect().feed(ended())
    assert script.performer.sent == sent


# --------------------------------------------------------------------------------- what breaks


def failed(played: Played, kind: type[SottovoceError]) -> dict[str, Any]:
    assert type(played.error) is kind
    assert played.client_bytes == b""
    error = played.error.body()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return error | {"status": played.error.status}


def test_a_stream_where_a_body_was_asked_for() -> None:
    stream = Answer(body(builders.stream(message("hi"))), content_type="text/event-stream")
    error = failed(play(stream), StreamFlagError)
    assert error["status"] == 502
    assert error["code"] == "invalid_prompt"
    assert error["message"] == (
        "principal: stream flag and consumer disagree: stream=false was sent, the upstream "
        "answered text/event-stream"
    )


def test_a_continuation_that_streams_although_it_should_not() -> None:
    stream = Answer(body(builders.stream(message("hi"))), content_type="text/event-stream")
    played = play(ONCE, stream, ANSWER)
    assert played.outcome.recovered_from is FailureCategory.FOLLOW_UP_FAILED
    assert played.text == "hi"


@pytest.mark.parametrize(
    ("data", "kind", "message_"),
    [
        (b"<html>", ProtocolError, "principal: the upstream's answer is no response object"),
        (b'{"id":"x"}', ProtocolError, "principal: the upstream's answer is no response object"),
        (
            b'{"error":{"message":"no such model","code":"model_not_found"}}',
            UpstreamRefusedError,
            "principal: the upstream answered with an error: no such model",
        ),
        (
            b'{"detail":"Stream must be set to true"}',
            UpstreamRefusedError,
            "principal: the upstream answered with an error: Stream must be set to true",
        ),
    ],
)
def test_a_200_that_is_no_response(data: bytes, kind: type[SottovoceError], message_: str) -> None:
    error = failed(play(data), kind)
    assert error["message"] == message_
    assert error["status"] == 502


def test_a_200_with_nothing() -> None:
    error = failed(play(b"", b""), UpstreamError)
    assert error["code"] == "server_error"


def test_a_cut_body() -> None:
    cut = Answer(document(message("hi"))[:50], content_type="application/json", cut=RESET)
    assert failed(play(cut, cut), UpstreamError)["message"] == RESET.message


def test_a_stream_that_breaks_is_not_put_together_from_two_tries() -> None:
    parts = frames(builders.stream(message("hi")))
    for size in range(len(parts)):
        cut = Answer(b"".join(parts[:size]), cut=RESET)
        played = play(cut, b"".join(parts), mode=StreamMode.SSE)
        if played.performer.refused is None:
            assert played.response["output"] == [message("hi")]
        else:
            assert played.error is RESET


def test_a_body_above_the_limit() -> None:
    played = play(document(message("x" * 5000)), limits=limits(retained_bytes=1000))
    assert played.error.message == "Responses retained state exceeded byte limit"
    assert played.outcome.limit == "retained_bytes"
    assert played.outcome.category is FailureCategory.PRINCIPAL_LIMIT


def test_a_recovery_that_fails_is_a_502() -> None:
    refused = Answer(b'{"error":{"message":"bad"}}', status=400, content_type="application/json")
    played = play(ONCE, refused, refused)
    assert (played.error.status, played.error.code) == (502, "server_error")
    assert played.outcome.category is FailureCategory.FOLLOW_UP_FAILED
    assert played.outcome.spent == usage(100, 10, cached=40)


def test_a_failed_body_of_a_continuation_recovers() -> None:
    lost = document(status="failed", usage=usage(7, 0), error={"code": "x", "message": "no"})
    played = play(ONCE, lost, ANSWER)
    assert played.text == "hi"
    assert played.response["usage"] == usage(257, 15, cached=130)


def test_large_streams_of_a_json_client_are_limited_even_when_observed() -> None:
    played = play(
        builders.stream(message("x" * 5000)),
        mode=StreamMode.SSE,
        declared=False,
        limits=limits(retained_bytes=1000),
    )
    assert played.error.message == "Responses retained state exceeded byte limit"
