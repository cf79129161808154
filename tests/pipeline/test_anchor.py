"""The line that says that memory was consulted: seen by the client, never by a provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.anchor import without_anchors
from pipeline.errors import UpstreamError
from pipeline.events import ToolFinished
from pipeline.history import minted_ids, restorations
from pipeline.jsontext import loads
from pipeline.outcome import Ending
from pipeline.reader import StreamMode
from pipeline.request import input_items, read_request
from pipeline.restore import restore, without_items
from pipeline.survey import Survey
from tests import builders
from tests.builders import body, function_call, message, reasoning, recall_call, user
from tests.playbook import ID_KEY, Playbook, broken, chunk, opened, prepare, turn
from tests.sent import check_sent

if TYPE_CHECKING:
    from tests.builders import Event, Item

LINE = "Consulted memory."
CALL = recall_call("c1", {"query": "canary"})
SHELL = function_call("c2", "shell", {"command": "ls"})


def says(call_id: str = "c1") -> ToolFinished:
    return ToolFinished(call_id, "found", 0.0, anchor=LINE)


def play(*hops: list[Event], **options: Any) -> Playbook:
    """Play a turn whose hidden calls have a line."""
    script = Playbook(turn(**options))
    for hop in hops:
        script.feed(opened(), chunk(body(hop)))
        for call in sorted(script.performer.running):
            script.feed(says(call))
    return script


def words(items: list[Item]) -> list[str]:
    return [item["content"][0]["text"] for item in items if item["type"] == "message"]


def sent_next(script: Playbook, shown: list[Item]) -> list[Item]:
    """Return the input of the upstream's next request after the turn's own beginning."""
    asked = read_request(builders.compact(builders.request(user("hello"), *shown)).encode())
    asked = without_anchors(asked, ID_KEY, LINE)
    items = input_items(asked.body)
    groups = [saved.group for saved in script.performer.saved if saved.group is not None]
    survey = Survey(items, ID_KEY)
    restored = restore(asked, [*minted_ids(survey), *restorations(survey, groups)])
    assert restored.body == loads(restored.text)
    result = restored.body["input"][1:]
    assert isinstance(result, list)
    return result


@pytest.mark.parametrize("ids", [True, False])
def test_it_stands_between_the_hops_and_goes_nowhere(ids: bool) -> None:
    thought = reasoning("why")
    script = play(
        builders.stream(thought, message("let me see"), CALL),
        builders.stream(message("hi"), response_id="resp_B"),
    )
    events = check_sent(script.performer.sent)
    shown = events[-1]["response"]["output"]
    assert words(shown) == ["let me see", LINE, "hi"]
    assert b"canary" not in script.performer.sent
    assert LINE not in script.performer.requests[1].text.decode()
    if not ids:
        shown = [i if i["type"] == "reasoning" else {**i, "id": None} for i in shown]
        shown = [{k: v for k, v in i.items() if v is not None} for i in shown]
    kept = sent_next(script, shown)
    expected = [thought, message("let me see"), CALL, builders.output("c1", "found"), message("hi")]
    assert [i | {"id": 0} for i in kept] == [i | {"id": 0} for i in expected]


def test_once_a_turn() -> None:
    script = play(
        builders.stream(CALL),
        builders.stream(recall_call("c3", "{}"), response_id="resp_B"),
        builders.stream(message("hi"), response_id="resp_C"),
    )
    assert words(check_sent(script.performer.sent)[-1]["response"]["output"]) == [LINE, "hi"]


def test_in_json_too() -> None:
    script = play(
        builders.stream(message("so"), CALL),
        builders.stream(message("hi"), response_id="resp_B"),
        streamed=False,
        mode=StreamMode.SSE,
    )
    assert words(loads(script.performer.sent)["output"]) == ["so", LINE, "hi"]


def test_behind_a_call_of_the_client() -> None:
    script = play(builders.stream(CALL, SHELL))
    shown = check_sent(script.performer.sent)[-1]["response"]["output"]
    assert words(shown) == [LINE]
    results = [builders.output("c2", "files")]
    assert sent_next(script, [*shown, *results]) == [
        CALL,
        SHELL,
        builders.output("c1", "found"),
        *results,
    ]


def test_not_where_the_text_must_parse() -> None:
    script = play(
        builders.stream(CALL),
        builders.stream(message("{}"), response_id="resp_B"),
        hold_text=True,
    )
    assert words(check_sent(script.performer.sent)[-1]["response"]["output"]) == ["{}"]


def test_a_continuation_that_breaks_behind_it() -> None:
    script = play(builders.stream(CALL))
    for _ in range(4):
        script.feed(opened(), broken(UpstreamError("cut")))
    assert script.turn.outcome is not None
    assert script.turn.outcome.ending is Ending.FAILED
    assert words(check_sent(script.performer.sent)[-1]["response"]["output"]) == [LINE]


def test_what_others_say_stays() -> None:
    said: list[Item] = [
        message(LINE),
        user(LINE),
        {"role": "user", "content": LINE},
        {"role": "assistant", "content": f"{LINE} Really."},
        {"type": "reasoning", "role": "assistant", "content": LINE},
        {"role": "assistant", "content": [{"type": "output_text", "text": LINE}] * 2, "id": None},
    ]
    request, _ = prepare(builders.request(*said), tools=())
    assert without_anchors(request, ID_KEY, LINE) is request
    mine = {"role": "assistant", "content": LINE}
    request, _ = prepare(builders.request(mine, *said, mine), tools=())
    assert without_anchors(request, ID_KEY, LINE).body["input"] == said


ITEMS = st.lists(st.sampled_from([user("é"), message("hi"), {"n": 10**30}, "text", 1.0, None]))


@given(ITEMS, st.data(), st.sampled_from(["", " ", "\n  "]))
def test_items_are_taken_out_of_any_text(items: list[Any], data: st.DataObject, gap: str) -> None:
    places = st.sets(st.sampled_from(range(len(items)))) if items else st.just(set())
    gone = sorted(data.draw(places))
    inner = f"{gap},{gap}".join(builders.compact(item) for item in items)
    text = f'{{"model":"m",{gap}"input":[{gap}{inner}{gap}],"last":1}}'.encode()
    request = read_request(text)
    result = without_items(request, gone) if gone else request
    before = request.body["input"]
    assert result.body["input"] == [one for at, one in enumerate(before) if at not in gone]
    assert loads(result.text) == result.body
    if not gone:
        assert result.text == text
