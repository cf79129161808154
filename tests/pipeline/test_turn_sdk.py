"""The official SDK reads what we send: the strictest client there is, in process."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.lifecycle import Dialect
from pipeline.outcome import Ending
from tests import builders, strategies
from tests.builders import (
    custom_call,
    function_call,
    message,
    reasoning,
    recall_call,
    refusal,
    stream,
)
from tests.playbook import run_turn

if TYPE_CHECKING:
    from openai.types.responses import ParsedResponse

    from tests.builders import Event, Item
    from tests.playbook import Played
    from tests.strategies import Script


def client(body: bytes, content_type: str = "text/event-stream") -> openai.OpenAI:
    """Return an SDK client to which every request is answered with these bytes."""
    headers = {"content-type": content_type}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=body))
    return openai.OpenAI(
        api_key="none",
        base_url="http://localhost/v1",
        max_retries=0,
        http_client=httpx.Client(transport=transport),
    )


def final_response(body: bytes) -> ParsedResponse[Any]:
    """Return what ``responses.stream()`` makes of a stream, having seen every event of it."""
    with warnings.catch_warnings(), client(body) as sdk:
        warnings.simplefilter("ignore")  # of its models about item types that they don't know
        with sdk.responses.stream(model="m", input="x") as events:
            for _ in events:
                pass
            return events.get_final_response()


def kinds(body: bytes) -> list[str]:
    """Return the types of the events that ``create(stream=True)`` delivers."""
    with warnings.catch_warnings(), client(body) as sdk:
        warnings.simplefilter("ignore")
        return [event.type for event in sdk.responses.create(model="m", input="x", stream=True)]


def holds(played: Played) -> None:
    """Hold what the SDK read against what the turn says."""
    final = final_response(played.client_bytes)
    assert [item.type for item in final.output] == [
        item["type"] for item in played.response["output"]
    ]
    assert final.output_text == played.text
    assert final.id == played.response["id"]
    usage = played.response["usage"]
    assert (final.usage and final.usage.total_tokens) == (usage and usage["total_tokens"])


@given(
    st.booleans().flatmap(lambda mixed: strategies.scripts(mixed=mixed)), st.sampled_from(Dialect)
)
def test_whatever_we_changed_is_read(script: Script, dialect: Dialect) -> None:
    played = run_turn(hops=script.hops, results=script.results, dialect=dialect)
    assume(played.turn.view.client.changed)
    assume(b"no json" not in played.client_bytes)  # which passes by the project's own rule
    assume(b"\nid:" not in played.client_bytes)  # after one it takes comments for events
    holds(played)
    assert kinds(played.client_bytes) == played.kinds


@pytest.mark.parametrize("habit", sorted(strategies.HABITS))
def test_every_habit_is_read(habit: str) -> None:
    items = [reasoning("why"), message("hello"), function_call("c2", "shell", "{}")]
    events = strategies.HABITS[habit](stream(recall_call("c1", "{}"), *items))
    holds(run_turn(hops=[events], dialect=Dialect.CODEX))


HI = message("hi")
SHELL = function_call("c1", "shell", "{}")


def lacking(item: Item, kind: str, *path: str) -> list[Event]:
    """Return a stream of one item in which the events of a type lack a member."""
    events = copy.deepcopy(stream(item))
    *outer, name = path
    for event in events:
        if event["type"] == kind:
            holder = event[outer[0]] if outer else event
            del holder[name]
    return events


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("item", "kind", "path", "value"),
    [
        (HI, "response.output_item.added", ("item", "content"), []),
        (HI, "response.output_text.delta", ("content_index",), 0),
        (HI, "response.output_text.delta", ("delta",), ""),
        (HI, "response.output_text.done", ("content_index",), 0),
        (HI, "response.output_text.done", ("text",), "hi"),
        (HI, "response.content_part.added", ("content_index",), 0),
        (HI, "response.content_part.added", ("part", "text"), ""),
        (HI, "response.content_part.added", ("part", "type"), "output_text"),
        (HI, "response.content_part.done", ("content_index",), 0),
        (HI, "response.output_item.done", ("item", "content"), [{"text": "hi"}]),
        (refusal("no"), "response.refusal.delta", ("content_index",), 0),
        (refusal("no"), "response.refusal.done", ("refusal",), "no"),
        (reasoning("why"), "response.reasoning_summary_text.delta", ("summary_index",), 0),
        (reasoning("why"), "response.reasoning_summary_text.done", ("text",), "why"),
        (reasoning("why"), "response.reasoning_summary_part.added", ("summary_index",), 0),
        (reasoning("why"), "response.output_item.added", ("item", "summary"), []),
        (SHELL, "response.output_item.added", ("item", "arguments"), ""),
        (SHELL, "response.function_call_arguments.delta", ("delta",), ""),
        (SHELL, "response.function_call_arguments.done", ("arguments",), "{}"),
        (custom_call("c", "p", "x"), "response.output_item.added", ("item", "input"), ""),
        (custom_call("c", "p", "x"), "response.custom_tool_call_input.done", ("input",), "x"),
    ],
)
def test_a_member_that_clients_append_to_is_written(
    item: Item, kind: str, path: tuple[str, ...], value: object, *, declared: bool
) -> None:
    played = run_turn(hops=[lacking(item, kind, *path)], declared=declared)
    (event,) = {one["type"]: one for one in played.events if one["type"] == kind}.values()
    found = event[path[0]] if len(path) == 1 else event[path[0]][path[1]]
    if kind == "response.output_item.done":
        (part,) = found
        found = [{"text": part["text"]}]
    assert found == value
    assert final_response(played.client_bytes).output_text == played.text


def test_a_bare_delta_is_made_whole() -> None:
    bare = {"type": "response.output_text.delta", "delta": "hi"}
    first, *_, last = stream(HI, numbers=False)
    played = run_turn(hops=[[first, bare, last]], declared=False)
    (delta,) = [one for one in played.events if one["type"] == bare["type"]]
    assert delta["content_index"] == 0
    assert final_response(played.client_bytes).output_text == "hi"


def test_a_text_belongs_to_the_part_that_was_begun_last() -> None:
    two = HI | {"content": [HI["content"][0], HI["content"][0] | {"text": "you"}]}
    events = [
        {name: one for name, one in event.items() if name != "content_index"}
        for event in stream(two)
    ]
    played = run_turn(hops=[events], declared=False)
    assert [one["content_index"] for one in played.events if "content_index" in one] == [
        one["content_index"] for one in stream(two) if "content_index" in one
    ]
    assert final_response(played.client_bytes).output_text == "hiyou"


@given(st.data(), st.booleans(), st.sampled_from(Dialect))
def test_members_that_it_appends_to_are_there(
    data: st.DataObject, declared: bool, dialect: Dialect
) -> None:
    items = data.draw(strategies.outputs(1, recall=False, client=data.draw(st.booleans())))
    events = data.draw(strategies.lossy(data.draw(strategies.hop_events(items))))
    played = run_turn(hops=[events], declared=declared, dialect=dialect)
    assume(played.outcome.ending is Ending.COMPLETED)  # or it named no item at all
    final_response(played.client_bytes)


@pytest.mark.parametrize("framing", builders.FRAMINGS.values(), ids=builders.FRAMINGS)
@pytest.mark.parametrize("declared", [True, False])
def test_every_framing_is_read(framing: builders.Framing, declared: bool) -> None:
    sent = builders.body(stream(reasoning("why"), message("你好🙂")), framing)
    holds(run_turn(hops=[sent], declared=declared))


@pytest.mark.parametrize(
    "frame", [b"id: 7\n\n", b"retry: 10\n\n", b"data:\n\n", b"event: x\n\n", b"data: [DONE]\n\n"]
)
def test_frames_that_it_dies_of_are_dropped(frame: bytes) -> None:
    events = stream(message("hello"))
    sent = builders.frames(events)
    for at in (1, 4, len(sent) - 1):
        played = run_turn(hops=[b"".join([*sent[:at], frame, *sent[at:]])], declared=False)
        holds(played)
        assert played.client_bytes == b"".join(sent)


@pytest.mark.parametrize("events", [2, 5, 9])
def test_a_failure_is_delivered(events: int) -> None:
    sent = builders.body(stream(message("hello world and more"))[:events])
    played = run_turn(hops=[sent])
    assert kinds(played.client_bytes)[-1] == "response.failed"


def test_one_json_body() -> None:
    played = run_turn(
        hops=[stream(recall_call("c1", "{}")), stream(message("hi"), response_id="resp_B")],
        client="json",
    )
    with client(played.client_bytes, "application/json") as sdk:
        response = sdk.responses.create(model="m", input="x")
    assert response.output_text == "hi"
    assert response.id == "resp_A"
