"""What clients need from a stream, whatever the provider sent: the rows of what they accept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests import builders
from tests.builders import (
    failed,
    function_call,
    item_done,
    item_events,
    message,
    numbered,
    opening,
    terminal,
    usage,
)
from tests.e2e import checks
from tests.e2e.client import CODEX_HEADERS
from tests.e2e.replies import says, streamed
from tests.upstreams import Gate, Stall, stream

if TYPE_CHECKING:
    from tests.builders import Event
    from tests.e2e.conftest import Lab
    from tests.upstreams import Step

PLAIN_REQUEST = builders.request(tools=None, tool_choice=None)
TEXT = "你好🙂, it's fine.\nNext line."
ANSWER = message(TEXT)
MESSAGE = item_events(ANSWER, 0)
SOUND = {"plain", "no space", "comments", "id and retry"}
RATE_LIMITS: Event = {
    "type": "codex.rate_limits",
    "plan_type": "plus",
    "rate_limits": {
        "allowed": True,
        "limit_reached": False,
        "primary": {"used_percent": 12, "window_minutes": 300, "reset_after_seconds": 600},
    },
}


def talk(lab: Lab, events: list[Event], request: dict[str, Any] = PLAIN_REQUEST) -> list[Event]:
    """Send a provider's events through the proxy; return what the client gets, well-formed."""
    with lab.post(request, streamed(events)) as exchange:
        return checks.received(exchange)


def whole(
    inner: list[Event],
    *,
    output: list[builders.Item] | None = None,
    usage: dict[str, Any] | None = builders.USAGE,
) -> list[Event]:
    """Put a lifecycle around events."""
    ended = terminal(output=[ANSWER] if output is None else output, usage=usage)
    return numbered([*opening(), *inner, ended])


@pytest.mark.parametrize("name", sorted(SOUND))
def test_a_sound_stream_passes_as_it_came(shared_lab: Lab, name: str) -> None:
    events = builders.stream(builders.reasoning("Hm."), ANSWER)
    data = builders.body(events, builders.FRAMINGS[name])
    with shared_lab.post(PLAIN_REQUEST, stream(data)) as exchange:
        assert exchange.body() == data
    assert exchange.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("name", sorted(set(builders.FRAMINGS) - SOUND))
def test_every_framing_becomes_the_one_that_clients_read(shared_lab: Lab, name: str) -> None:
    """Case 5."""
    events = builders.stream(ANSWER, usage=usage(21, 7))
    data = builders.body(events, builders.FRAMINGS[name])
    with shared_lab.post(PLAIN_REQUEST, stream(data)) as exchange:
        frames = [frame for frame in exchange.frames() if not frame.is_comment]
    assert checks.written(frames) == events
    assert "\ufffd" not in b"".join(frame.raw for frame in frames).decode()


def test_usage_is_recorded_whatever_the_framing(lab: Lab) -> None:
    for framing in builders.FRAMINGS.values():
        data = builders.body(builders.stream(ANSWER, usage=usage(21, 7)), framing)
        with lab.post(PLAIN_REQUEST, stream(data)) as exchange:
            exchange.body()
    lab.proxy.reaches(21 * len(builders.FRAMINGS), "tokens_total", kind="input")
    lab.proxy.reaches(7 * len(builders.FRAMINGS), "tokens_total", kind="output")


@pytest.mark.parametrize("name", ["plain", "crlf", "several data lines"])
def test_events_go_out_before_the_next_byte_came_in(shared_lab: Lab, name: str) -> None:
    events = builders.stream(ANSWER)
    frames = builders.frames(events, builders.FRAMINGS[name])
    delta = next(n for n, event in enumerate(events) if event.get("delta") == "你好🙂, ")
    cut = frames[delta].index("🙂".encode()) + 2
    gate = Gate()
    pieces: list[Step] = [
        *frames[:delta],
        frames[delta][:cut],
        gate,
        frames[delta][cut:],
        *frames[delta + 1 :],
    ]
    with shared_lab.post(PLAIN_REQUEST, stream(*pieces)) as exchange:
        exchange.next_event("response.content_part.added")
        assert not gate.is_open
        gate.open()
        rest = [frame.event for frame in exchange.frames()]
    assert rest == events[delta:]


