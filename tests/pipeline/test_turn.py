"""A streamed turn with hidden calls: what the client sees, what the upstream gets."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commands import (
    CloseUpstream,
    Finish,
    OpenUpstream,
    ReportEmpty,
    RunTool,
    SaveJoin,
    Send,
)
from pipeline.errors import UpstreamError
from pipeline.events import KeepAliveDue, ShutdownDue
from pipeline.lifecycle import Dialect, Rule
from pipeline.outcome import Ending
from pipeline.phases import TurnPhase
from tests import builders, strategies
from tests.builders import (
    body,
    frame,
    frames,
    function_call,
    message,
    output,
    reasoning,
    recall_call,
    stream,
    usage,
)
from tests.playbook import (
    TOOL,
    Answer,
    Playbook,
    bytewise,
    chunk,
    ended,
    found,
    limits,
    opened,
    run_turn,
    says,
    turn,
    whole,
)
from tests.sent import check_sent

ONCE = says(recall_call("c1", {"query": "x"}), usage=usage(100, 10, cached=40))
ANSWER = says(message("hi"), response_id="resp_B", usage=usage(150, 5, cached=90))


END = builders.terminal()
RESET = UpstreamError("the upstream reset the connection")


# ------------------------------------------------------------------------- the case of cases


def test_one_lifecycle() -> None:
    played = run_turn(hops=[ONCE, ANSWER], results={"c1": "found it"})
    events = check_sent(played.client_bytes)
    kinds = [event["type"] for event in events]
    assert kinds.count("response.created") == kinds.count("response.completed") == 1
    assert {event["response"]["id"] for event in events if "response" in event} == {"resp_A"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert b"recall" not in played.client_bytes
    assert b"c1" not in played.client_bytes
    assert played.response["output"] == [message("hi")]
    assert played.response["usage"] == usage(250, 15, cached=130)
    assert played.calls == [RunTool("c1", "recall", '{"query":"x"}')]
    first, second = (request.body for request in played.requests)
    assert second["input"] == [
        *first["input"],
        recall_call("c1", {"query": "x"}),
        output("c1", "found it"),
    ]
    assert second["tools"] == first["tools"]
    assert second["stream"] is True
    assert played.outcome.ending is Ending.COMPLETED
    assert played.outcome.recalls == played.outcome.rounds == 1
    assert played.outcome.hops == 2
    assert played.outcome.response_id == "resp_A"


def test_a_codex_client_sees_the_fill_of_its_context() -> None:
    played = run_turn(hops=[ONCE, ANSWER], report="last")
    assert played.response["usage"] == usage(150, 5, cached=90)
    assert played.outcome.spent == usage(250, 15, cached=130)
    assert played.outcome.context == usage(150, 5, cached=90)


def test_what_happens_in_which_order() -> None:
    script = Playbook(turn()).expect(OpenUpstream)
    first = frames(ONCE(script.turn.hop.request.body))
    script.feed(opened()).expect()
    script.feed(chunk(b"".join(first[:2]))).expect(Send)  # created doesn't wait for anything
    script.feed(chunk(b"".join(first[2:-2]))).expect(RunTool("c1", "recall", '{"query":"x"}'))
    script.feed(chunk(b"".join(first[-2:]))).expect(CloseUpstream)
    assert script.turn.phase is TurnPhase.RECALLING
    script.feed(found("c1", "found")).expect(OpenUpstream)
    assert script.turn.phase is TurnPhase.CONTINUING
    script.feed(opened(now=1.0)).expect()
    script.feed(chunk(body(ANSWER({})))).expect(CloseUpstream, Send, SaveJoin, Send, Finish)
    assert script.turn.phase is TurnPhase.FINISHED


def test_events_go_out_as_they_come() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened())
    for sent in frames(stream(message("hello world"))):
        script.feed(chunk(sent))
        if b"response.completed" not in sent:
            assert script.sent() == sent


def test_a_continuation_is_live() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(stream(recall_call("c1", "{}")))), found("c1", "x"), opened())
    script.skip()
    sent = [script.feed(chunk(one)).sent() for one in frames(ANSWER({}))[:-1]]
    assert sent[:2] == [b"", b""]  # its created and in_progress
    assert all(sent[2:])


def test_a_result_may_come_before_the_hop_ends() -> None:
    early = run_turn(hops=[ONCE, ANSWER])
    late = run_turn(hops=[ONCE, ANSWER], late=True)
    assert early.client_bytes == late.client_bytes
    assert [r.text for r in early.requests] == [r.text for r in late.requests]


def test_several_rounds() -> None:
    played = run_turn(
        hops=[
            says(reasoning("why"), recall_call("c1", {"query": "a"})),
            says(message("one moment"), recall_call("c2", {"query": "b"}), response_id="resp_B"),
            says(message("done"), response_id="resp_C"),
        ],
        results={"c1": "first", "c2": "second"},
    )
    events = check_sent(played.client_bytes)
    added = [e["output_index"] for e in events if e["type"] == "response.output_item.added"]
    assert added == [0, 1, 2]
    assert [item["type"] for item in played.response["output"]] == [
        "reasoning",
        "message",
        "message",
    ]
    assert played.requests[2].body["input"][-2:] == [
        recall_call("c2", {"query": "b"}),
        output("c2", "second"),
    ]
    assert played.requests[2].body["input"][1:3] == [
        reasoning("why"),
        recall_call("c1", {"query": "a"}),
    ]


def test_parallel_calls_run_at_once_and_are_answered_in_order() -> None:
    played = run_turn(
        hops=[says(recall_call("c1", {"query": "a"}), recall_call("c2", {"query": "b"})), ANSWER],
        results={"c2": "second", "c1": "first"},
        late=True,
    )
    assert [call.call_id for call in played.calls] == ["c1", "c2"]
    assert played.requests[1].body["input"][-2:] == [output("c1", "first"), output("c2", "second")]


def test_equal_calls_run_once() -> None:
    played = run_turn(
        hops=[says(recall_call("c1", {"query": "a"}), recall_call("c2", {"query": "a"})), ANSWER],
        results={"c1": "found"},
    )
    assert [call.call_id for call in played.calls] == ["c1"]
    assert played.requests[1].body["input"][-2:] == [output("c1", "found"), output("c2", "found")]


def test_a_custom_call_of_the_tool_is_answered_as_one() -> None:
    call = builders.custom_call("c1", "recall", "when was it?")
    played = run_turn(hops=[stream(call), ANSWER], results={"c1": "found"})
    check_sent(played.client_bytes)
    assert played.requests[1].body["input"][-1] == {
        "type": "custom_tool_call_output",
        "call_id": "c1",
        "output": "found",
    }


def test_a_namespace_changes_nothing() -> None:
    call = recall_call("c1", "{}") | {"namespace": "functions"}
    played = run_turn(hops=[stream(call), ANSWER], results={"c1": "found"})
    assert b"functions" not in check_bytes(played.client_bytes)
    assert played.requests[1].body["input"][-2] == call


def check_bytes(data: bytes) -> bytes:
    check_sent(data)
    return data


def test_nothing_is_hidden_where_nothing_was_declared() -> None:
    sent = body(stream(recall_call("c1", {"query": "x"})))
    played = run_turn(hops=[sent], declared=False)
    assert played.client_bytes == sent
    assert played.calls == []


# ------------------------------------------------------------------------------ the same bytes


def test_a_stream_that_needs_nothing_is_the_bytes_that_came() -> None:
    sent = body(stream(reasoning("why"), message("hello"), function_call("c1", "shell", "{}")))
    for chunking in (bytewise, whole):
        played = run_turn(hops=[sent + b": more\n\ndata: [DONE]\n\n"], chunking=chunking)
        assert played.client_bytes == sent


def test_odd_json_keeps_its_bytes_while_its_numbers_change() -> None:
    said, call = message("x"), recall_call("c1", "{}")
    odd = (
        '{ "type": "response.output_text.delta",\t"output_index":%d , "item_id":"'
        + said["id"]
        + '",'
        '"content_index":0,"delta":"\\u00e9\\/", "sequence_number" : %d, "big":1e400,"logprobs":[]}'
    )
    name = b"event: response.output_text.delta\ndata: "
    before = [
        *builders.opening(),
        *builders.item_events(call, 0),
        *builders.item_events(said, 1)[:2],
    ]
    after = [*builders.item_events(said, 1)[3:], builders.terminal(output=[call, said])]
    came = name + (odd % (1, 99)).encode() + b"\n\n"
    played = run_turn(hops=[body(builders.numbered(before)) + came + body(after), ANSWER])
    assert name + (odd % (0, 4)).encode() + b"\n\n" in played.client_bytes


def test_our_tool_is_cut_out_of_the_echo() -> None:
    request = builders.request(
        tool_choice={
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "shell"}],
        }
    )
    played = run_turn(request, [ONCE, ANSWER])
    for event in check_sent(played.client_bytes):
        if "response" in event:
            assert event["response"]["tools"] == request["tools"]
            assert event["response"]["tool_choice"] == request["tool_choice"]
    upstream = played.requests[0].body
    assert upstream["tools"][-1] == json.loads(TOOL.declaration)
    assert upstream["tool_choice"]["tools"][-1] == {"type": "function", "name": "recall"}


def test_ciphertext_that_we_asked_for_is_left_out() -> None:
    thought = reasoning("why", encrypted="gAAAA")
    played = run_turn(hops=[stream(thought, recall_call("c1", "{}")), ANSWER])
    assert played.options.withhold_ciphertext
    assert b"gAAAA" not in check_bytes(played.client_bytes)
    assert played.response["output"][0] == reasoning("why")
    assert played.requests[1].body["input"][1] == thought


def test_ciphertext_that_the_client_asked_for_stays() -> None:
    request = builders.request(include=["reasoning.encrypted_content"])
    sent = body(stream(reasoning("why", encrypted="gAAAA"), message("hi")))
    assert run_turn(request, [sent]).client_bytes == sent


def test_ids_of_two_hops_never_collide() -> None:
    same = message("hi")
    played = run_turn(
        hops=[stream(same, recall_call("c1", "{}")), stream(same, response_id="resp_B")]
    )
    events = check_sent(played.client_bytes)
    one, other = (item["id"] for item in played.response["output"])
    assert one == same["id"]
    assert other.startswith("msg_")
    assert other != one
    assert events[-2]["item"]["id"] == other


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_numbers_are_those_of_the_first_hop(first: bool, second: bool) -> None:
    hops = [stream(recall_call("c1", "{}")), stream(message("hi"), response_id="resp_B")]
    plain = [
        hop if kept else strategies.no_numbers(hop)
        for hop, kept in zip(hops, (first, second), strict=True)
    ]
    events = check_sent(run_turn(hops=plain).client_bytes)
    assert all(("sequence_number" in event) is first for event in events)


# ----------------------------------------------------------------------- the terminal's object


def test_the_terminal_is_the_last_hops_with_what_the_client_joins_on() -> None:
    request = builders.request(max_output_tokens=1000, previous_response_id="resp_0")

    def first(body: dict[str, Any]) -> list[builders.Event]:
        return stream(recall_call("c1", "{}"), echo=body, usage=usage(10, 100))

    def second(body: dict[str, Any]) -> list[builders.Event]:
        assert body["max_output_tokens"] == 900
        events = stream(message("hi"), response_id="resp_B", echo=body, usage=usage(20, 5))
        events[-1]["response"] |= {"created_at": 5, "service_tier": "flex"}
        return events

    response = run_turn(request, [first, second]).response
    assert response["id"] == "resp_A"
    assert response["created_at"] == builders.CREATED_AT
    assert response["max_output_tokens"] == 1000
    assert response["previous_response_id"] == "resp_0"
    assert response["service_tier"] == "flex"
    assert response["output"] == [message("hi")]


def test_an_incomplete_end_passes_with_its_reason_and_usage() -> None:
    events = stream(
        message("half", status="incomplete"),
        end="incomplete",
        usage=usage(64, 1500),
        incomplete_details={"reason": "max_output_tokens"},
    )
    played = run_turn(hops=[events])
    assert played.client_bytes == body(events)
    assert played.outcome.ending is Ending.INCOMPLETE
    assert played.outcome.stop_reason == "max_output_tokens"
    assert played.outcome.spent == usage(64, 1500)


def test_incomplete_with_a_hidden_call_shows_the_rest() -> None:
    played = run_turn(
        hops=[
            stream(
                message("half"),
                recall_call("c1", "{}"),
                end="incomplete",
                incomplete_details={"reason": "content_filter"},
            )
        ],
    )
    check_sent(played.client_bytes)
    assert played.response["output"] == [message("half")]
    assert played.response["incomplete_details"] == {"reason": "content_filter"}
    assert len(played.requests) == 1


def test_a_providers_own_failure_passes_as_it_came() -> None:
    events = builders.numbered([*builders.opening(), builders.failed("server_is_overloaded")])
    played = run_turn(hops=[events])
    assert played.client_bytes == body(events)
    assert played.outcome.ending is Ending.PROVIDER_FAILED


def test_a_failure_with_a_hidden_call_keeps_the_providers_code() -> None:
    events = [
        *builders.opening(),
        *builders.item_events(recall_call("c1", "{}"), 0),
        builders.failed("rate_limit_exceeded", "try again in 1.5s"),
    ]
    played = run_turn(hops=[events])
    check_sent(played.client_bytes)
    assert played.response["error"] == {
        "code": "rate_limit_exceeded",
        "message": "try again in 1.5s",
    }


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete", "response.failed"])
def test_nothing_comes_after_the_terminal(kind: str) -> None:
    end = kind.removeprefix("response.")
    sent = body(stream(message("hi"), end=end, error=None))
    more = frame({"type": "response.output_text.delta"}) + b"data: [DONE]\n\n" + sent
    played = run_turn(hops=[sent + more])
    assert played.client_bytes == sent
    assert played.kinds[-1] == kind


def test_a_string_input_becomes_a_message() -> None:
    played = run_turn(builders.request(input="hello"), [ONCE, ANSWER])
    assert played.requests[1].body["input"][0] == {
        "type": "message",
        "role": "user",
        "content": "hello",
    }


def test_an_absent_input_starts_with_the_first_hops_output() -> None:
    request = builders.request(prompt={"id": "pmpt_1"})
    del request["input"]
    played = run_turn(request, [ONCE, ANSWER], results={"c1": "x"})
    call = recall_call("c1", {"query": "x"})
    assert played.requests[1].body["input"] == [call, output("c1", "x")]


# --------------------------------------------------------------------------------- signs of life


def test_silence_is_bridged() -> None:
    events = stream(message("hi"))
    script = Playbook(turn()).skip()
    script.feed(KeepAliveDue()).expect()  # the head of the upstream is not known yet
    script.feed(opened())
    assert script.feed(KeepAliveDue()).sent() == b": keep-alive\n\n"
    sent = script.feed(chunk(body(events[:2])))
    for number in (2, 3, 4):
        alive = json.loads(sent.skip().feed(KeepAliveDue()).sent().split(b"data: ")[1])
        assert alive["type"] == "response.in_progress"
        assert alive["sequence_number"] == number
        assert alive["response"] == events[0]["response"] | {"output": []}
    script.feed(chunk(body(events[2:])))
    script.expect(CloseUpstream, Send, Finish).feed(KeepAliveDue()).expect()
    numbers = [e["sequence_number"] for e in check_sent(script.performer.sent)]
    assert numbers == list(range(len(events) + 3))
    assert script.turn.hop.state.output() == [message("hi")]


def test_silence_while_memory_is_asked_is_bridged_too() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(stream(recall_call("c1", "{}"))))).skip()
    assert b"response.in_progress" in script.feed(KeepAliveDue()).sent()
    script.feed(found("c1", "x")).skip()
    assert b"response.in_progress" in script.feed(KeepAliveDue()).sent()
    script.feed(opened(), chunk(body(ANSWER({})))).skip()
    script.feed(KeepAliveDue()).expect()
    check_sent(script.performer.sent)


# ------------------------------------------------------------------------------ odd providers


@pytest.mark.parametrize("name", sorted(builders.FRAMINGS))
@pytest.mark.parametrize("declared", [True, False])
def test_every_framing_says_the_same(name: str, declared: bool) -> None:
    events = stream(message("你好🙂"))
    data = body(events, builders.FRAMINGS[name])
    played = run_turn(hops=[data], chunking=bytewise, declared=declared)
    assert played.events == events
    assert played.text == "你好🙂"
    assert "\ufffd" not in played.client_bytes.decode()
    assert played.outcome.spent == builders.USAGE
    frame_ = builders.FRAMINGS[name]
    if frame_.newline == b"\n" and not frame_.split and frame_.last_blank and frame_.event:
        assert data.removeprefix(b"\xef\xbb\xbf").startswith(played.client_bytes)
    else:
        check_sent(played.client_bytes)


@pytest.mark.parametrize("habit", [strategies.empty_output, strategies.absent_output])
def test_an_empty_output_is_filled_from_what_was_streamed(habit: Any) -> None:
    events = habit(stream(reasoning("why"), message("hi")))
    played = run_turn(hops=[events], dialect=Dialect.CODEX)
    assert played.client_bytes.startswith(body(events[:-1]))
    assert played.response["output"] == [reasoning("why"), message("hi")]
    assert played.outcome.findings[Rule.OUTPUT_EMPTY, "response.completed"] == 1


@pytest.mark.parametrize("arguments_late", [True, False])
@pytest.mark.parametrize("lone", [True, False])
def test_a_sparse_hidden_call(arguments_late: bool, lone: bool) -> None:
    call = recall_call("c1", {"query": "x"})
    events = builders.nameless(
        [*builders.opening(), *builders.item_events(call, 0)], arguments_only_in_done=arguments_late
    )
    if lone:
        events = [*builders.opening(), builders.item_done(call)]
    events.append(builders.terminal(output=[]))
    played = run_turn(hops=[events, ANSWER], dialect=Dialect.CODEX, chunking=bytewise)
    check_sent(played.client_bytes)
    assert b"c1" not in played.client_bytes
    assert [one.arguments for one in played.calls] == ['{"query":"x"}']
    assert played.requests[1].body["input"][-2] == call


def test_a_sparse_client_call_is_released_in_order() -> None:
    shell, said = function_call("c1", "shell", {"command": "ls"}), message("and more")
    events = builders.numbered(
        [
            *builders.opening(),
            *builders.interleaved(
                builders.nameless(builders.item_events(shell, 0)),
                [*[None] * 2, *builders.item_events(said, 1)],  # type: ignore[list-item]  # delays it
            ),
            builders.terminal(output=[shell, said]),
        ]
    )
    played = run_turn(hops=[events])
    shown = check_sent(played.client_bytes)
    assert played.response["output"] == [shell, said]
    starts = [e["output_index"] for e in shown if e["type"] == "response.output_item.added"]
    assert starts == [0, 1]
    assert shown[2]["item"]["name"] == "shell"


def test_items_open_before_an_unresolved_call_go_on_live() -> None:
    said, shell = message("hello"), function_call("c1", "shell", "{}")
    calm = builders.item_events(said, 0)
    nameless = builders.nameless(builders.item_events(shell, 1))
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body([*builders.opening(), *calm[:3]]))).skip()
    assert script.feed(chunk(body(nameless[:1]))).sent() == b""
    assert b"response.output_text.delta" in script.feed(chunk(body(calm[3:4]))).sent()


def test_foreign_data_waits_for_the_end_of_a_hidden_call() -> None:
    note = b"event: note\ndata: no json\n\n"
    calls = frames([*builders.opening(), *builders.item_events(recall_call("c1", "{}"), 0)])
    script = Playbook(turn()).skip()
    script.feed(opened())
    assert note in script.feed(chunk(b"".join(calls[:2]) + note)).sent()
    assert script.feed(chunk(calls[2] + note)).sent() == b""
    script.feed(chunk(b"".join(calls[3:]))).expect(RunTool, Send(note))


def test_foreign_data_that_names_a_hidden_call_is_dropped() -> None:
    events = frames(ONCE({}))
    note = b"event: note\ndata: c1 is running\n\n"
    trace = frame({"type": "acme:trace", "call": "c1"})
    hop = b"".join([*events[:3], note, trace, *events[3:]])
    played = run_turn(hops=[hop, ANSWER])
    assert b"c1" not in check_bytes(played.client_bytes)


@pytest.mark.parametrize("said", [b"recall call_SECRET1", b"call_SECRET1", b"about (recall)"])
@pytest.mark.parametrize("name", [b"event: note\n", b"event: note\nid: 1\n"])
def test_nor_does_it_pass_once_the_call_is_over(said: bytes, name: bytes) -> None:
    note = name + b"data: " + said + b"\n\n"
    trace = frame({"type": "acme:trace", "call": "call_SECRET1"})
    first = frames(stream(recall_call("call_SECRET1", "{}")))
    after = frames(stream(message("hi"), response_id="resp_B"))
    hops = [
        b"".join([*first[:-1], note, first[-1]]),
        b"".join([*after[:-1], note, trace, after[-1]]),
    ]
    played = run_turn(hops=hops)
    assert played.text == "hi"
    assert b"SECRET1" not in played.client_bytes
    assert b"recall" not in played.client_bytes
    assert run_turn(hops=[b"".join([*after[:-1], note, after[-1]])], declared=False).text == "hi"


def test_other_foreign_data_passes_once_the_call_is_over() -> None:
    note = b"event: note\ndata: recalled nothing\n\n"
    first = frames(stream(recall_call("call_SECRET1", "{}")))
    played = run_turn(hops=[b"".join([*first[:-1], note, first[-1]]), ANSWER])
    assert note in played.client_bytes


@pytest.mark.parametrize(
    "cut", [b"event: note\ndata: no js", b"event: note\n", b": still he", b": x\n"]
)
@pytest.mark.parametrize("declared", [True, False])
def test_what_a_stream_is_cut_in_is_no_event(cut: bytes, *, declared: bool) -> None:
    """It would take the beginning of the terminal that we write behind it."""
    begun = body([*builders.opening(), *builders.item_events(message("hi"), 0)])
    played = run_turn(hops=[begun + cut], declared=declared)
    assert played.client_bytes.startswith(begun + b"event: response.failed\n")


@pytest.mark.parametrize(
    "note",
    [
        b"\xef\xbb\xbfevent: note\ndata: no json\n\n",
        b"event: note\r\ndata: no json\r\n\r\n",
        b"data: no json\revent: note\r\r",
    ],
)
def test_foreign_data_is_framed_as_every_client_reads_it(note: bytes) -> None:
    events, plain = frames(stream(message("hi"))), b"event: note\ndata: no json\n\n"
    played = run_turn(hops=[b"".join([note, *events])], declared=False)
    assert played.client_bytes == b"".join([events[0], plain, *events[1:]])


def test_a_comment_leaves_without_the_mark_in_front_of_it() -> None:
    events = body(stream(message("hi")))
    played = run_turn(hops=[b"\xef\xbb\xbf: hello\n\n" + events], declared=False)
    assert played.client_bytes == b": hello\n\n" + events


def test_an_error_that_stands_alone_is_still_the_providers() -> None:
    error = b'data: {"error":{"code":"overloaded","message":"busy"}}\n\n'
    played = run_turn(hops=[body(builders.opening()) + error])
    assert played.events[-2]["type"] == "error"
    assert played.response["error"] == {"code": "overloaded", "message": "busy"}
    check_sent(played.client_bytes)


def test_an_object_that_is_no_event_is_dropped() -> None:
    played = run_turn(hops=[body(builders.opening()) + b'data: {"a":1}\n\n' + body([END])])
    assert played.client_bytes == body([*builders.opening(), END])
    assert (Rule.TYPE_MISSING, "unknown") in played.outcome.findings


def test_an_error_event_passes_flat_and_its_code_ends_the_stream() -> None:
    nested = {"type": "error", "error": {"code": "overloaded", "message": "busy", "param": None}}
    played = run_turn(hops=[body([*builders.opening(), nested])])
    *_, error, failed = check_sent(played.client_bytes)
    assert error["type"] == "error"
    assert (error["code"], error["message"]) == ("overloaded", "busy")
    assert failed["response"]["error"] == {"code": "overloaded", "message": "busy"}


def test_quota_events_are_rebuilt_and_wait_for_created() -> None:
    quota = {
        "type": "codex.rate_limits",
        "account": "secret",
        "rate_limits": {"primary": {"used_percent": 3.5, "token": "secret"}},
    }
    events = stream(message("hi"))
    played = run_turn(hops=[body([quota, quota, *events])], dialect=Dialect.CODEX)
    assert played.events[:2] == [
        events[0],
        {"type": "codex.rate_limits", "rate_limits": {"primary": {"used_percent": 3.5}}},
    ]
    assert [e for e in played.events if e["type"] != "codex.rate_limits"] == events
    assert len(played.turn.view.quota.events) == 1


def test_quota_events_of_a_hop_that_came_to_nothing_go_with_it() -> None:
    quota = {"type": "codex.rate_limits", "rate_limits": {"primary": {"used_percent": 3}}}
    newer = {"type": "codex.rate_limits", "rate_limits": {"primary": {"used_percent": 4}}}
    lost = body([*builders.opening("resp_B"), quota])
    hops = [ONCE, Answer(lost, cut=RESET), body([newer, *ANSWER({})])]
    played = run_turn(hops=hops, dialect=Dialect.CODEX)
    check_sent(played.client_bytes)
    shown = [e for e in played.events if e["type"] == "codex.rate_limits"]
    assert shown == [newer]
    assert list(played.turn.view.quota.events) == [quota, newer]
    assert [hop.quota for hop in played.turn.hops] == [[], [quota], [newer]]


def test_quota_events_keep_their_order_over_hops() -> None:
    quotas = [{"type": "codex.rate_limits", "plan_type": plan} for plan in ("a", "b", "b", "c")]
    first, second = ONCE({}), ANSWER({})
    hops = [
        body([quotas[0], *first[:2], quotas[1], *first[2:]]),
        body([quotas[2], *second[:-1], quotas[3], second[-1]]),
    ]
    played = run_turn(hops=hops, dialect=Dialect.CODEX)
    shown = [e["plan_type"] for e in played.events if e["type"] == "codex.rate_limits"]
    assert shown == ["a", "b", "c"]


@pytest.mark.parametrize("habit", sorted(strategies.HABITS))
@pytest.mark.parametrize("hidden", [True, False])
def test_every_habit_of_providers_gives_a_stream_that_clients_read(
    habit: str,
    hidden: bool,
) -> None:
    shell = function_call("c2", "shell", {"command": "ls"})
    items = [reasoning("why"), message("hello world"), shell]
    calls = [recall_call("c1", {"query": "x"})] if hidden else []
    events = strategies.HABITS[habit](stream(*calls, *items, usage=usage(5, 2)))
    played = run_turn(hops=[events], dialect=Dialect.CODEX, chunking=bytewise)
    if played.turn.view.client.changed:
        check_sent(played.client_bytes)
    assert [item.get("call_id") for item in played.response["output"]] == [None, None, "c2"]
    assert played.text == "hello world"
    assert played.response["usage"] == usage(5, 2)
    done = [e["item"] for e in played.events if e["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == [item["type"] for item in items]
    assert done[1]["content"][0]["text"] == "hello world"


def test_the_text_of_deltas_alone_reaches_those_who_read_items() -> None:
    events = [*builders.opening(), *builders.item_events(message("hello"), 0)[2:4]]
    played = run_turn(hops=[[*events, builders.terminal(output=[])]], dialect=Dialect.CODEX)
    *_, done, _ = check_sent(played.client_bytes)
    assert done["item"]["content"][0]["text"] == "hello"


def test_the_last_bytes_end_the_body() -> None:
    for declared in (True, False):
        played = run_turn(hops=[stream(message("hi"))], chunking=bytewise, declared=declared)
        last = [one for one in played.commands if isinstance(one, Send)][-1]
        assert last.last
        assert b"response.completed" in last.data


def test_events_before_created_wait_for_it() -> None:
    events = strategies.no_numbers(stream(message("hi")))
    moved = [*events[2:4], *events[:2], *events[4:]]
    played = run_turn(hops=[moved])
    shown = check_sent(played.client_bytes)
    assert [e["type"] for e in shown[:4]] == [
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.in_progress",
    ]


def test_a_missing_created_is_made() -> None:
    played = run_turn(hops=[strategies.no_numbers(stream(message("hi")))[1:]])
    assert check_sent(played.client_bytes)[0]["type"] == "response.created"
    assert played.outcome.findings[Rule.CREATED_MISSING, "response.in_progress"] == 1


def test_an_item_done_twice_reaches_the_client_once() -> None:
    events = stream(message("hi"))
    done = next(e for e in events if e["type"] == "response.output_item.done")
    played = run_turn(hops=[[*events[:-1], done, events[-1]]])
    check_sent(played.client_bytes)
    assert played.response["output"] == [message("hi")]


def test_an_item_that_only_the_terminal_has_is_shown() -> None:
    events = [*builders.opening(), builders.terminal(output=[message("hi")])]
    played = run_turn(hops=[events])
    assert check_sent(played.client_bytes)[-2]["item"] == message("hi")


def test_a_terminal_cant_turn_a_visible_tool_into_recall() -> None:
    call = function_call("c1", "shell", "{}")
    events = stream(call)
    events[-1]["response"]["output"] = [call | {"name": "recall"}]
    played = run_turn(hops=[events])
    assert played.response["output"] == [call]
    assert b"recall" not in played.client_bytes


# -------------------------------------------------------------------------- text of a schema


def test_text_beside_a_hidden_call_is_dropped_where_a_schema_is_asked_for() -> None:
    played = run_turn(
        hops=[
            stream(message('{"a":'), recall_call("c1", "{}")),
            stream(message('{"a":1}'), response_id="resp_B"),
        ],
        hold_text=True,
    )
    check_sent(played.client_bytes)
    assert played.text == '{"a":1}'
    assert played.requests[1].body["input"][1] == message('{"a":')


def test_held_text_goes_out_at_the_end_and_past_its_limit() -> None:
    played = run_turn(hops=[stream(message('{"a":1}'))], hold_text=True)
    check_sent(played.client_bytes)
    assert played.text == '{"a":1}'
    long = message("x" * 300_000)
    events = stream(long)
    big = frame(
        {"type": "response.output_text.delta", "delta": "x" * 300_000, "logprobs": []}
        | {"item_id": long["id"], "output_index": 0, "content_index": 0}
    )
    script = Playbook(
        turn(
            hold_text=True,
            limits=limits(deferred_bytes=1 << 20, event_bytes=1 << 20, retained_bytes=1 << 22),
        )
    ).skip()
    script.feed(opened(), chunk(body(events[:4]))).skip()
    assert b"x" * 300_000 in script.feed(chunk(big)).sent()


# ---------------------------------------------------------------------------------- the empty


def test_an_empty_completion_is_reported_before_its_terminal() -> None:
    events = stream(usage=usage(10, 0))
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(events)))
    script.expect(CloseUpstream, ReportEmpty(builders.MODEL, "completed", 0, 0), Send, Finish)
    assert script.performer.sent == body(events)
    assert script.performer.outcome is not None
    assert script.performer.outcome.empty


def test_the_report_says_how_deep_it_was() -> None:
    played = run_turn(hops=[ONCE, stream(response_id="resp_B", usage=usage(10, 2))])
    assert played.performer.empty == ReportEmpty(builders.MODEL, "completed", 2, 1)


@pytest.mark.parametrize("item", [message("hi"), reasoning("why"), function_call("c", "sh", "{}")])
def test_what_is_not_empty_is_not_reported(item: builders.Item) -> None:
    assert run_turn(hops=[stream(item)]).performer.empty is None


# ------------------------------------------------------------------------------- what is late


def test_what_comes_too_late_is_ignored() -> None:
    played = run_turn(hops=[stream(message("hi"))])
    for late in (chunk(b"x"), ended(), found("c1", "x"), KeepAliveDue(), ShutdownDue(), opened()):
        assert played.turn.receive(late) == []


def test_a_result_that_nobody_asked_for_is_ignored() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), found("nobody", "x")).expect()


@given(st.data())
def test_an_abort_leaves_nothing(data: st.DataObject) -> None:
    script = data.draw(strategies.scripts())
    played = Playbook(turn())
    happening = [opened()]
    happening += [chunk(piece) for piece in data.draw(strategies.chunkings())(script.hops[0])]
    for event in happening[: data.draw(st.integers(0, len(happening)))]:
        played.feed(event)
    before = played.turn.outcome
    outcome = played.turn.abort()
    assert outcome is played.turn.outcome
    assert (outcome.ending is Ending.CLIENT_DISCONNECT) or before is outcome
    for event in (opened(), chunk(script.hops[0]), found("c", "x"), KeepAliveDue(), ended()):
        assert played.turn.receive(event) == []
    assert played.turn.abort() is outcome


def test_calls_that_share_an_id_are_each_shown_once() -> None:
    first = builders.function_call("c1", "shell", {"command": "rm"}, id_="fc_s")
    second = builders.function_call("c2", "shell", {"command": "ls"}, id_="fc_s")
    played = run_turn(hops=[says(first, second)])
    done = [e["item"]["call_id"] for e in played.events if e["type"].endswith("item.done")]
    assert done == ["c1", "c2"]
    assert [item["call_id"] for item in played.events[-1]["response"]["output"]] == ["c1", "c2"]


def test_what_is_hidden_does_not_show_in_a_response_that_is_not_over() -> None:
    call = builders.recall_call("c1", {"query": "canary"})
    events = builders.stream(call)
    events[0]["response"]["output"] = [call]
    played = run_turn(hops=[events, says(builders.message("hi"))], results={"c1": "found"})
    assert b"canary" not in played.client_bytes
    assert played.events[0]["response"]["output"] == []


class Redact:
    """What a turn holds for as long as it lives."""

    def __call__(self, text: str) -> str:
        return text


@pytest.mark.parametrize("declared", [True, False])
def test_a_turn_that_is_over_is_freed_at_once(declared: bool) -> None:
    hops = [ONCE, ANSWER] if declared else [ANSWER]
    gc.disable()  # it would find what holds itself, later
    try:
        redact = Redact()
        held = weakref.ref(redact)
        played = run_turn(hops=hops, declared=declared, redact=redact)
        del redact
        assert held() is not None
        del played
        assert held() is None
    finally:
        gc.enable()
