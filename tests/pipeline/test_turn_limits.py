"""No buffer without a limit, no limit without its text, and none for what only passes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import FailureCategory, UpstreamError
from pipeline.events import KeepAliveDue
from pipeline.lifecycle import Dialect
from pipeline.outcome import Ending
from tests import builders, strategies
from tests.builders import body, frame, frames, function_call, message, recall_call, stream
from tests.playbook import (
    Answer,
    Playbook,
    broken,
    bytewise,
    chunk,
    framewise,
    limits,
    opened,
    run_turn,
    turn,
    whole,
)
from tests.sent import check_sent

if TYPE_CHECKING:
    from pipeline.limits import Limits
    from tests.playbook import Chunking

OPENING = builders.opening()
LONG = stream(*[message(f"{number} " * 8) for number in range(8)])
CALL = stream(recall_call("c1", {"query": "x" * 200}))
NAMELESS = builders.nameless(builders.item_events(function_call("c1", "shell", "x" * 200), 0))[:-1]
NOISE = b"event: note\ndata: no json\n\n"

LIMITED: list[tuple[str, Limits, str, bytes]] = [
    (
        "stream_bytes",
        limits(stream_bytes=6000),
        "Responses stream exceeded byte limit",
        body(LONG),
    ),
    (
        "retained_bytes",
        limits(retained_bytes=1500),
        "Responses retained state exceeded byte limit",
        body(LONG),
    ),
    (
        "deferred_bytes",
        limits(deferred_bytes=1500),
        "recall stream exceeded deferred event limit",
        body([*OPENING, *NAMELESS]),
    ),
    (
        "deferred_bytes",
        limits(deferred_bytes=1500),
        "recall stream exceeded deferred event limit",
        body([*OPENING, *builders.item_events(recall_call("c1", "{}"), 0)[:2]]) + NOISE * 80,
    ),
    (
        "hidden_bytes",
        limits(hidden_bytes=1500),
        "recall stream exceeded hidden byte limit",
        body(CALL),
    ),
    (
        "event_bytes",
        limits(event_bytes=3000),
        "SSE event exceeded 3000 byte limit",
        body(OPENING) + frame({"type": "response.new", "value": "x" * 4000}),
    ),
    (
        "frames",
        limits(frames=30),
        "SSE stream exceeded frame limit",
        body(LONG),
    ),
]


@pytest.mark.parametrize("chunking", [whole, framewise, bytewise])
@pytest.mark.parametrize(("name", "limited", "text", "data"), LIMITED)
def test_a_limit_ends_a_declared_turn(
    chunking: Chunking, name: str, limited: Limits, text: str, data: bytes
) -> None:
    played = run_turn(hops=[data], chunking=chunking, limits=limited)
    events = check_sent(played.client_bytes)
    assert events[-1]["response"]["error"] == {"code": "invalid_prompt", "message": text}
    assert played.outcome.limit == name
    assert played.outcome.category is FailureCategory.PRINCIPAL_LIMIT
    assert played.client_bytes == run_turn(hops=[data], limits=limited).client_bytes


@pytest.mark.parametrize("chunking", [whole, framewise])
@pytest.mark.parametrize(("name", "limited", "text", "data"), LIMITED)
def test_a_limit_ends_a_continuation(
    chunking: Chunking, name: str, limited: Limits, text: str, data: bytes
) -> None:
    first = stream(recall_call("c0", "{}"), response_id="resp_0")
    used = len(body(first)) if name in ("stream_bytes", "hidden_bytes") else 0
    limited = replace(limited, **{name: getattr(limited, name) + used})
    recovered = stream(message("instead"), response_id="resp_R")
    played = run_turn(hops=[first, data, recovered], chunking=chunking, limits=limited)
    check_sent(played.client_bytes)
    assert played.outcome.limit == name, played.outcome
    assert played.response["error"] == {"code": "invalid_prompt", "message": text}
    assert played.outcome.limit == name
    assert played.outcome.category is FailureCategory.RESOURCE_LIMIT
    assert len(played.requests) == 2


def test_a_limit_that_an_end_has_passed_holds_for_what_follows() -> None:
    """What came behind a terminal, in the read that brought it, counts as well."""
    tail = b": as if there were more\n\n" * 9
    hops = [body(CALL) + tail, body(stream(message("hi"), response_id="resp_B")) + tail]
    played = run_turn(hops=hops, limits=limits(stream_bytes=len(hops[0]) - 9))
    assert played.outcome.limit == "stream_bytes"
    assert played.response["output"] == []
    check_sent(played.client_bytes)


def test_a_limit_that_ends_a_recovery_is_named() -> None:
    first = stream(recall_call("c0", "{}"), response_id="resp_0")
    cut = Answer(refused=UpstreamError("the upstream refused the connection"))
    played = run_turn(hops=[first, cut, body(LONG)], limits=limits(frames=30))
    check_sent(played.client_bytes)
    assert played.outcome.recovered_from is FailureCategory.FOLLOW_UP_FAILED
    assert played.outcome.limit == "frames"


def test_an_index_beyond_the_limit_names_it() -> None:
    """It breaks a rule, as a negative one does, and says which limit it was."""
    sent = body([*OPENING, *builders.item_events(message("hi"), 8)])
    played = run_turn(hops=[sent], limits=limits(items=7))
    error = check_sent(played.client_bytes)[-1]["response"]["error"]
    assert error == {
        "code": "invalid_prompt",
        "message": "output index out of range at response.output_item.added",
    }
    assert played.outcome.limit == "items"
    assert played.outcome.category is FailureCategory.PRINCIPAL_PROTOCOL
    negative = body([*OPENING, *builders.item_events(message("hi"), -1)])
    assert run_turn(hops=[negative]).outcome.limit is None


def test_events_before_created_are_limited() -> None:
    early = body([{"type": "response.new", "value": number} for number in range(100)])
    played = run_turn(hops=[early], limits=limits(deferred_bytes=1500))
    assert played.error.message == "recall stream exceeded deferred event limit"
    assert (played.error.status, played.error.code) == (502, "invalid_prompt")


ENDED = {body(LONG), body(CALL)}
"""Streams that have their terminal."""


@pytest.mark.parametrize("chunking", [framewise, bytewise])
@pytest.mark.parametrize(("name", "limited", "data"), [(r[0], r[1], r[3]) for r in LIMITED])
def test_no_limit_ends_an_observed_turn(
    chunking: Chunking, name: str, limited: Limits, data: bytes
) -> None:
    end = body([builders.terminal(status="incomplete", usage=builders.USAGE)])
    sent = data if data in ENDED else data + end
    played = run_turn(hops=[sent], chunking=chunking, limits=limited, declared=False)
    assert played.client_bytes == sent
    assert played.outcome.limit is None
    assert played.outcome.spent == builders.USAGE
    truncates = name not in {"deferred_bytes", "hidden_bytes"}  # nothing is held or hidden
    assert played.outcome.truncated_by == (name if truncates else None)
    assert played.turn.hop.state.truncated is truncates


@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_what_was_held_for_created_passes_when_accumulation_ends(
    chunking: Chunking,
) -> None:
    early = body([{"type": "response.new", "value": number} for number in range(100)])
    sent = NOISE + early + body(stream(message("hi")))
    played = run_turn(
        hops=[sent], chunking=chunking, declared=False, limits=limits(deferred_bytes=1500)
    )
    assert sorted(played.client_bytes.split(b"\n\n")) == sorted(sent.split(b"\n\n"))
    assert played.outcome.truncated_by == "deferred_bytes"


@pytest.mark.parametrize("named", [True, False])
def test_quota_events_are_rebuilt_even_where_bytes_only_pass(named: bool) -> None:
    quota = frame({"type": "codex.rate_limits", "account": "a", "plan_type": "plus"})
    if not named:
        quota = quota.removeprefix(b"event: codex.rate_limits\n")
    sent = frames(LONG)
    data = b"".join([*sent[:-1], quota, sent[-1]])
    played = run_turn(
        hops=[data], declared=False, limits=limits(retained_bytes=2000), dialect=Dialect.CODEX
    )
    assert played.outcome.truncated_by == "retained_bytes"
    assert b'"account"' not in played.client_bytes
    assert b'{"type":"codex.rate_limits","plan_type":"plus"}' in played.client_bytes


@pytest.mark.parametrize("kind", ["response.failed", "response.incomplete", "response.done"])
def test_any_terminal_ends_what_only_passes(kind: str) -> None:
    last = LONG[-1] | {"type": kind}
    sent = body([*LONG[:-1], last])
    played = run_turn(
        hops=[sent + b": more\n\n"], declared=False, limits=limits(retained_bytes=500)
    )
    assert played.client_bytes == sent
    assert played.outcome.spent == builders.USAGE


def test_a_terminal_is_found_wherever_its_type_stands() -> None:
    last = LONG[-1]
    moved = {"response": last["response"], "type": last["type"]}
    end = b"data: " + builders.compact(moved).encode() + b"\n\n"
    sent = body(LONG[:-1]) + end
    played = run_turn(
        hops=[sent + b": more\n\n"], declared=False, limits=limits(retained_bytes=500)
    )
    assert played.client_bytes == sent


def test_a_large_terminal_ends_what_only_passes() -> None:
    sent = body(strategies.no_deltas(stream(message("x" * 5000))))
    for chunking in (whole, bytewise):
        played = run_turn(
            hops=[sent + b": more\n\n"],
            chunking=chunking,
            declared=False,
            limits=limits(event_bytes=4000),
        )
        assert played.client_bytes == sent
        assert played.outcome.truncated_by == "event_bytes"
        assert played.outcome.ending is Ending.COMPLETED


def test_what_only_passes_may_break() -> None:
    sent = body(LONG[:-1])
    played = run_turn(hops=[sent], declared=False, limits=limits(retained_bytes=500))
    assert played.client_bytes.startswith(sent)
    assert played.kinds[-1] == "response.failed"


def test_a_sign_of_life_is_a_comment_where_bytes_only_pass() -> None:
    script = Playbook(turn(tools=(), limits=limits(retained_bytes=500))).skip()
    script.feed(opened(), chunk(body(LONG[:-1]))).skip()
    assert script.feed(KeepAliveDue()).sent() == b": keep-alive\n\n"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_nothing_of_ours_stands_inside_of_an_event_that_passes_in_pieces(newline: bytes) -> None:
    large = frame(stream(message("x" * 3000))[-1]).replace(b"\n", newline)
    script = Playbook(turn(tools=(), limits=limits(event_bytes=1500))).skip()
    script.feed(opened(), chunk(body(OPENING))).skip()
    assert large.startswith(script.feed(chunk(large[:2500])).sent())
    assert script.feed(KeepAliveDue()).sent() == b""
    script.feed(broken(UpstreamError("cut")))
    data = script.performer.sent.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    part, last = data.removesuffix(b"\n\n").split(b"\n\n")[-2:]
    assert part.endswith(b"xxx")
    assert last.startswith(b'event: response.failed\ndata: {"type":"response.failed"')


def test_an_error_body_is_cut() -> None:
    long = Answer(b'{"error":"' + b"x" * 5000, status=500)
    call = stream(recall_call("c1", "{}"))
    played = run_turn(hops=[call, long, long], limits=limits(error_bytes=100))
    assert played.response["error"]["message"].endswith("answered 500: no readable error")


def test_an_answer_half_as_large_as_the_limit_fits() -> None:
    events = stream(message("x" * 4000))
    size = len(frames(events)[-1])
    played = run_turn(hops=[events], limits=limits(retained_bytes=size + 1000))
    assert played.client_bytes == body(events)


def test_a_hop_is_counted_once() -> None:
    call = recall_call("c1", {"query": "x" * 3000})
    first = strategies.no_deltas(stream(call))
    size = len(frames(first)[-1])
    hops = [first, stream(message("hi"), response_id="resp_B")]
    for room, ending in ((3000, Ending.COMPLETED), (10, Ending.FAILED)):
        played = run_turn(hops=hops, limits=limits(retained_bytes=size + room))
        assert played.outcome.ending is ending
        assert len(played.requests) == 2


def test_text_is_counted_in_bytes() -> None:
    item = message("é" * 3000)
    events = [*OPENING, *builders.item_events(item, 0)[:-3]]
    played = run_turn(hops=[[*events, builders.failed("x")]])
    deltas = sum(len(e["delta"].encode()) for e in events if e["type"].endswith(".delta"))
    assert deltas == 6000
    assert played.turn.hop.state.retained >= 6000


@given(st.data())
def test_what_is_kept_stays_under_the_limits(data: st.DataObject) -> None:
    script = data.draw(strategies.scripts(mixed=data.draw(st.booleans())))
    limited = limits(
        retained_bytes=data.draw(st.integers(500, 9000)),
        deferred_bytes=data.draw(st.integers(200, 3000)),
        hidden_bytes=data.draw(st.integers(200, 3000)),
    )
    largest = max(len(one) for hop in script.hops for one in framewise(hop))
    played = Playbook(turn(limits=limited))
    played.feed(opened())
    for piece in data.draw(strategies.chunkings())(script.hops[0]):
        played.feed(chunk(piece))
        hop = played.turn.hops[0]
        assert hop.state.retained <= limited.retained_bytes + largest
        assert hop.interception.unresolved_tool_bytes <= limited.deferred_bytes + largest
        at_once = max(largest, limited.deferred_bytes)  # what was held is hidden in one go
        assert hop.interception.hidden_bytes <= limited.hidden_bytes + at_once
        texts = [texts for item in hop.state.items.values() for texts in item.texts.values()]
        kept = sum(len(text) for run in texts for text in run)
        assert kept <= hop.state.retained
    if played.performer.sent and played.turn.outcome and played.turn.view.client.changed:
        check_sent(played.performer.sent)
