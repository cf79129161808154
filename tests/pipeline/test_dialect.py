"""What providers leave out, event by event: how it is mended, and what is made in front of it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dialect import DROP, WHOLE, normalize_codex_event, seed_implicit_codex_item
from pipeline.errors import ProtocolError
from pipeline.lifecycle import Checker, Dialect, Mode, Rule, validate_response_lifecycle
from pipeline.response import ResponseState, apply_responses_event
from tests import builders, strategies
from tests.builders import custom_call, function_call, message, reasoning, usage, without

if TYPE_CHECKING:
    from tests.builders import Event, Item


class Stream:
    """A stream as a hop takes it: what was mended, and what was made."""

    def __init__(self, *events: Event, dialect: Dialect = Dialect.CODEX) -> None:
        self.state = ResponseState()
        self.check = Checker(dialect, Mode.TOLERANT, items_limit=100)
        self.made: list[Event] = []
        self.changes: frozenset[str] = frozenset()
        self.event: Event = {}
        for event in (*builders.opening(), *events):
            self.take(event)

    def take(self, event: Event) -> Stream:
        self.event = event = copy.deepcopy(event)
        self.changes = normalize_codex_event(event, self.state, self.check, self.mint)
        validate_response_lifecycle(event, self.state, self.check)
        self.made = seed_implicit_codex_item(event, self.state, self.check, self.mint)
        for missing in self.made:
            apply_responses_event(missing, self.state)
        apply_responses_event(event, self.state)
        return self

    def mint(self, prefix: str, index: int) -> str:
        return f"{prefix}_minted{index}"

    @property
    def found(self) -> set[Rule]:
        return {rule for rule, _ in self.check.findings} - {Rule.SEQUENCE_MISSING}


ADDED, PART, DELTA, SETTLED, CLOSED, DONE = builders.item_events(message("hi"), 0)
OTHER = builders.item_events(message("more"), 1)
CALL = builders.item_events(function_call("c1", "shell", '{"a":1}'), 0)


# --------------------------------------------------------------------------- where it belongs


def test_an_index_is_found_by_the_items_id() -> None:
    stream = Stream(ADDED, OTHER[0]).take(without(OTHER[1], "output_index"))
    assert stream.event["output_index"] == 1
    assert stream.changes == {"output_index"}
    assert stream.found == {Rule.INDEX_MISSING}


def test_or_by_the_only_open_item_of_that_kind() -> None:
    stream = Stream(ADDED, builders.item_events(function_call("c", "s", "{}"), 1)[0])
    stream.take(without(CALL[1], "output_index", "item_id"))
    assert stream.event["output_index"] == 1
    stream.take(without(PART, "output_index", "item_id"))
    assert stream.event["output_index"] == 0


def test_or_is_the_next_free_one() -> None:
    stream = Stream(ADDED, PART, DELTA, DONE).take(without(CALL[1], "output_index", "item_id"))
    assert stream.event["output_index"] == 1
    assert [made["type"] for made in stream.made] == ["response.output_item.added"]


@pytest.mark.parametrize(
    "event", [without(PART, "output_index", "item_id"), builders.item_done(message("x"))]
)
def test_but_never_guessed(event: Event) -> None:
    with pytest.raises(ProtocolError, match="names no item and several could be meant"):
        Stream(ADDED, OTHER[0]).take(event)


def test_an_added_without_an_index_takes_the_next() -> None:
    stream = Stream(ADDED).take(without(OTHER[0], "output_index"))
    assert stream.event["output_index"] == 1
    assert stream.changes == {"output_index"}


def test_a_done_is_found_by_its_id() -> None:
    stream = Stream(ADDED, OTHER[0]).take(builders.item_done(message("more")))
    assert stream.event["output_index"] == 1


def test_events_of_an_item_without_an_id_need_none() -> None:
    new = {"type": "compaction", "status": "in_progress", "id": "cmp_1"}
    stream = Stream({"type": ADDED["type"], "output_index": 0, "item": {"type": "new"}})
    stream.take({"type": ADDED["type"], "output_index": 1, "item": new})
    stream.take({"type": "response.compaction.compacting", "output_index": 1})
    assert stream.event["item_id"] == "cmp_1"


def test_a_done_is_found_by_its_call_id() -> None:
    one, other = (function_call(f"c{n}", "shell", "{}") for n in (1, 2))
    stream = Stream(*(builders.item_events(item, n)[0] for n, item in enumerate((one, other))))
    stream.take(builders.item_done(other | {"id": "fc_new"}))
    assert stream.event["output_index"] == 1
    assert stream.event["item"]["id"] == other["id"]


def test_lone_dones_take_the_next_index() -> None:
    stream = Stream()
    for number, item in enumerate((reasoning("why"), message("hi"), function_call("c", "s", "{}"))):
        stream.take(builders.item_done(item))
        assert stream.event["output_index"] == number
        assert stream.made == []
    assert stream.found == {Rule.INDEX_MISSING, Rule.LONE_DONE, Rule.STATUS_MISSING}


# ------------------------------------------------------------------------------------- its ids


def test_an_item_without_an_id_gets_one_that_stays() -> None:
    stream = Stream().take(ADDED | {"item": without(ADDED["item"], "id")})
    assert stream.event["item"]["id"] == "msg_minted0"
    assert stream.changes == {"item"}
    assert stream.take(without(DELTA, "item_id")).event["item_id"] == "msg_minted0"
    assert stream.take(DONE).event["item"]["id"] == "msg_minted0"


def test_rotating_ids_stand_still() -> None:
    stream = Stream(ADDED, PART)
    assert stream.take(DELTA | {"item_id": "msg_2"}).event["item_id"] == message("hi")["id"]
    assert stream.changes == {"item_id"}
    stream.take(DONE | {"item": DONE["item"] | {"id": "msg_3"}})
    assert stream.event["item"]["id"] == message("hi")["id"]
    stream.take(builders.terminal(output=[message("hi") | {"id": "msg_4"}]))
    assert stream.state.output() == [message("hi")]
    assert stream.state.mended
    assert (
        sum(n for (rule, _), n in stream.check.findings.items() if rule is Rule.ITEM_ID_ROTATED)
        == 3
    )


def test_two_items_never_share_an_id() -> None:
    stream = Stream(ADDED, PART, DELTA, DONE).take(OTHER[0] | {"item": ADDED["item"]})
    assert stream.event["item"]["id"] == "msg_minted1"
    assert stream.found == {Rule.ITEM_ID_REUSED}


def test_types_that_nobody_knows_need_no_id() -> None:
    stream = Stream().take(builders.item_done({"type": "brand_new", "status": "completed"}, 0))
    assert "id" not in stream.event["item"]
    assert Rule.ITEM_ID_MISSING not in stream.found


def test_shell_commands_have_no_id_anywhere() -> None:
    call = {"id": "sh_1", "type": "shell_call", "status": "in_progress"}
    event = {"output_index": 0, "delta": "ls", "command": "ls"}
    stream = Stream({"type": ADDED["type"], "output_index": 0, "item": call})
    for kind in ("added", "delta", "done"):
        stream.take(event | {"type": f"response.shell_call_command.{kind}", "command_index": 0})
        assert "item_id" not in stream.event
    assert stream.found == set()


# ------------------------------------------------------------------------------ what is missing


@pytest.mark.parametrize(
    ("event", "kind", "prefix"),
    [
        (DELTA, "message", "msg"),
        (PART, "message", "msg"),
        (PART | {"part": {"type": "reasoning_text", "text": ""}}, "reasoning", "rs"),
        (CALL[1], "function_call", "fc"),
        (builders.item_events(custom_call("c", "p", "x"), 0)[1], "custom_tool_call", "ctc"),
        (builders.item_events(reasoning("why"), 0)[1], "reasoning", "rs"),
        (
            {"type": "response.web_search_call.searching", "output_index": 0},
            "web_search_call",
            "ws",
        ),
    ],
)
def test_an_item_begins_with_its_first_event(event: Event, kind: str, prefix: str) -> None:
    for begun, identity in ((event, event.get("item_id")), (without(event, "item_id"), None)):
        stream = Stream().take(begun)
        added = stream.made[0]
        assert added["type"] == "response.output_item.added"
        assert added["item"]["type"] == kind
        assert added["item"]["id"] == (identity or f"{prefix}_minted0") == stream.event["item_id"]
        assert stream.changes == (frozenset() if identity else {"item_id"})
        assert Rule.ADDED_MISSING in stream.found


@pytest.mark.parametrize("text", [message("hi"), builders.refusal("no")])
def test_a_part_begins_with_its_text(text: Item) -> None:
    added, part, delta, *_ = builders.item_events(text, 0)
    stream = Stream(added).take(delta)
    (made,) = stream.made
    assert made["type"] == "response.content_part.added"
    assert made["part"]["type"] == part["part"]["type"]
    assert (made["item_id"], made["content_index"]) == (delta["item_id"], 0)
    assert stream.take(delta).made == []
    assert stream.take(delta | {"content_index": 1}).made[0]["content_index"] == 1


def test_nothing_is_made_in_front_of_a_late_text() -> None:
    assert Stream(*builders.item_events(message("hi"), 0)).take(DELTA).made == []


def test_open_items_are_closed_before_the_end() -> None:
    stream = Stream(ADDED, PART, DELTA).take(builders.terminal(output=[message("hi, really")]))
    (done,) = stream.made
    assert done["item"] == message("hi, really") | {"id": message("hi")["id"]}
    assert Rule.DONE_MISSING in stream.found
    stream = Stream(ADDED, PART, DELTA).take(builders.terminal(status="incomplete"))
    assert stream.made[0]["item"]["content"][0]["text"] == "hi"
    assert stream.made[0]["item"]["status"] == "incomplete"


@pytest.mark.parametrize("end", ["incomplete", "failed"])
def test_a_call_is_not_closed_where_it_may_be_half(end: str) -> None:
    stream = Stream(*CALL[:2]).take(builders.terminal(status=end))
    assert stream.made == []


def test_a_call_is_closed_where_the_response_completed() -> None:
    stream = Stream(*CALL[:-1]).take(builders.terminal())
    assert stream.made[0]["item"] == function_call("c1", "shell", '{"a":1}')


def test_items_of_the_end_alone_are_shown() -> None:
    stream = Stream(*builders.item_events(message("hi"), 0))
    stream.take(builders.terminal(output=[message("hi"), message("more"), message("more")]))
    first, second = stream.made
    assert (first["output_index"], second["output_index"]) == (1, 2)
    assert first["item"] == message("more")
    assert second["item"] == message("more") | {"id": "msg_minted2"}


def test_a_failure_shows_no_new_items() -> None:
    assert Stream().take(builders.terminal(status="failed", output=[message("hi")])).made == []


def test_entries_that_are_no_items_are_left_alone() -> None:
    junk = [None, 5, "x", [], {}, {"type": None}, {"type": ["message"]}]
    stream = Stream(*builders.item_events(message("hi"), 0))
    assert stream.take(builders.terminal(output=[*junk, message("hi")])).made == []


@pytest.mark.parametrize("kind", ["response.in_progress", "response.completed"])
def test_a_response_begins_with_created(kind: str) -> None:
    stream = Stream()
    stream.state = ResponseState()
    event = {"type": kind, "response": builders.response("resp_A", "completed", usage=usage(1, 2))}
    created = stream.take(event).made[0]
    assert created["type"] == "response.created"
    assert created["response"]["id"] == "resp_A"
    assert created["response"]["status"] == "in_progress"
    assert created["response"]["usage"] is None


# ------------------------------------------------------------------------------------ calls


@pytest.mark.parametrize("call", [function_call("c1", "shell", "{}"), custom_call("c1", "p", "x")])
def test_a_done_is_completed_from_what_was_streamed(call: Item) -> None:
    *begun, done = builders.item_events(call, 0)
    empty = done | {"item": call | dict.fromkeys(("name", "call_id", "arguments", "input"), "")}
    empty["item"] = {key: value for key, value in empty["item"].items() if key in call}
    stream = Stream(*begun).take(empty)
    assert stream.event["item"] == call
    assert stream.changes == {"item"}


def test_a_done_is_dropped_the_second_time() -> None:
    stream = Stream(*builders.item_events(message("hi"), 0)).take(DONE)
    assert stream.changes == {DROP}
    assert stream.found == {Rule.DONE_TWICE}


# -------------------------------------------------------------------------------- the terminal


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("completed", "response.completed"),
        ("incomplete", "response.incomplete"),
        ("failed", "response.failed"),
        ("cancelled", "response.failed"),
        (None, "response.completed"),
    ],
)
def test_response_done_is_one_of_three(status: str | None, kind: str) -> None:
    end = builders.terminal(status=status or "completed")
    response = without(end["response"], "id") | {"status": status}
    stream = Stream().take({"type": "response.done", "response": response})
    assert stream.event["type"] == kind
    assert stream.event["response"]["id"] == "resp_A"
    assert stream.state.terminal == kind
    assert stream.found == {Rule.RESPONSE_DONE, Rule.RESPONSE_ID_MISSING}


def test_response_done_may_say_nothing_at_all() -> None:
    stream = Stream(ADDED, PART, DELTA, DONE).take({"type": "response.done"})
    assert stream.event["type"] == "response.completed"
    assert stream.event["response"]["id"] == "resp_A"
    assert stream.state.output() == [message("hi")]


@pytest.mark.parametrize(
    ("status", "kind"), [("incomplete", "response.incomplete"), ("failed", "response.failed")]
)
def test_a_completed_that_is_none(status: str, kind: str) -> None:
    end = builders.terminal(status=status) | {"type": "response.completed"}
    stream = Stream().take(end)
    assert stream.event["type"] == kind
    assert stream.changes == {"type"}
    assert stream.found == {Rule.TERMINAL_STATUS}


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        ({"input_tokens": 5.0, "output_tokens": 2}, usage(5, 2)),
        ({"input_tokens": 5, "output_tokens": "two"}, None),
        ({}, None),
        ("none", None),
    ],
)
def test_usage_that_no_client_reads(reported: Any, shown: Any) -> None:
    stream = Stream().take(builders.terminal(usage=reported))
    assert stream.event["response"]["usage"] == shown
    assert stream.state.usage == shown
    assert stream.changes == {"response"}


def test_nested_errors_become_flat() -> None:
    nested = {"type": "error", "error": {"type": "t", "message": "no"}, "sequence_number": 3}
    stream = Stream().take(nested)
    assert stream.event == {
        "type": "error",
        "sequence_number": 3,
        "message": "no",
        "code": "t",
        "param": None,
    }
    assert stream.changes == {WHOLE}
    assert stream.state.error == stream.event


# ---------------------------------------------------------------------------------- every habit


@given(st.data())
def test_a_habit_changes_nothing_that_is_said(data: st.DataObject) -> None:
    items = data.draw(strategies.outputs(1, recall=True, client=True, least=1))
    events = data.draw(strategies.hop_events(items))
    plain = Stream(*events[2:]).state
    mended = Stream(*data.draw(strategies.habitual(events))[1:]).state
    assert [strip(item) for item in mended.output()] == [strip(item) for item in plain.output()]
    assert mended.usage == plain.usage
    assert mended.terminal == plain.terminal


def strip(item: Item) -> Item:
    return {key: value for key, value in item.items() if key != "id"}