@pytest.mark.parametrize("tools", [True, False], ids=["with tools", "observed"])
@pytest.mark.parametrize("members", [{"output": []}, {}], ids=["empty", "absent"])
def test_an_empty_terminal_is_filled(
    shared_lab: Lab, members: dict[str, object], *, tools: bool
) -> None:
    """Case 4."""
    events = builders.stream(ANSWER, function_call("c1", "shell", {}))
    events[-1]["response"].pop("output")
    events[-1]["response"] |= members
    got = talk(shared_lab, events, builders.request() if tools else PLAIN_REQUEST)
    assert got[-1]["response"]["output"] == [ANSWER, function_call("c1", "shell", {})]


@pytest.mark.parametrize("headers", [(), CODEX_HEADERS], ids=["sdk", "codex"])
def test_sparse_streams_reach_every_client_whole(
    shared_lab: Lab, headers: tuple[tuple[str, str], ...]
) -> None:
    items = (builders.reasoning("Hm."), function_call("c1", "shell", {}), ANSWER)
    with shared_lab.post(PLAIN_REQUEST, says(*items, sparse=True), headers=headers) as exchange:
        events = checks.received(exchange)
    assert events[-1]["response"]["output"] == list(items)
    assert not any("sequence_number" in event for event in events)


def _without(type_: str) -> list[Event]:
    return [event for event in MESSAGE if event["type"] != type_]


def _rotating(events: list[Event]) -> list[Event]:
    """Give the item another id in every event, as GitHub Copilot does."""
    changed = []
    for number, event in enumerate(events):
        if "item" in event:
            changed.append(event | {"item": event["item"] | {"id": f"rot_{number}"}})
        else:
            changed.append(event | {"item_id": f"rot_{number}"})
    return changed


def _without_members(events: list[Event], *members: str) -> list[Event]:
    return [{k: v for k, v in event.items() if k not in members} for event in events]


REPAIRED = {
    "an item that is never done": whole(_without("response.output_item.done")),
    "deltas without added": whole(_without("response.output_item.added")),
    "text in deltas only": whole([e for e in MESSAGE if e["type"].endswith("delta")]),
    "rotating ids": whole(_rotating(MESSAGE)),
    "no item ids": whole(_without_members(MESSAGE, "item_id")),
    "no output index": whole(_without_members(MESSAGE, "output_index")),
    "a gap in the indices": whole(item_events(ANSWER, 3)),
    "no part events": whole([e for e in MESSAGE if "content_part" not in e["type"]]),
    "response.done as terminal": [
        *whole(MESSAGE)[:-1],
        whole(MESSAGE)[-1] | {"type": "response.done"},
    ],
    "no in_progress": numbered([opening()[0], *MESSAGE, terminal(output=[ANSWER])]),
    "a keep-alive before created": [{"type": "keepalive"}, *whole(MESSAGE)],
    "created again": whole([opening()[0], *MESSAGE]),
    "in_progress again": whole([opening()[1], *MESSAGE]),
}


@pytest.mark.parametrize("name", sorted(REPAIRED))
def test_what_would_break_a_client_is_written_anew(shared_lab: Lab, name: str) -> None:
    events = REPAIRED[name]
    with shared_lab.post(builders.request(), streamed(events)) as exchange:
        got = [frame.event for frame in exchange.frames() if not frame.is_comment]
    assert got[0]["type"] == "response.created"
    assert checks.answer_of(got) == TEXT
    terminals = [event for event in got if event["type"] in checks.TERMINALS]
    assert terminals == got[-1:]
    done = [event["item"] for event in got if event["type"] == "response.output_item.done"]
    assert [checks.text_of(item) for item in done] == [TEXT]


