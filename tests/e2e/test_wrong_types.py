"""Requests with a member of another JSON type than it should be: never an accident of ours."""

from __future__ import annotations

import copy
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import builders
from tests.builders import message
from tests.dialects import DIALECTS
from tests.e2e.client import Exchange
from tests.e2e.inprocess import InProcess
from tests.e2e.replies import says
from tests.upstreams import ScriptedProvider, answer, response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.upstreams import Received, Steps

    Place = tuple[str | int, ...]

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
ANSWER = message("hi")
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
OTHERS: list[Any] = [None, True, False, 0, 5, -1.5, 1e300, "", "x", [], [5], [[]], {}, {"a": 1}]
"""A value or two of each JSON type."""
CHAT_REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        },
        {
            "role": "assistant",
            "content": "c",
            "refusal": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "out"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "shell",
                "description": "d",
                "parameters": SCHEMA,
                "strict": False,
            },
        },
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "shell"}}],
        },
    },
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 100,
    "max_tokens": 100,
    "n": 1,
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "temperature": 1,
    "top_p": 1,
    "top_logprobs": 1,
    "logprobs": True,
    "user": "u",
    "metadata": {"k": "v"},
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    "verbosity": "low",
    "store": False,
    "seed": 1,
    "stop": None,
    "logit_bias": None,
    "prediction": None,
    "audio": None,
    "functions": None,
    "function_call": None,
    "web_search_options": None,
}
RESPONSES_REQUEST: dict[str, Any] = {
    "model": "m",
    "instructions": "i",
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "c", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "out"},
    ],
    "tools": [
        {"type": "function", "name": "shell", "description": "d", "parameters": SCHEMA},
        {
            "type": "namespace",
            "name": "n",
            "description": "d",
            "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}],
        },
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "shell"}],
    },
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 100,
    "parallel_tool_calls": True,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"verbosity": "low", "format": {"type": "text"}},
    "temperature": 1,
    "top_p": 1,
    "top_logprobs": 1,
    "truncation": "auto",
    "metadata": {"k": "v"},
    "user": "u",
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "previous_response_id": None,
    "conversation": None,
    "prompt": None,
    "background": False,
    "client_metadata": {"k": "v"},
}


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield where the values of a request stand, its own place left out."""
    if at:
        yield at
    if isinstance(value, dict):
        for name, one in value.items():
            yield from places(one, (*at, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from places(one, (*at, number))


def changed(request: dict[str, Any], at: Place, value: object) -> dict[str, Any]:
    """Return a request with another value at one place."""
    copied = copy.deepcopy(request)
    where: Any = copied
    for key in at[:-1]:
        where = where[key]
    where[at[-1]] = value
    return copied


PLACES = [
    (path, request, at)
    for path, request in ((CHAT, CHAT_REQUEST), (RESPONSES, RESPONSES_REQUEST))
    for at in places(request)
]


STREAM_OPTIONS = (CHAT, CHAT_REQUEST, ("stream_options",))


class Upstream:
    """One kind of upstream behind an application, both in this process."""

    def __init__(self, kind: str) -> None:
        self.dialect = next((one for one in DIALECTS if one.kind == kind), None)
        self.kind = kind

    def answers(self, received: Received) -> Steps:
        body = received.json()
        live = body.get("stream") is True or self.kind == "codex"
        dialect = self.dialect
        if dialect is None and received.target.endswith(b"/chat/completions"):
            dialect = next(one for one in DIALECTS if one.kind == "openai_compat")
        if dialect is None:
            if live:
                return says(ANSWER)(received)
            return answer(builders.response("resp_A", "completed", output=[ANSWER]))
        data = dialect.stream(ANSWER) if live else dialect.whole(ANSWER)
        form = dialect.form if live else "application/json"
        return response(200, data, headers=[("content-type", form)])


@pytest.fixture(
    scope="module", params=["responses", "codex", "openai_compat", "anthropic", "ollama"]
)
def application(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InProcess]:
    upstream = Upstream(request.param)
    with ExitStack() as stack:
        provider = stack.enter_context(ScriptedProvider(default=upstream.answers))
        config = f'[[upstream]]\nkind = "{upstream.kind}"\nbase_url = "{provider.url}"\n'
        config += 'api_key = "sk-ant-key"\n'
        folder = tmp_path_factory.mktemp("types") / upstream.kind
        yield stack.enter_context(InProcess(folder, None, config))


@given(case=st.sampled_from(PLACES), value=st.sampled_from(OTHERS))
@example(case=STREAM_OPTIONS, value=5)
@example(case=STREAM_OPTIONS, value="x")
@example(case=STREAM_OPTIONS, value=True)
def test_no_request_is_an_accident(
    application: InProcess, case: tuple[str, dict[str, Any], Place], value: object
) -> None:
    """It passes, or the 400 says what is wrong."""
    path, request, at = case
    body = changed(request, at, value)
    with Exchange(application.port, body, target=path) as exchange:
        data = exchange.body()
        assert exchange.status in (200, 400), data
        if exchange.status == 400:
            error = json.loads(data)["error"]
            assert error["code"] in ("invalid_request", "invalid_prompt"), data
        else:
            assert b"unexpectedly" not in data
            assert b'"response.failed"' not in data
            assert b'data: {"error"' not in data
