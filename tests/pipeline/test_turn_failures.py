"""Whatever breaks ends in the one terminal that the client can still get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.budget import LAST_ROUND
from pipeline.commands import Relay
from pipeline.errors import (
    FailureCategory,
    ProtocolError,
    SottovoceError,
    StreamFlagError,
    UpstreamError,
    UpstreamRefusedError,
)
from pipeline.events import ShutdownDue
from pipeline.outcome import Ending
from pipeline.reader import responses_reader
from pipeline.reader_around import ReaderAround
from tests import builders, strategies
from tests.builders import body, frame, frames, function_call, message, recall_call, stream, usage
from tests.playbook import (
    Answer,
    Playbook,
    Played,
    budgets,
    bytewise,
    chunk,
    found,
    framewise,
    limits,
    opened,
    run_turn,
    turn,
    whole,
)
from tests.sent import TERMINALS, check_sent

if TYPE_CHECKING:
    from pipeline.sse import Fragment, Frame
    from tests.playbook import Chunking

RESET = UpstreamError("the upstream reset the connection")
TIMEOUT = UpstreamError("the upstream timed out: no bytes within 600 seconds", status=504)
OPENING = body(builders.opening())
CALL = stream(recall_call("c1", {"query": "x"}), usage=usage(100, 10))
TEXT = frames(stream(message("hello world")))


def failed(played: Played) -> dict[str, Any]:
    """Return the error of the terminal that we wrote, after holding the stream to our rules."""
    events = check_sent(played.client_bytes)
    assert events[-1]["type"] == "response.failed"
    assert played.outcome.ending is Ending.FAILED
    assert played.outcome.message == events[-1]["response"]["error"]["message"]
    error = events[-1]["response"]["error"]
    assert isinstance(error, dict)
    return error


# ------------------------------------------------------------------------- before the head


def test_refused_before_any_head() -> None:
    played = run_turn(hops=[Answer(refused=UpstreamError("the upstream refused the connection"))])
    assert played.error.status == 502
    assert played.error.code == "server_error"
    assert played.outcome.category is FailureCategory.PRINCIPAL_TRANSPORT
    assert played.outcome.status == 502
    assert played.client_bytes == b""


def test_no_head_in_time() -> None:
    played = run_turn(hops=[Answer(refused=TIMEOUT)])
    assert (played.error.status, played.error.code) == (504, "server_error")


def test_cut_before_created_after_one_more_try() -> None:
    cut = Answer(b": hello\n\n", cut=RESET)
    played = run_turn(hops=[cut, cut])
    assert played.error is RESET
    assert len(played.requests) == 2
    assert played.requests[0].text == played.requests[1].text


def test_a_second_try_is_not_noticed() -> None:
    answer = stream(message("hi"))
    played = run_turn(hops=[Answer(b": hello\n\n", cut=RESET), answer])
    assert played.client_bytes == body(answer)
    assert played.outcome.ending is Ending.COMPLETED
    assert played.outcome.hops == 1


def test_a_second_try_is_no_continuation() -> None:
    created = body(builders.opening("resp_lost")[:1])
    answer = stream(recall_call("c1", "{}"), response_id="resp_A", usage=usage(100, 10))
    more = stream(message("hi"), response_id="resp_B", usage=usage(7, 1))
    played = run_turn(
        hops=[Answer(b": hello\n\n" + created[:-9], cut=RESET), answer, more],
        budgets=budgets(extra_tokens=50),
    )
    assert played.outcome.hops == 2
    assert LAST_ROUND not in played.requests[2].body["input"][-1]["output"]
    (saved,) = played.performer.saved
    assert saved.hop_ids == ("resp_A", "resp_B")


def test_a_second_try_that_is_refused_passes_as_it_is() -> None:
    refused = Answer(b'{"error":{"message":"no"}}', status=429)
    played = run_turn(hops=[Answer(b": hello\n\n", cut=RESET), refused])
    assert played.performer.relayed
    assert played.outcome.status == 429


def test_a_providers_refusal_passes_as_it_is() -> None:
    played = run_turn(hops=[Answer(b'{"error":{"message":"no"}}', status=429)])
    assert played.performer.relayed
    assert Relay() in played.commands
    assert played.outcome.ending is Ending.PROVIDER_FAILED
    assert played.outcome.status == 429


HTML = b"<html>502 bad gateway</html>"
ERROR = b'{"error":{"message":"no such model sk-secret","code":"model_not_found"}}'
RESPONSE = builders.compact(builders.response("resp_A", "completed")).encode()


NO_STREAM: list[tuple[bytes, str | None, type[SottovoceError], str, str]] = [
    (HTML, "text/html; charset=utf-8", ProtocolError, "invalid_prompt", "with text/html, not"),
    (HTML, None, ProtocolError, "invalid_prompt", "with an unnamed content type, not"),
    (ERROR, "application/json", UpstreamRefusedError, "model_not_found", "model [redacted]"),
    (ERROR, None, UpstreamRefusedError, "model_not_found", "with an error: no such model"),
    (RESPONSE, "application/json", StreamFlagError, "invalid_prompt", "answered application/json"),
]


@pytest.mark.parametrize("chunking", [whole, bytewise])
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("row", NO_STREAM)
def test_a_200_that_is_no_stream(chunking: Chunking, declared: bool, row: Any) -> None:
    data, content_type, kind, code, words = row
    hops = [Answer(data, content_type=content_type)]
    error = run_turn(hops=hops, chunking=chunking, declared=declared).error
    assert type(error) is kind
    assert (error.status, error.code) == (502, code)
    assert error.message.startswith("principal: ")
    assert words in error.message


def test_the_texts_of_a_200_that_is_no_stream() -> None:
    messages = [
        run_turn(hops=[Answer(data, content_type=content_type)]).error.message
        for data, content_type, *_ in NO_STREAM
    ]
    assert messages[0] == (
        "principal: the upstream answered a stream request with text/html, not with "
        "text/event-stream; check the upstream's base_url"
    )
    assert messages[2] == (
        "principal: the upstream answered a stream request with an error: no such model [redacted]"
    )
    assert messages[4] == (
        "principal: stream flag and consumer disagree: stream=true was sent, the upstream answered "
        "application/json"
    )


@pytest.mark.parametrize("content_type", ["text/event-stream", None, "application/json"])
def test_a_200_with_nothing(content_type: str | None) -> None:
    played = run_turn(hops=[Answer(b"", content_type=content_type)] * 2)
    assert played.error.status == 502
    assert played.error.code == "server_error"


def test_a_shutdown_before_the_head() -> None:
    script = Playbook(turn()).skip()
    script.feed(ShutdownDue())
    assert script.performer.refused is not None
    assert script.performer.refused.status == 503
    assert script.performer.refused.code == "server_error"


# ------------------------------------------------------------------------- inside the stream


def test_cut_inside_the_stream() -> None:
    played = run_turn(hops=[Answer(b"".join(TEXT[:6]), cut=RESET)])
    assert failed(played) == {"code": "server_error", "message": RESET.message}
    assert played.outcome.category is FailureCategory.PRINCIPAL_TRANSPORT
    (item,) = played.response["output"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"] == "hello "


def test_ended_without_a_terminal() -> None:
    played = run_turn(hops=[b"".join(TEXT[:-1])])
    assert failed(played) == {
        "code": "server_error",
        "message": "the upstream's stream ended without a terminal event",
    }
    assert played.outcome.category is FailureCategory.PRINCIPAL_MISSING_TERMINAL
    assert played.response["output"] == [message("hello world")]


def test_a_shutdown_inside_the_stream() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(b"".join(TEXT[:5])), ShutdownDue())
    events = check_sent(script.performer.sent)
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert script.performer.outcome is not None
    assert script.performer.outcome.category is FailureCategory.DELIVERY


def test_an_open_call_is_never_closed() -> None:
    call = frames([*builders.opening(), *builders.item_events(function_call("c", "sh", "{}"), 0)])
    played = run_turn(hops=[Answer(b"".join(call[:4]), cut=RESET)])
    failed(played)
    assert played.response["output"] == []
    assert "response.output_item.done" not in played.kinds


REJECTED: list[tuple[str, list[bytes | builders.Event], str]] = [
    (
        "malformed json",
        [b"event: response.output_text.delta\ndata: {oops\n\n"],
        "malformed JSON in Responses event response.output_text.delta",
    ),
    (
        "json that is no object",
        [b"event: response.output_text.delta\ndata: [1]\n\n"],
        "malformed JSON in Responses event response.output_text.delta",
    ),
    (
        "another type",
        [b'event: response.created\ndata: {"type":"response.in_progress"}\n\n'],
        "Responses payload type does not match response.created",
    ),
    (
        "another response",
        [{"type": "response.in_progress", "response": {"id": "resp_B"}}],
        "response id changed at response.in_progress",
    ),
    (
        "index twice",
        [builders.item_events(message("a"), 0)[0], builders.item_events(message("b"), 0)[0]],
        "output index added twice at response.output_item.added",
    ),
    (
        "another kind",
        [
            builders.item_events(message("a"), 0)[0],
            builders.item_done(function_call("c", "sh", "{}"), 0),
        ],
        "item done as another kind than it was added at response.output_item.done",
    ),
    (
        "negative index",
        [builders.item_events(message("a"), -1)[0]],
        "output index out of range at response.output_item.added",
    ),
    (
        "large index",
        [builders.item_events(message("a"), 65_536)[0]],
        "output index out of range at response.output_item.added",
    ),
    (
        "index that is no number",
        [{"type": "response.output_text.delta", "output_index": True, "delta": "x"}],
        "output index out of range at response.output_text.delta",
    ),
    (
        "an event of another kind of item",
        [
            builders.item_events(message("a"), 0)[0],
            {
                "type": "response.function_call_arguments.delta",
                "output_index": 0,
                "item_id": message("a")["id"],
                "delta": "{",
            },
        ],
        "response.function_call_arguments.delta for an item of another kind",
    ),
    (
        "nobody's event",
        [
            builders.item_events(message("a"), 0)[0],
            builders.item_events(message("b"), 1)[0],
            {"type": "response.output_text.delta", "delta": "x"},
        ],
        "response.output_text.delta names no item and several could be meant",
    ),
    (
        "no item",
        [{"type": "response.output_item.added", "output_index": 0}],
        "response.output_item.added lacks what its type requires",
    ),
    (
        "no response",
        [{"type": "response.completed"}],
        "response.completed lacks what its type requires",
    ),
    (
        "hidden arguments that disagree",
        [
            *builders.item_events(recall_call("c1", '{"query":"a"}'), 0)[:-2],
            {
                "type": "response.function_call_arguments.done",
                "output_index": 0,
                "item_id": recall_call("c1", "")["id"],
                "arguments": '{"query":"b"}',
            },
        ],
        "streamed arguments of a hidden call disagree with response.function_call_arguments.done",
    ),
    (
        "hidden arguments that disagree with the item",
        [
            *builders.item_events(recall_call("c1", '{"query":"a"}'), 0)[:-1],
            builders.item_done(recall_call("c1", '{"query":"b"}'), 0),
        ],
        "streamed arguments of a hidden call disagree with response.output_item.done",
    ),
    (
        "a visible call that becomes a hidden one",
        [
            *builders.item_events(function_call("c1", "shell", "{}"), 0)[:-1],
            builders.item_done(recall_call("c1", "{}"), 0),
        ],
        "the name of a hidden call changed at response.output_item.done",
    ),
    (
        "a hidden call that ceases to be one",
        [
            *builders.item_events(recall_call("c1", "{}"), 0)[:-1],
            builders.item_done(function_call("c1", "shell", "{}"), 0),
        ],
        "the name of a hidden call changed at response.output_item.done",
    ),
]


@pytest.mark.parametrize(
    ("broken", "text"), [row[1:] for row in REJECTED], ids=[row[0] for row in REJECTED]
)
def test_what_is_rejected_says_why(broken: list[bytes | builders.Event], text: str) -> None:
    parts = [part if isinstance(part, bytes) else frame(part) for part in broken]
    sent = OPENING + b"".join(parts) + body([builders.terminal()])
    played = run_turn(hops=[sent])
    assert failed(played) == {"code": "invalid_prompt", "message": text}
    assert played.outcome.category is FailureCategory.PRINCIPAL_PROTOCOL
    assert b"recall" not in played.client_bytes.replace(b"hidden call", b"")


def test_hidden_arguments_that_change_in_the_terminal() -> None:
    events = stream(recall_call("c1", '{"query":"a"}'))
    events[-1]["response"]["output"] = [recall_call("c1", '{"query":"b"}')]
    assert failed(run_turn(hops=[events]))["message"] == (
        "streamed arguments of a hidden call disagree with response.completed"
    )


def test_visible_arguments_may_disagree() -> None:
    call = function_call("c1", "shell", '{"a":1}')
    events = stream(call)
    events[-2]["item"] = events[-1]["response"]["output"][0] = call | {"arguments": '{"a":2}'}
    assert run_turn(hops=[events]).client_bytes == body(events)


@pytest.mark.parametrize("end", ["completed", "incomplete"])
def test_a_call_that_is_never_named(end: str) -> None:
    call = function_call("c1", "", "{}")
    events = [
        *builders.opening(),
        *builders.item_events(call, 0)[:-1],
        builders.terminal(status=end),
    ]
    played = run_turn(hops=[events])
    assert failed(played) == {
        "code": "server_error",
        "message": "the stream ended with a call that was never named",
    }


def test_a_failure_with_a_call_that_was_never_named_is_the_providers() -> None:
    call = function_call("c1", "", "{}")
    events = [
        *builders.opening(),
        *builders.item_events(call, 0)[:-1],
        *builders.item_events(message("more"), 1),
        builders.failed("server_is_overloaded"),
    ]
    played = run_turn(hops=[events])
    check_sent(played.client_bytes)
    assert played.outcome.ending is Ending.PROVIDER_FAILED
    assert played.response["output"] == [message("more")]


def _ended(
    kind: str, item: builders.Item, response_id: str = "resp_A", **members: Any
) -> list[builders.Event]:
    """Return a stream whose last event says what it likes."""
    events = stream(item, response_id=response_id)
    events[-1]["type"] = kind
    events[-1]["response"] |= members
    return events


HIDDEN = recall_call("c1", {"query": "x"})
NO_WORDS = {"code": "server_error", "message": "the provider gave no message"}


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("response.completed", "cancelled"),
        ("response.completed", "failed"),
        ("response.failed", "failed"),
        ("response.failed", "cancelled"),
    ],
)
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, NO_WORDS),
        ("out of order", {"code": "server_error", "message": "out of order"}),
        ({"code": "teapot"}, {"code": "teapot", "message": NO_WORDS["message"]}),
        ({"code": None, "message": "m"}, {"code": "server_error", "message": "m"}),
        ({"code": "c", "message": "m", "new": 1}, {"code": "c", "message": "m", "new": 1}),
    ],
)
def test_a_failure_of_a_turn_that_hid_something_says_what_it_was(
    kind: str, status: str, given: object, told: object
) -> None:
    played = run_turn(hops=[_ended(kind, HIDDEN, status=status, error=given)])
    (*_, last) = check_sent(played.client_bytes)
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == told
    assert last["response"]["status"] == status


def test_a_failure_without_words_has_those_of_the_error_before_it() -> None:
    events = _ended("response.failed", HIDDEN, status="failed", error=None)
    events.insert(-1, {"type": "error", "code": "teapot", "message": "short of sk-secret"})
    played = run_turn(hops=[builders.numbered(events)])
    (*_, last) = check_sent(played.client_bytes)
    assert last["response"]["error"] == {"code": "teapot", "message": "short of [redacted]"}


@pytest.mark.parametrize("status", ["in_progress", "weird", None, 7, []])
@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_a_terminal_that_is_written_has_a_status_that_fits(kind: str, status: object) -> None:
    answer = _ended(
        f"response.{kind}", message("hi"), response_id="resp_B", status=status, error={}
    )
    played = run_turn(hops=[CALL, answer])
    assert check_sent(played.client_bytes)[-1]["response"]["status"] == kind


def test_a_terminal_that_leaves_as_it_came_has_what_it_came_with() -> None:
    events = _ended("response.failed", message("hi"), status="weird", error=None)
    assert run_turn(hops=[events], declared=False).client_bytes == body(events)


def test_two_hidden_calls_with_one_id() -> None:
    one, other = recall_call("c1", '{"query":"a"}'), recall_call("c1", '{"query":"b"}')
    played = run_turn(hops=[stream(one, other | {"id": "fc_2"})])
    assert failed(played)["message"] == "the upstream used one call id for two calls"


def test_a_hidden_call_without_an_id() -> None:
    call = recall_call("", "{}")
    played = run_turn(hops=[stream(call)])
    assert failed(played) == {
        "code": "server_error",
        "message": "the upstream completed a call without its arguments or its id",
    }
    assert played.outcome.category is FailureCategory.FOLLOW_UP_INCOMPLETE_ARGUMENTS


# ---------------------------------------------------------------------------- in a continuation


def test_a_continuation_that_breaks_after_a_visible_delta() -> None:
    answer = frames(stream(message("hello world"), response_id="resp_B"))
    played = run_turn(hops=[CALL, Answer(b"".join(answer[:6]), cut=RESET)])
    assert failed(played) == {"code": "server_error", "message": RESET.message}
    assert played.outcome.category is FailureCategory.FOLLOW_UP_TRANSPORT
    (item,) = played.response["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "hello ")
    assert played.response["usage"] == usage(100, 10)
    assert len(played.requests) == 2


def test_a_continuations_limit_is_a_resource_limit() -> None:
    long = stream(*[message(f"{number} " * 30) for number in range(60)], response_id="resp_B")
    played = run_turn(hops=[CALL, long], limits=limits(retained_bytes=8_000))
    assert failed(played)["code"] == "invalid_prompt"
    assert played.outcome.category is FailureCategory.RESOURCE_LIMIT


def test_a_providers_failure_after_visible_text_passes() -> None:
    events = stream(message("half"), response_id="resp_B")[:-1]
    events.append(builders.failed("server_is_overloaded", response_id="resp_B", usage=usage(5, 1)))
    played = run_turn(hops=[CALL, builders.numbered(events)])
    check_sent(played.client_bytes)
    assert played.outcome.ending is Ending.PROVIDER_FAILED
    assert played.response["id"] == "resp_A"
    assert played.response["error"]["code"] == "server_is_overloaded"
    assert played.response["usage"] == usage(105, 11)


def test_hidden_calls_that_run_are_cancelled() -> None:
    script = Playbook(turn()).skip()
    calls = frames(stream(recall_call("c1", "{}"), message("more")))
    script.feed(opened(), chunk(b"".join(calls[:6]))).skip()
    assert "c1" in script.performer.running
    script.feed(chunk(b"event: response.created\ndata: {\n\n"))
    assert not script.performer.running
    assert script.feed(found("c1", "late")).skip()


def test_the_records_of_finished_rounds_are_saved_before_a_failure() -> None:
    answer = frames(stream(message("hello"), response_id="resp_B"))
    played = run_turn(hops=[CALL, Answer(b"".join(answer[:5]), cut=RESET)])
    (saved,) = played.performer.saved
    assert saved.response_id == "resp_A"
    assert saved.hop_ids == ("resp_A", "resp_B")
    assert saved.group is not None


class FaultyReader(ReaderAround):
    """A reader that has a fault of its own, at the frame after those of the first read."""

    def told(self, frames: list[Frame | Fragment]) -> list[Frame | Fragment]:
        if frames[0].raw != TEXT[0]:
            raise ZeroDivisionError
        return frames


def test_a_fault_of_ours_ends_the_stream_and_is_reported() -> None:
    def faulty(*args: Any, **options: Any) -> FaultyReader:
        return FaultyReader(responses_reader(*args, **options))

    script = Playbook(turn(reader=faulty)).skip()
    script.performer.faulty = True
    script.feed(opened(), chunk(b"".join(TEXT[:4])))
    script.feed(chunk(TEXT[-2]))
    assert check_sent(script.performer.sent)[-1]["response"]["error"] == {
        "code": "server_error",
        "message": "the proxy failed unexpectedly; its log says why",
    }
    assert type(script.turn.fault) is ZeroDivisionError
    assert script.turn.outcome is not None
    assert script.turn.outcome.category is FailureCategory.UNEXPECTED
    early = Playbook(turn(reader=faulty)).skip()
    early.performer.faulty = True
    early.feed(opened(), chunk(b"".join(TEXT[1:4])))
    assert early.performer.refused is not None
    assert early.performer.refused.status == 500


# --------------------------------------------------------------------------------- rubbish


@given(st.data())
def test_rubbish_ends_in_one_terminal(data: st.DataObject) -> None:
    items = data.draw(
        strategies.outputs(1, recall=data.draw(st.booleans()), client=data.draw(st.booleans()))
    )
    events = data.draw(strategies.habitual(data.draw(strategies.hop_events(items))))
    sent = strategies.damaged_body(data.draw(strategies.damaged(events)))
    answer = stream(message("hi"), response_id="resp_B")
    played = run_turn(hops=[sent, *[answer] * 3], declared=data.draw(st.booleans()))
    if played.performer.refused is None:
        assert [kind for kind in played.kinds if kind in TERMINALS] == played.kinds[-1:]


@given(st.binary(max_size=300), st.sampled_from(["text/event-stream", None, "text/html"]))
def test_any_bytes_end_in_one_terminal(data: bytes, content_type: str | None) -> None:
    answers = [Answer(data, content_type=content_type)] * 2
    one, other = (run_turn(hops=answers, chunking=chunking) for chunking in (whole, bytewise))
    assert one.client_bytes == other.client_bytes
    assert (one.performer.refused is None) == (other.performer.refused is None)


@pytest.mark.parametrize("cut", range(0, len(b"".join(TEXT)), 97))
@pytest.mark.parametrize("declared", [True, False])
def test_cut_anywhere(cut: int, declared: bool) -> None:
    data = b"".join(TEXT)[:cut]
    played = run_turn(hops=[Answer(data, cut=RESET)] * 2, chunking=framewise, declared=declared)
    if played.performer.refused is None:
        failed(played)
    else:
        assert b"response.created" not in data[: data.rfind(b"\n\n") + 1]
        assert played.error is RESET
