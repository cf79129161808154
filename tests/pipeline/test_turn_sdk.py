"""The official SDK reads what we send: the strictest client there is, in process."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.lifecycle import Dialect
from tests import builders, strategies
from tests.builders import function_call, message, reasoning, recall_call, stream
from tests.playbook import run_turn

if TYPE_CHECKING:
    from openai.types.responses import ParsedResponse

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
