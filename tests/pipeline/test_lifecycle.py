"""The table of events, the table of rules, and the checker that applies them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dialect import normalize_codex_event, seed_implicit_codex_item
from pipeline.errors import ProtocolError
from pipeline.lifecycle import (
    EVENTS,
    ITEM_PREFIXES,
    ITEM_TYPES,
    RULES,
    TERMINALS,
    Action,
    Checker,
    Dialect,
    Mode,
    Phase,
    Rule,
    Severity,
    Wire,
    validate_response_lifecycle,
    validate_stream_end,
)
from pipeline.response import ResponseState, apply_responses_event
from tests import builders, strategies
from tests.builders import body, frame, function_call, message, recall_call, stream, without
from tests.playbook import Answer, run_turn

if TYPE_CHECKING:
    from tests.builders import Event

OPENING = builders.opening()
SAID = builders.item_events(message("hi"), 0)
END = builders.terminal(output=[message("hi")])


# ----------------------------------------------------------------------- the table of severities

REJECTED: Final = {
    Rule.MALFORMED_JSON,
    Rule.TYPE_MISMATCH,
    Rule.RESPONSE_ID_CHANGED,
    Rule.INDEX_REUSED,
    Rule.KIND_CHANGED,
    Rule.INDEX_OUT_OF_RANGE,
    Rule.WRONG_ITEM_KIND,
    Rule.ARGUMENTS_DISAGREE,
    Rule.NAME_CHANGED,
    Rule.AMBIGUOUS_ITEM,
    Rule.MALFORMED_EVENT,
    Rule.TERMINAL_MISSING,
}
TOLERATED: Final = {
    Rule.AFTER_DONE,
    Rule.OUTPUT_DIFFERS,
    Rule.CREATED_TWICE,
    Rule.SEQUENCE_GAP,
    Rule.NOT_JSON,
    Rule.CALL_ID_CHANGED,
    Rule.LOGPROBS_MISSING,
    Rule.UNKNOWN_EVENT,
    Rule.UNKNOWN_ITEM_TYPE,
    Rule.UNKNOWN_STATUS,
}
KEPT: Final = TOLERATED | {Rule.LONE_DONE, Rule.STATUS_MISSING, Rule.SEQUENCE_MISSING}
"""What stays as it came: no client breaks on it, or the project passes it on by its own rule."""


@pytest.mark.parametrize("rule", Rule)
def test_severity_and_wire_of_every_rule(rule: Rule) -> None:
    spec = RULES[rule]
    if rule in REJECTED:
        assert spec.public is spec.codex is Severity.REJECT
    elif rule in TOLERATED:
        assert spec.public is Severity.TOLERATE
        assert spec.codex in (Severity.TOLERATE, Severity.NATIVE)
    else:
        assert spec.public is Severity.REPAIR
        assert spec.codex in (Severity.REPAIR, Severity.NATIVE)
    assert spec.wire is (Wire.KEEP if rule in KEPT else Wire.WRITE)
    assert "{" not in spec.text.replace("{event}", "")
    assert set(spec.breaks.split()) <= {"codex", "sdk", "stream"}


def test_the_texts_that_are_given() -> None:
    assert RULES[Rule.MALFORMED_JSON].text == "malformed JSON in Responses event {event}"
    assert RULES[Rule.TYPE_MISMATCH].text == "Responses payload type does not match {event}"


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("rule", Rule)
def test_the_modes(rule: Rule, dialect: Dialect) -> None:
    usual = RULES[rule].codex if dialect is Dialect.CODEX else RULES[rule].public
    rejects = {
        Mode.TOLERANT: usual is Severity.REJECT,
        Mode.STRICT: usual is not Severity.NATIVE,
        Mode.SENT: RULES[rule].sent,
    }
    for mode, expected in rejects.items():
        check = Checker(dialect, mode, items_limit=9)
        if expected:
            with pytest.raises(ProtocolError) as caught:
                check.report(rule, "response.created")
            assert caught.value.message == RULES[rule].text.format(event="response.created")
            assert caught.value.code == "invalid_prompt"
            assert check.findings == {}
        else:
            check.report(rule, "response.created")
            check.report(rule, "something.else")
            assert check.findings == {(rule, "response.created"): 1, (rule, "unknown"): 1}


def test_findings_of_unknown_events_dont_grow() -> None:
    check = Checker(Dialect.PUBLIC, Mode.TOLERANT, items_limit=9)
    for number in range(100):
        check.report(Rule.UNKNOWN_EVENT, f"response.new_{number}")
    assert check.findings == {(Rule.UNKNOWN_EVENT, "unknown"): 100}


# -------------------------------------------------------------------------- a sample of each rule


def delta(**members: Any) -> Event:
    return SAID[2] | members


def terminal(**members: Any) -> Event:
    return builders.terminal(**({"output": [message("hi")]} | members))


def unframed(event: Event, name: bytes | None) -> bytes:
    line = b"" if name is None else b"event: " + name + b"\n"
    return line + b"data: " + builders.compact(event).encode() + b"\n\n"


ADDED, PART, DELTA, SETTLED, CLOSED, DONE = SAID
TWO = [ADDED, *builders.item_events(message("b"), 1)[:1]]
SAMPLES: Final[dict[Rule, list[Event | bytes]]] = {
    Rule.MALFORMED_JSON: [*OPENING, b"event: response.new\ndata: {\n\n", END],
    Rule.TYPE_MISMATCH: [*OPENING, unframed(OPENING[1], b"response.created"), END],
    Rule.RESPONSE_ID_CHANGED: [*OPENING, terminal(response_id="resp_B")],
    Rule.INDEX_REUSED: [*OPENING, *SAID, ADDED | {"item": message("b")}, END],
    Rule.KIND_CHANGED: [*OPENING, ADDED, builders.item_done(function_call("c", "s", "{}"), 0), END],
    Rule.INDEX_OUT_OF_RANGE: [*OPENING, ADDED | {"output_index": -1}, END],
    Rule.WRONG_ITEM_KIND: [
        *OPENING,
        ADDED,
        delta(type="response.refusal.delta") | {"type": "response.custom_tool_call_input.delta"},
        END,
    ],
    Rule.AMBIGUOUS_ITEM: [*OPENING, *TWO, without(DELTA, "output_index", "item_id"), END],
    Rule.MALFORMED_EVENT: [*OPENING, without(ADDED, "item"), END],
    Rule.TERMINAL_MISSING: [*OPENING, *SAID],
    Rule.ARGUMENTS_DISAGREE: [
        *OPENING,
        *builders.item_events(recall_call("c", '{"a":1}'), 0)[:-1],
        builders.item_done(recall_call("c", '{"a":2}'), 0),
        END,
    ],
    Rule.NAME_CHANGED: [
        *OPENING,
        *builders.item_events(recall_call("c", "{}"), 0)[:-1],
        builders.item_done(function_call("c", "shell", "{}"), 0),
        END,
    ],
    Rule.RESPONSE_ID_MISSING: [
        *OPENING,
        *SAID,
        END | {"response": without(END["response"], "id")},
    ],
    Rule.ITEM_ID_MISSING: [*OPENING, ADDED, PART, without(DELTA, "item_id"), DONE, END],
    Rule.ITEM_ID_ROTATED: [*OPENING, ADDED, PART, delta(item_id="msg_other"), DONE, END],
    Rule.ITEM_ID_REUSED: [
        *OPENING,
        *SAID,
        *builders.item_events(message("more", id_=message("hi")["id"]), 1),
        terminal(output=[]),
    ],
    Rule.INDEX_MISSING: [*OPENING, ADDED, PART, without(DELTA, "output_index"), DONE, END],
    Rule.ADDED_MISSING: [*OPENING, PART, DELTA, SETTLED, CLOSED, DONE, END],
    Rule.LONE_DONE: [*OPENING, DONE, END],
    Rule.PART_MISSING: [*OPENING, ADDED, DELTA, SETTLED, CLOSED, DONE, END],
    Rule.PART_INDEX_MISSING: [*OPENING, ADDED, PART, without(DELTA, "content_index"), DONE, END],
    Rule.PART_INCOMPLETE: [
        *OPENING,
        ADDED,
        PART | {"part": without(PART["part"], "text")},
        DELTA,
        DONE,
        END,
    ],
    Rule.ITEM_INCOMPLETE: [
        *OPENING,
        ADDED | {"item": without(ADDED["item"], "content")},
        PART,
        DELTA,
        DONE,
        END,
    ],
    Rule.TEXT_MISSING: [*OPENING, ADDED, PART, DELTA, without(SETTLED, "text"), DONE, END],
    Rule.DONE_TWICE: [*OPENING, *SAID, DONE, END],
    Rule.AFTER_DONE: [*OPENING, *SAID, DELTA, END],
    Rule.DONE_MISSING: [*OPENING, *SAID[:-1], END],
    Rule.ITEM_UNSEEN: [*OPENING, END],
    Rule.STATUS_MISSING: [*OPENING, ADDED | {"item": without(ADDED["item"], "status")}, DONE, END],
    Rule.OUTPUT_EMPTY: [*OPENING, *SAID, terminal(output=[])],
    Rule.OUTPUT_DIFFERS: [*OPENING, *SAID, terminal(output=[message("hi") | {"x": 1}])],
    Rule.RESPONSE_DONE: [*OPENING, *SAID, END | {"type": "response.done"}],
    Rule.TERMINAL_STATUS: [
        *OPENING,
        *SAID,
        END | {"response": END["response"] | {"status": "incomplete"}},
    ],
    Rule.USAGE_INCOMPLETE: [
        *OPENING,
        *SAID,
        terminal(usage={"input_tokens": 1.0, "output_tokens": 2}),
    ],
    Rule.CREATED_MISSING: [OPENING[1], *SAID, END],
    Rule.CREATED_TWICE: [OPENING[0], *OPENING, *SAID, END],
    Rule.BEFORE_CREATED: [{"type": "keepalive"}, *OPENING, *SAID, END],
    Rule.AFTER_TERMINAL: [*OPENING, *SAID, END, DELTA],
    Rule.SEQUENCE_MISSING: [*OPENING, *SAID, END],
    Rule.SEQUENCE_GAP: builders.numbered([*OPENING, *SAID, END])[:3]
    + builders.numbered([*SAID, END], start=3)[1:],
    Rule.EVENT_LINE_MISSING: [*OPENING, *SAID, unframed(END, None)],
    Rule.EVENT_LINE_FOREIGN: [*OPENING, *SAID, unframed(END, b"message")],
    Rule.TYPE_MISSING: [*OPENING, *SAID, unframed(without(END, "type"), b"response.completed")],
    Rule.FRAMING: [*OPENING, *SAID, frame(END, builders.Framing(newline=b"\r\n"))],
    Rule.EMPTY_DATA: [*OPENING, b"data:\n\n", *SAID, END],
    Rule.DONE_MARKER: [*OPENING, b"data: [DONE]\n\n", *SAID, END],
    Rule.NOT_JSON: [*OPENING, b"event: note\ndata: no json\n\n", *SAID, END],
    Rule.ERROR_NESTED: [*OPENING, {"type": "error", "error": {"message": "no"}}, *SAID, END],
    Rule.RATE_LIMITS: [
        *OPENING,
        {"type": "codex.rate_limits", "plan_type": "p", "account": 1},
        *SAID,
        END,
    ],
    Rule.CALL_ID_CHANGED: [
        *OPENING,
        *builders.item_events(function_call("c", "s", "{}"), 0)[:-1],
        builders.item_done(function_call("d", "s", "{}", id_=function_call("c", "s", "")["id"]), 0),
        terminal(output=[function_call("d", "s", "{}", id_=function_call("c", "s", "")["id"])]),
    ],
    Rule.LOGPROBS_MISSING: [*OPENING, ADDED, PART, without(DELTA, "logprobs"), DONE, END],
    Rule.UNKNOWN_EVENT: [*OPENING, {"type": "response.new"}, *SAID, END],
    Rule.UNKNOWN_ITEM_TYPE: [
        *OPENING,
        builders.item_done({"id": "x_1", "type": "new", "status": "completed"}, 0),
        terminal(output=[{"id": "x_1", "type": "new", "status": "completed"}]),
    ],
    Rule.UNKNOWN_STATUS: [*OPENING, ADDED | {"item": ADDED["item"] | {"status": "new"}}, DONE, END],
}


def sample(rule: Rule) -> bytes:
    parts = SAMPLES[rule]
    return b"".join(part if isinstance(part, bytes) else frame(part) for part in parts)


def test_every_rule_has_a_sample() -> None:
    assert set(SAMPLES) == set(Rule)


@pytest.mark.parametrize("rule", [rule for rule in Rule if rule not in REJECTED])
def test_a_deviation_is_counted_and_its_wire_holds(rule: Rule) -> None:
    sent = sample(rule)
    played = run_turn(hops=[sent], declared=False)
    counted = {found for found, _ in played.outcome.findings}
    if rule is not Rule.AFTER_TERMINAL:  # nothing is read any more
        assert rule in counted
    kept = all(RULES[found].wire is Wire.KEEP for found in counted | {rule})
    assert (played.client_bytes == sent) is kept


@pytest.mark.parametrize("rule", sorted(REJECTED - {Rule.TERMINAL_MISSING}))
def test_what_is_rejected_ends_the_turn(rule: Rule) -> None:
    played = run_turn(hops=[sample(rule)])
    assert played.response["status"] == "failed"
    text = RULES[rule].text
    assert played.outcome.message is not None
    begin, _, end = text.partition("{event}")
    assert played.outcome.message.startswith(begin)
    assert played.outcome.message.endswith(end)


@pytest.mark.parametrize("rule", [Rule.ARGUMENTS_DISAGREE, Rule.NAME_CHANGED])
def test_hidden_calls_are_nobodys_business_where_nothing_is_hidden(rule: Rule) -> None:
    events = copy.deepcopy(SAMPLES[rule][:-1])
    last = events[-1]
    assert isinstance(last, dict)
    sent = [*events, builders.terminal(output=[last["item"]])]
    assert run_turn(hops=[sent], declared=False).client_bytes == body(sent)  # type: ignore[arg-type]  # as builders make them


# --------------------------------------------------------------------------------- the checker


def accept(
    events: list[Event], mode: Mode = Mode.TOLERANT, dialect: Dialect = Dialect.PUBLIC
) -> tuple[ResponseState, Checker]:
    """Take events as a hop does, without a client."""
    state, check = ResponseState(), Checker(dialect, mode, items_limit=100)

    def mint(prefix: str, index: int) -> str:
        return f"{prefix}_minted_{index}"

    for event in copy.deepcopy(events):
        normalize_codex_event(event, state, check, mint)
        validate_response_lifecycle(event, state, check)
        for missing in seed_implicit_codex_item(event, state, check, mint):
            apply_responses_event(missing, state)
        apply_responses_event(event, state, 10)
    return state, check


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("dialect", Dialect)
def test_a_sound_stream_deviates_from_nothing(mode: Mode, dialect: Dialect) -> None:
    items = (message("hi"), function_call("c", "shell", "{}"), builders.custom_call("d", "p", "x"))
    state, check = accept(stream(*items), mode, dialect)
    validate_stream_end(state, check)
    assert check.findings == {}
    assert state.phase is Phase.COMPLETED


@given(st.data())
def test_checking_changes_nothing(data: st.DataObject) -> None:
    items = data.draw(strategies.outputs(1, recall=True, client=True))
    events = data.draw(strategies.habitual(data.draw(strategies.hop_events(items))))
    state, check = ResponseState(), Checker(Dialect.CODEX, Mode.TOLERANT, items_limit=100)
    for event in copy.deepcopy(events):
        normalize_codex_event(event, state, check, lambda prefix, index: f"{prefix}_{index}")
        before = copy.deepcopy((event, list(state.items), state.phase, state.retained))
        validate_response_lifecycle(event, state, check)
        assert before == (event, list(state.items), state.phase, state.retained)
        apply_responses_event(event, state)


FRAMED: Final = {rule for rule, parts in SAMPLES.items() if any(type(p) is bytes for p in parts)}
"""What frames look like is the hop's business."""


