"""Holds what a client was sent to what real clients need: ``wire.md`` §2, as a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.dialect import normalize_codex_event, seed_implicit_codex_item
from pipeline.lifecycle import (
    EVENTS,
    Action,
    Checker,
    Dialect,
    Mode,
    validate_response_lifecycle,
    validate_stream_end,
)
from pipeline.response import ResponseState, apply_responses_event
from tests.builders import plain
from tests.sse import parse_stream

if TYPE_CHECKING:
    from tests.builders import Event

TERMINALS: Final = ("response.completed", "response.failed", "response.incomplete")
CLIENT_CALLS: Final = ("function_call", "custom_tool_call", "local_shell_call", "shell_call")
ADDED: Final = "response.output_item.added"
DONE: Final = "response.output_item.done"


def check_sent(data: bytes) -> list[Event]:
    """Check a whole stream that we changed; return its events.

    Foreign data that is not JSON passes by the project's own rule, so it is left out first.
    """
    assert b"\r" not in data
    assert b"\xef\xbb\xbf" not in data
    assert b"[DONE]" not in data
    named = parse_stream(data, foreign=True)
    for name, event in named:
        assert name == event["type"]
    events = [event for _, event in named]
    _check_frame(events)
    _check_numbers(events)
    _check_items(events)
    _check_terminal(events)
    check_lifecycle(events)
    return events


def check_lifecycle(events: list[Event]) -> None:
    """Run our own checker in its strictest mode for us: nothing may be missing or be mended."""
    state, check = ResponseState(), Checker(Dialect.PUBLIC, Mode.SENT, items_limit=65_535)

    def mint(prefix: str, index: int) -> str:
        raise AssertionError(f"{prefix} {index} has no id")

    for event in events:
        before = dict(event)
        assert normalize_codex_event(event, state, check, mint) == frozenset(), event
        assert event == before
        validate_response_lifecycle(event, state, check)
        assert seed_implicit_codex_item(event, state, check, mint) == []
        apply_responses_event(event, state)
    validate_stream_end(state, check)


def _check_frame(events: list[Event]) -> None:
    """One created first, one terminal last, one response id."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds.count("response.created") == 1
    assert kinds[-1] in TERMINALS
    assert not set(kinds[:-1]).intersection(TERMINALS)
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert events[0]["response"]["id"]


def _check_numbers(events: list[Event]) -> None:
    """All events of the API are numbered in turn, or none is."""
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    if numbers:
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert all("sequence_number" in event for event in events if _is_numbered(event))


def _is_numbered(event: Event) -> bool:
    spec = EVENTS.get(event["type"])
    return spec is not None and spec.action is not Action.FREE


def _check_items(events: list[Event]) -> None:
    """Indices contiguous, ids unique and steady, parts open, every added item done once."""
    ids: dict[int, str] = {}
    started: set[int] = set()
    done: set[int] = set()
    parts: set[tuple[int, int]] = set()
    for event in events:
        spec = EVENTS.get(event["type"])
        if spec is None or spec.action in (Action.RESPONSE, Action.FREE):
            continue
        index = event["output_index"]
        if event["type"] in (ADDED, DONE):
            assert index in started or index == len(started), "a gap in the indices"
            started.add(index)
            identity = event["item"].get("id") or ""
            assert ids.setdefault(index, identity) == identity
            assert (index in done) is False, "an item done twice"
            if event["type"] == DONE:
                done.add(index)
            continue
        assert index in started, "an event of an item that never began"
        if ids[index]:
            assert event.get("item_id") == ids[index]
        if event["type"] == "response.content_part.added":
            parts.add((index, event["content_index"]))
        if spec.field in ("text", "refusal"):
            assert (index, event["content_index"]) in parts
    known = [identity for identity in ids.values() if identity]
    assert len(set(known)) == len(known), "two items with one id"
    opened = {event["output_index"]: event["item"] for event in events if event["type"] == ADDED}
    for index in opened.keys() - done:
        assert events[-1]["type"] != "response.completed"
        assert opened[index]["type"] in CLIENT_CALLS, "an item that was never done"


def _check_terminal(events: list[Event]) -> None:
    """The output is what was streamed, the usage complete or none."""
    response = events[-1]["response"]
    finished = {event["output_index"]: event["item"] for event in events if event["type"] == DONE}
    streamed = [finished[index] for index in sorted(finished)]
    assert [plain(item) for item in response["output"]] == [plain(one) for one in streamed]
    check_usage(response["usage"])


def check_usage(usage: object) -> None:
    """Check that every client can read a usage."""
    if usage is None:
        return
    assert isinstance(usage, dict)
    for key in ("input_tokens", "output_tokens", "total_tokens"):
        assert type(usage[key]) is int
    assert type((usage["input_tokens_details"] or {"cached_tokens": 0})["cached_tokens"]) is int
    details = usage["output_tokens_details"] or {"reasoning_tokens": 0}
    assert type(details["reasoning_tokens"]) is int