@pytest.mark.parametrize("name", sorted(set(REPAIRED) - {"a gap in the indices"}))
def test_what_was_written_anew_is_well_formed(shared_lab: Lab, name: str) -> None:
    with shared_lab.post(builders.request(), streamed(REPAIRED[name])) as exchange:
        frames = [f for f in exchange.frames() if not (f.is_comment or b"keepalive" in f.raw)]
    checks.written(frames)


def test_a_lone_done_is_enough(shared_lab: Lab) -> None:
    events = talk(shared_lab, whole([item_done(ANSWER, 0)]))
    assert [event["type"] for event in events][2:-1] == ["response.output_item.done"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, None),
        ({"input_tokens": 4, "output_tokens": 2}, (4, 2, 6, 0)),
        (usage(4, 2) | {"input_tokens_details": {}, "output_tokens_details": {}}, (4, 2, 6, 0)),
        (usage(4, 2) | {"input_tokens": 4.0, "total_tokens": 6.0}, (4, 2, 6, 0)),
        (usage(4, 2) | {"input_tokens": "four"}, None),
    ],
    ids=["null", "no total", "empty details", "floats", "nonsense"],
)
def test_usage_is_complete_or_absent(
    shared_lab: Lab, given: dict[str, Any] | None, sent: tuple[int, ...] | None
) -> None:
    events = talk(shared_lab, whole(MESSAGE, usage=given))
    got = events[-1]["response"]["usage"]
    assert (got if got is None else checks.figures(got)) == sent


def test_usage_without_details_passes(shared_lab: Lab) -> None:
    given = usage(4, 2) | {"input_tokens_details": None, "output_tokens_details": None}
    assert talk(shared_lab, whole(MESSAGE, usage=given))[-1]["response"]["usage"] == given


def test_what_no_client_should_meet_is_dropped(shared_lab: Lab) -> None:
    events = whole(MESSAGE)
    frames = builders.frames(events)
    junk = b"data: [DONE]\n\n" + b"data:\n\n" + b"event: ping\n\n" + b"data: not json\n\n"
    steps = [*frames[:4], junk, *frames[4:], b"data: [DONE]\n\n", frames[-1]]
    with shared_lab.post(PLAIN_REQUEST, stream(*steps)) as exchange:
        assert checks.received(exchange) == events


def test_the_body_ends_with_the_terminal(shared_lab: Lab) -> None:
    events = builders.stream(ANSWER)
    reply = stream(builders.body(events), Stall())
    with shared_lab.post(PLAIN_REQUEST, reply) as exchange:
        assert checks.received(exchange) == events
    shared_lab.is_idle()


@pytest.mark.parametrize("status", ["failed", "incomplete"])
def test_the_providers_own_end_is_forwarded(shared_lab: Lab, status: str) -> None:
    end = (
        failed("context_length_exceeded", usage=usage(4, 2))
        if status == "failed"
        else terminal(
            status="incomplete",
            incomplete_details={"reason": "max_output_tokens"},
            usage=usage(4, 2),
            output=[ANSWER],
        )
    )
    events = numbered([*opening(), *MESSAGE, end])
    reply = stream(builders.body(events), Stall())
    with shared_lab.post(PLAIN_REQUEST, reply) as exchange:
        assert exchange.body() == builders.body(events)
    shared_lab.is_idle()


def test_usage_of_an_incomplete_turn_counts(lab: Lab) -> None:
    """Case 11."""
    end = terminal(status="incomplete", usage=usage(64, 1500), output=[ANSWER])
    events = numbered([*opening(), *MESSAGE, end])
    with lab.post(PLAIN_REQUEST, streamed(events)) as exchange:
        assert exchange.body() == builders.body(events)
    lab.proxy.reaches(64, "tokens_total", kind="input")
    lab.proxy.reaches(1500, "tokens_total", kind="output")
    lab.proxy.reaches(1, "turns_total", outcome="incomplete")
    assert len(lab.provider.requests) == 1