@pytest.mark.parametrize("rule", [r for r in Rule if RULES[r].sent and r not in REJECTED | FRAMED])
def test_strict_and_sent_reject_the_sample(rule: Rule) -> None:
    events = [part for part in SAMPLES[rule] if isinstance(part, dict)]
    for mode in (Mode.SENT, Mode.STRICT):
        with pytest.raises(ProtocolError):
            accept(events, mode)


def test_a_stream_without_its_end() -> None:
    state, check = accept([*OPENING, *SAID])
    with pytest.raises(ProtocolError, match="stream ended without a terminal event"):
        validate_stream_end(state, check)


def test_what_comes_after_the_end_is_counted() -> None:
    _, check = accept([*OPENING, *SAID, END, {"type": "keepalive"}, END])
    found = {kind for rule, kind in check.findings if rule is Rule.AFTER_TERMINAL}
    assert found == {"keepalive", "response.completed"}


def test_the_same_item_may_not_be_begun_twice_but_at_any_index() -> None:
    far = [*OPENING, *builders.item_events(message("hi"), 100), END]
    assert accept(far)[0].ordered()[0].index == 100
    with pytest.raises(ProtocolError, match="output index out of range"):
        accept([*OPENING, *builders.item_events(message("hi"), 101), END])


# ------------------------------------------------------------------------------ the table of events


