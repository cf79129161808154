"""What we send is what the official SDKs send, and what we answer is what they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import ollama
from anthropic.types import message_create_params as message_params
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pipeline.reader import StreamMode
from tests import builders
from tests.builders import function_call, output, user
from tests.dialects import ANTHROPIC, DIALECTS, OLLAMA, Dialect
from tests.proxy.providers.reading import encoded, read
from tests.proxy.providers.test_requests import OPENAI, PNG, SCHEMA
from tests.proxy.providers.test_round_trips import TOOLS, conversations
from tests.proxy.providers.test_streams import answers
from tests.typed import mismatch

if TYPE_CHECKING:
    from tests.builders import Item

EVENTS: dict[str, Any] = {
    get_args(one.model_fields["type"].annotation)[0]: one
    for one in get_args(get_args(ResponseStreamEvent)[0])
}
"""The SDK's models by the type of their event."""
RESPONSE: TypeAdapter[Any] = TypeAdapter(Response)
IMAGE = {"type": "input_image", "image_url": PNG}
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "tool_choice": st.sampled_from(["auto", "none", None]),
        "max_output_tokens": st.integers(16, 9000),
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0, 1),
        "parallel_tool_calls": st.booleans(),
        "reasoning": st.sampled_from([None, {"effort": "low"}, {"effort": "high"}]),
        "safety_identifier": st.just("me"),
        "service_tier": st.just("auto"),
        "prompt_cache_key": st.just("key"),
        "model": st.sampled_from(["gpt-5", "claude-opus-4-5", "claude-opus-5", "claude-fable-5"]),
    },
)
FORMAT = {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}
TEXTS = st.sampled_from([{}, {"text": {"format": FORMAT, "verbosity": "low"}}])
MODES = st.sampled_from(StreamMode)


@st.composite
def requests(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """Draw a request with everything that all dialects carry."""
    items: list[Item] = draw(conversations(kind)).items
    if draw(st.booleans()):
        items = [*items, {"role": "user", "content": [builders.user("x")["content"][0], IMAGE]}]
        answer = output("call_i", "") | {"output": [{"type": "input_text", "text": "a"}, IMAGE]}
        items += [function_call("call_i", "shell", "{}"), answer]
    tools = draw(st.sampled_from([None, list(TOOLS.values()), [{"type": "web_search"}]]))
    members = draw(SETTINGS)
    return builders.request(*items or [user("x")], tools=tools, **members) | draw(TEXTS)


@given(requests("anthropic"), MODES)  # whose reasoning OpenAI does not get
def test_openai(request: dict[str, Any], mode: StreamMode) -> None:
    kinds = {
        StreamMode.SSE: chat_params.CompletionCreateParamsStreaming,
        StreamMode.JSON: chat_params.CompletionCreateParamsNonStreaming,
    }
    assert mismatch(encoded(OPENAI, request, mode), kinds[mode]) is None


@given(requests("anthropic"), MODES)
def test_anthropic(request: dict[str, Any], mode: StreamMode) -> None:
    kinds = {
        StreamMode.SSE: message_params.MessageCreateParamsStreaming,
        StreamMode.JSON: message_params.MessageCreateParamsNonStreaming,
    }
    sent = encoded(ANTHROPIC, request, mode)
    for name in ("temperature", "top_p"):  # of the API's version that we speak, not of the SDK's
        sent.pop(name, None)
    assert mismatch(sent, kinds[mode]) is None
    assert sent["messages"][0]["content"]
    thinking = sent.get("thinking", {})
    assert 1024 <= thinking.get("budget_tokens", 1024) < max(sent["max_tokens"], 1025)


@given(requests("ollama"), MODES)
def test_ollama(request: dict[str, Any], mode: StreamMode) -> None:
    sent = encoded(OLLAMA, request, mode)
    kind = ollama._types.ChatRequest
    kind.model_validate(sent | {"messages": []})
    assert sent.keys() <= kind.model_fields.keys()
    assert sent.get("options", {}).keys() <= ollama.Options.model_fields.keys()
    for message in sent["messages"]:
        # In the SDK's hands an image is an object, and a text on the wire.
        images = [ollama.Image(value=image) for image in message.get("images", [])]
        held = ollama.Message.model_validate(message | {"images": images})
        assert held.model_dump()["images"] == message.get("images", [])
        assert message.keys() <= ollama.Message.model_fields.keys()
    for tool in sent.get("tools", []):
        assert ollama.Tool.model_validate(tool).function.name == tool["function"]["name"]


@given(st.sampled_from(DIALECTS), answers(), MODES)
def test_every_event_is_one_of_the_sdks(
    dialect: Dialect, items: list[Item], mode: StreamMode
) -> None:
    write = dialect.stream if mode is StreamMode.SSE else dialect.whole
    events = read(dialect, write(*items), mode=mode)
    for event in events:
        EVENTS[event["type"]].model_validate(event)
    RESPONSE.validate_python(events[-1]["response"])