ERRORS: dict[str, Event] = {
    "flat": {"type": "error", "code": "server_is_overloaded", "message": "Busy.", "param": None},
    "nested": {"type": "error", "error": {"code": "server_is_overloaded", "message": "Busy."}},
}


@pytest.mark.parametrize("form", sorted(ERRORS))
def test_an_error_event_is_followed_by_the_failure_that_it_means(
    shared_lab: Lab, form: str
) -> None:
    reply = streamed(numbered([*opening(), *MESSAGE, ERRORS[form]]))
    with shared_lab.post(PLAIN_REQUEST, reply) as exchange:
        got = checks.written(exchange.frames())
    error, end = got[-2:]
    assert (error["type"], error["code"], error["message"]) == (
        "error",
        "server_is_overloaded",
        "Busy.",
    )
    assert end["type"] == "response.failed"
    assert end["response"]["error"] == {"code": "server_is_overloaded", "message": "Busy."}


def test_an_error_event_that_is_followed_by_its_failure_stays_one(shared_lab: Lab) -> None:
    end = failed("server_is_overloaded", "Busy.")
    events = numbered([*opening(), ERRORS["flat"], end])
    with shared_lab.post(PLAIN_REQUEST, streamed(events)) as exchange:
        assert exchange.body() == builders.body(events)


def test_unknown_events_and_items_pass(shared_lab: Lab) -> None:
    future = {"id": "fut_1", "type": "hologram_call", "status": "glowing", "depth": 3}
    inner: list[Event] = [
        {"type": "response.output_item.added", "output_index": 0, "item": future},
        {"type": "response.hologram_call.glow", "output_index": 0, "item_id": "fut_1", "lux": 9},
        {"type": "response.output_item.done", "output_index": 0, "item": future},
        {"type": "response.metadata", "metadata": {"k": "v"}},
    ]
    events = whole(inner, output=[future])
    with shared_lab.post(builders.request(), streamed(events)) as exchange:
        assert checks.received(exchange) == events


def test_quota_is_rebuilt_and_never_comes_first(shared_lab: Lab) -> None:
    secret = RATE_LIMITS | {"account_email": "someone@example.com"}
    events = [secret, *whole(MESSAGE)]
    with shared_lab.post(
        PLAIN_REQUEST, streamed(events, headers=[("x-codex-primary-used-percent", "12")])
    ) as exchange:
        assert exchange.headers["x-codex-primary-used-percent"] == "12"
        frames = list(exchange.frames())
    assert b"someone@" not in b"".join(frame.raw for frame in frames)
    types = [frame.event["type"] for frame in frames]
    assert types[0] == "response.created"
    assert types.count("codex.rate_limits") == 1


def test_the_answers_headers_are_those_that_mean_something(shared_lab: Lab) -> None:
    given = [
        ("x-codex-turn-state", "opaque"),
        ("x-ratelimit-remaining-requests", "9"),
        ("x-request-id", "req_1"),
        ("openai-processing-ms", "12"),
        ("x-models-etag", "abc"),
        ("set-cookie", "session=1"),
        ("x-internal", "1"),
    ]
    with shared_lab.post(
        builders.request(), streamed(builders.stream(ANSWER), headers=given)
    ) as exchange:
        checks.received(exchange)
        headers = exchange.headers
    passed = {name: value for name, value in given if name not in {"set-cookie", "x-internal"}}
    assert passed.items() <= headers.items()
    assert not {"set-cookie", "x-internal"} & headers.keys()
    assert "content-length" not in headers
    assert headers["x-sottovoce-turn"]


def test_events_of_any_size_pass(shared_lab: Lab) -> None:
    item = message("wide " * 400_000)
    events = whole([item_done(item, 0)], output=[item])
    with shared_lab.post(builders.request(), streamed(events)) as exchange:
        assert checks.received(exchange) == events
