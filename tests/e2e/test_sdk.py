"""The real ``openai`` SDK against the proxy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests import builders
from tests.builders import function_call, item_events, message, numbered, opening
from tests.e2e.replies import ANSWER, ANSWERED, HIDDEN, says
from tests.upstreams import Close, Reset, answer, stream

if TYPE_CHECKING:
    from tests.e2e.conftest import Lab
    from tests.upstreams import Reply

TOOLS: Any = [builders.CLIENT_TOOL]


def whole(response: Any) -> None:  # the SDK's model of a response
    """Check a final value: complete, and without a word of the recall."""
    assert response.id == "resp_A"
    assert response.status == "completed"
    assert response.output_text == "你好🙂, it is fine."
    assert [item.id for item in response.output] == [ANSWER["id"]]
    assert [tool.name for tool in response.tools] == ["shell"]
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (250, 15, 265)
    assert usage.input_tokens_details.cached_tokens == 130
    assert "recall" not in response.to_json()
    assert "call_hidden_1" not in response.to_json()


@pytest.mark.parametrize("name", sorted(ANSWERED))
def test_create_with_stream(shared_lab: Lab, client: openai.OpenAI, name: str) -> None:
    shared_lab.provider.script(ANSWERED[name])
    with client.responses.create(model="m", input="hi", tools=TOOLS, stream=True) as events:
        got = list(events)
    assert got[0].type == "response.created"
    assert [event.type for event in got].count("response.completed") == 1
    final: Any = got[-1]
    whole(final.response)


@pytest.mark.parametrize("name", sorted(ANSWERED))
def test_the_stream_helper(shared_lab: Lab, client: openai.OpenAI, name: str) -> None:
    shared_lab.provider.script(ANSWERED[name])
    with client.responses.stream(model="m", input="hi", tools=TOOLS) as events:
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        whole(events.get_final_response())
    if "sparse" not in name:
        assert text == "你好🙂, it is fine."


JSON: dict[str, tuple[Reply, ...]] = {
    "without a recall": (
        answer(
            builders.response(
                "resp_A",
                "completed",
                echo=builders.request(),
                output=[ANSWER],
                usage=builders.usage(250, 15, cached=130),
            )
        ),
    ),
}


@pytest.mark.parametrize("name", sorted(JSON))
def test_create_in_json(shared_lab: Lab, client: openai.OpenAI, name: str) -> None:
    shared_lab.provider.script(JSON[name])
    whole(client.responses.create(model="m", input="hi", tools=TOOLS))
    assert all(request.json().get("stream") is not True for request in shared_lab.provider.requests)


def test_tool_calls_arrive(shared_lab: Lab, client: openai.OpenAI) -> None:
    call = function_call("c1", "shell", {"command": "ls"})
    shared_lab.provider.script([says(message("Running it."), call)])
    with client.responses.stream(model="m", input="hi", tools=TOOLS) as events:
        final = events.get_final_response()
    last: Any = final.output[-1]
    assert (last.name, json.loads(last.arguments)) == ("shell", {"command": "ls"})


@pytest.mark.parametrize("end", [Reset(), Close()], ids=["reset", "closed"])
def test_a_stream_that_breaks_is_no_silent_end(
    shared_lab: Lab, client: openai.OpenAI, end: Reset | Close
) -> None:
    frames = builders.frames(numbered([*opening(), *item_events(ANSWER, 0)]))
    shared_lab.provider.script([stream(*frames[:6], end)])
    with client.responses.create(model="m", input="hi", tools=TOOLS, stream=True) as events:
        got: list[Any] = list(events)
    assert got[-1].type == "response.failed"
    assert got[-1].response.error.code == "server_error"


def test_errors_have_their_class(shared_lab: Lab, client: openai.OpenAI) -> None:
    body = {"error": {"message": "Key?", "type": "t", "code": "invalid_api_key", "param": None}}
    shared_lab.provider.script([answer(body, status=401)])
    with pytest.raises(openai.AuthenticationError) as caught:
        client.responses.create(model="m", input="hi", tools=TOOLS, stream=True)
    assert caught.value.code == "invalid_api_key"


def test_text_formats_parse(shared_lab: Lab, client: openai.OpenAI) -> None:
    """Text beside a hidden call would spoil the JSON that the client asked for."""
    shared_lab.provider.script(
        [
            says(message("Let me look that up."), HIDDEN),
            says(message('{"answer":"42"}'), response_id="resp_B"),
        ]
    )
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    text: Any = {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": schema}}
    with client.responses.stream(model="m", input="hi", tools=TOOLS, text=text) as events:
        final = events.get_final_response()
    assert json.loads(final.output_text) == {"answer": "42"}


def test_models_pass_through(shared_lab: Lab, client: openai.OpenAI) -> None:
    model = {"id": "gpt-test", "object": "model", "created": 1, "owned_by": "us"}
    shared_lab.provider.script([answer({"object": "list", "data": [model]})])
    assert [found.id for found in client.models.list()] == ["gpt-test"]