def test_every_event_says_what_it_needs_and_where_it_leads() -> None:
    for kind, spec in EVENTS.items():
        assert spec.action is Action.FREE or (spec.needs and spec.leads_to), kind
        if spec.action in (Action.APPEND, Action.SETTLE):
            assert all((spec.field, spec.value, spec.item_types)), kind
        if spec.item_types is not None:
            assert spec.item_types <= ITEM_TYPES, kind


def test_terminals_are_events_that_lead_to_an_end() -> None:
    ends = {kind for kind, spec in EVENTS.items() if spec.action is Action.RESPONSE}
    ends = {
        kind
        for kind in ends
        if Phase(EVENTS[kind].leads_to) in (Phase.COMPLETED, Phase.FAILED, Phase.INCOMPLETE)
    }
    assert ends == TERMINALS


def test_prefixes_are_those_that_providers_check() -> None:
    known = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
    assert known.items() <= ITEM_PREFIXES.items()
    assert len(set(ITEM_PREFIXES.values())) == len(ITEM_PREFIXES)


def test_an_answer_that_breaks_a_rule_before_created_is_refused() -> None:
    played = run_turn(hops=[Answer(b"event: response.new\ndata: {\n\n")])
    assert played.error.message == "malformed JSON in Responses event response.new"
    assert (played.error.status, played.error.code) == (502, "invalid_prompt")
