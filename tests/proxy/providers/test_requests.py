"""Members of a request in each dialect: carried, left out and counted, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.errors import RequestError
from pipeline.reader import StreamMode
from pipeline.request import read_request
from proxy.providers.base import LeftOut
from proxy.providers.kinds import make_provider
from proxy.providers.replay import wrap
from tests import builders
from tests.builders import compact, custom_call, function_call, message, output, user
from tests.dialects import ANTHROPIC, CHAT, DIALECTS, OLLAMA, Dialect, each_dialect
from tests.proxy.providers.reading import encoded

Body = dict[str, Any]
OPENAI = Dialect(
    "openai",
    make_provider("openai_compat", "https://api.openai.com/v1"),
    CHAT.stream,
    CHAT.whole,
    CHAT.error,
    CHAT.form,
    CHAT.heard,
)
every_dialect = pytest.mark.parametrize("dialect", [*DIALECTS, OPENAI], ids=lambda one: one.kind)
PNG = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def left_out(dialect: Dialect, **members: object) -> dict[LeftOut, int]:
    """Return what is left out of a request with these members."""
    return dict(whole(dialect, **members).left_out)


def whole(dialect: Dialect, *items: object, **members: object) -> Any:
    text = compact(asking(*items, **members))
    return dialect.provider.encode(read_request(text.encode()), StreamMode.SSE)


def asking(*items: object, **members: object) -> Body:
    """Return a request; a ``text`` is its member here, not what its user says."""
    text = members.pop("text", None)
    request = builders.request(*items, **members)
    return request if text is None else request | {"text": text}


def body(dialect: Dialect, *items: object, **members: object) -> Body:
    return encoded(dialect, asking(*items, **members))


def refused(dialect: Dialect, *items: object, **members: object) -> str:
    """Return why a request is refused, which must say what to do."""
    with pytest.raises(RequestError) as caught:
        whole(dialect, *items, **members)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
    assert caught.value.message.endswith(".")
    assert ". " in caught.value.message
    return caught.value.message


# --------------------------------------------------------------------------- path, form, flag


@pytest.mark.parametrize(
    ("dialect", "path"),
    [(CHAT, b"/chat/completions"), (ANTHROPIC, b"/v1/messages"), (OLLAMA, b"/api/chat")],
)
def test_the_flag_is_the_modes(dialect: Dialect, path: bytes) -> None:
    for stream in (True, False, None):
        asked = read_request(compact(builders.request(stream=stream)).encode())
        for mode in StreamMode:
            request = dialect.provider.encode(asked, mode)
            assert request.path == path
            assert json.loads(request.body)["stream"] is mode.flag
            assert (b"content-type", b"application/json") in request.headers


def test_usage_is_asked_for_in_a_chat_stream_only() -> None:
    assert body(CHAT)["stream_options"] == {"include_usage": True}
    asked = builders.request()
    assert "stream_options" not in encoded(CHAT, asked, StreamMode.JSON)


@every_dialect
def test_a_plain_request_leaves_nothing_out(dialect: Dialect) -> None:
    counted = left_out(dialect, include=["x"], client_metadata={"a": "b"}, tools=None)
    assert counted == {}


# ------------------------------------------------------------------------------------ refused


@each_dialect
@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"background": True}, "runs in the background"),
        ({"conversation": "conv_1"}, "continues a conversation"),
        ({"previous_response_id": "resp_1"}, "continues a response"),
        ({"prompt": {"id": "pmpt_1"}}, "uses a prompt template"),
        ({"tool_choice": {"type": "web_search"}}, "forces web_search, a hosted tool"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "forces mcp"),
        ({"tool_choice": {"type": "function", "name": "gone"}}, "names 'gone'"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "requires a call"),
        ({"tool_choice": 7}, "'tool_choice' is 7"),
        ({"model": None}, "names no model"),
    ],
)
def test_what_is_required_and_lacking_is_refused(
    dialect: Dialect, members: dict[str, object], why: str
) -> None:
    assert why in refused(dialect, **members)


@each_dialect
@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({"type": "web_search_call", "id": "ws_1"}, "an item of type 'web_search_call'"),
        ({"type": "compaction", "encrypted_content": "gAAAA"}, "an item of type 'compaction'"),
        ({"type": "compaction_trigger"}, "an item of type 'compaction_trigger'"),
        ({"type": "local_shell_call", "call_id": "c"}, "an item of type 'local_shell_call'"),
        ({"type": "item_reference", "id": "msg_1"}, "the stored item 'msg_1'"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "file id"),
        ({"role": "user", "content": [{"type": "input_video"}]}, "type 'input_video'"),
        ({"role": "user", "content": [7]}, "a part without a type"),
        ({"role": "user", "content": 7}, "neither a string nor an array"),
        ({"role": "system", "content": [{"type": "input_image", "image_url": PNG}]}, "more than"),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": PNG}]}, "text"),
        ({}, "an item without a type"),
        ("text", "an item without a type"),
    ],
)
def test_what_can_not_be_said_is_refused(dialect: Dialect, item: object, why: str) -> None:
    assert why in refused(dialect, user("hi"), item)


def test_a_forced_call_is_no_promise_of_ollama() -> None:
    for choice in ("required", {"type": "function", "name": "shell"}):
        assert "Ollama can't promise" in refused(OLLAMA, tool_choice=choice)


def test_any_json_is_no_promise_of_anthropic() -> None:
    assert "json_schema" in refused(ANTHROPIC, text={"format": {"type": "json_object"}})


def test_anthropic_needs_a_message() -> None:
    assert "has no input" in refused(ANTHROPIC, input=[], instructions=None)
    sent = body(ANTHROPIC, {"role": "developer", "content": "Begin."}, tools=None)
    assert "system" not in sent
    text = {"type": "text", "text": "Be brief.\nBegin."}
    assert sent["messages"] == [{"role": "user", "content": [text]}]


# ----------------------------------------------------------------------------------- settings


def test_limits_on_output() -> None:
    assert body(OPENAI, max_output_tokens=99)["max_completion_tokens"] == 99
    assert body(CHAT, max_output_tokens=99)["max_tokens"] == 99
    assert body(ANTHROPIC, max_output_tokens=99)["max_tokens"] == 99
    assert body(ANTHROPIC)["max_tokens"] == 4096
    assert body(OLLAMA, max_output_tokens=99)["options"] == {"num_predict": 99}


def test_structured_output() -> None:
    form = {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}
    asked = {"text": {"format": form}}
    named = {"name": "thing", "schema": SCHEMA, "strict": True}
    assert body(CHAT, **asked)["response_format"] == {"type": "json_schema", "json_schema": named}
    told = {"type": "json_schema", "schema": SCHEMA}
    assert body(ANTHROPIC, **asked)["output_config"] == {"format": told}
    assert body(OLLAMA, **asked)["format"] == SCHEMA
    anything = {"text": {"format": {"type": "json_object"}}}
    assert body(CHAT, **anything)["response_format"] == {"type": "json_object"}
    assert body(OLLAMA, **anything)["format"] == "json"
    free = {"text": {"format": {"type": "text"}}}
    for dialect, name in ((CHAT, "response_format"), (ANTHROPIC, "output_config")):
        assert name not in body(dialect, **free)
    assert "format" not in body(OLLAMA, **free)


def test_what_only_openai_takes() -> None:
    asked: dict[str, object] = {
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "safety_identifier": "me",
        "text": {"verbosity": "low"},
        "metadata": {"a": "b"},
        "top_logprobs": 2,
        "truncation": "auto",
        "max_tool_calls": 3,
    }
    sent = body(OPENAI, **asked)
    assert (sent["service_tier"], sent["prompt_cache_key"]) == ("flex", "k")
    assert (sent["safety_identifier"], sent["verbosity"]) == ("me", "low")
    everywhere = {LeftOut.METADATA: 1, LeftOut.LOGPROBS: 1, LeftOut.TRUNCATION: 1, LeftOut.OTHER: 1}
    assert left_out(OPENAI, **asked) == everywhere
    more = {LeftOut.SERVICE_TIER: 1, LeftOut.CACHE_HINT: 1, LeftOut.VERBOSITY: 1}
    assert left_out(CHAT, **asked) == everywhere | more | {LeftOut.METADATA: 2}
    strict = {LeftOut.STRICT: 1}
    assert left_out(ANTHROPIC, **asked) == everywhere | more | strict
    assert left_out(OLLAMA, **asked) == everywhere | more | strict | {LeftOut.METADATA: 2}
    assert body(ANTHROPIC, **asked)["metadata"] == {"user_id": "me"}


def test_azure_is_openai_with_a_header_of_its_own() -> None:
    azure = make_provider("openai_compat", "https://mine.openai.azure.com/openai/v1")
    asked = read_request(compact(builders.request(max_output_tokens=9)).encode())
    assert b"max_completion_tokens" in azure.encode(asked, StreamMode.SSE).body
    assert azure.credential_headers("k") == [(b"api-key", b"k")]


def test_parallel_calls() -> None:
    one = {"parallel_tool_calls": False}
    assert body(CHAT, **one)["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body(CHAT)
    assert "parallel_tool_calls" not in body(CHAT, tools=None, **one)
    assert body(ANTHROPIC, **one)["tool_choice"] == {
        "type": "auto",
        "disable_parallel_tool_use": True,
    }
    assert left_out(OLLAMA, tools=None, **one) == {LeftOut.PARALLEL_TOOL_CALLS: 1}


def test_sampling() -> None:
    both = {"temperature": 0.5, "top_p": 0.9}
    assert {k: body(CHAT, **both)[k] for k in both} == both
    assert body(OLLAMA, **both)["options"] == both
    assert "top_p" not in body(ANTHROPIC, **both)
    assert body(ANTHROPIC, **both)["temperature"] == 0.5
    assert left_out(ANTHROPIC, tools=None, **both) == {LeftOut.SAMPLING: 1}
    assert body(ANTHROPIC, top_p=0.9)["top_p"] == 0.9
    new = {"model": "claude-opus-4-7", "tools": None} | both
    assert left_out(ANTHROPIC, **new) == {LeftOut.SAMPLING: 2}


# ----------------------------------------------------------------------------------- thinking


@pytest.mark.parametrize(
    ("model", "effort", "limit", "thinking", "most"),
    [
        ("claude-sonnet-4-5-20250929", "low", None, 2048, 4096 + 2048),
        ("claude-haiku-4-5", "minimal", None, 1024, 4096 + 1024),
        ("claude-3-7-sonnet-latest", "high", 20_000, 16_384, 20_000),
        ("claude-opus-4-20250514", "high", 4000, 2976, 4000),
        ("claude-opus-4-1", "medium", 2047, None, 2047),
        ("claude-opus-4-1", "none", None, None, 4096),
        ("minimax-m2", "xhigh", None, 32_768, 4096 + 32_768),
    ],
)
def test_effort_is_a_budget_of_thinking(
    model: str, effort: str, limit: int | None, thinking: int | None, most: int
) -> None:
    asked = {"model": model, "reasoning": {"effort": effort}, "max_output_tokens": limit}
    sent = body(ANTHROPIC, **asked)
    told = None if thinking is None else {"type": "enabled", "budget_tokens": thinking}
    assert (sent.get("thinking"), sent["max_tokens"]) == (told, most)


@pytest.mark.parametrize(
    ("model", "effort", "told"),
    [
        ("claude-sonnet-4-6", "minimal", "low"),
        ("claude-opus-4-6", "xhigh", "high"),
        ("claude-opus-4.7", "xhigh", "xhigh"),
        ("claude-opus-5", "medium", "medium"),
        ("anthropic.claude-fable-5-1", "high", "high"),
        ("claude-mythos-preview", "low", "low"),
    ],
)
def test_newer_models_think_by_effort(model: str, effort: str, told: str) -> None:
    sent = body(ANTHROPIC, model=model, reasoning={"effort": effort, "summary": "auto"})
    assert sent["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert sent["output_config"] == {"effort": told}
    assert sent["max_tokens"] > 4096


def test_no_effort_is_told_to_models_that_think_by_themselves() -> None:
    none = {"reasoning": {"effort": "none"}}
    assert body(ANTHROPIC, model="claude-sonnet-5", **none)["thinking"] == {"type": "disabled"}
    for model in ("claude-fable-5", "claude-opus-4-8", "claude-3-opus-20240229"):
        assert "thinking" not in body(ANTHROPIC, model=model, **none)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "shell"}])
def test_forced_calls_rule_out_thinking(choice: object) -> None:
    asked = {"tool_choice": choice, "reasoning": {"effort": "low"}}
    sent = body(ANTHROPIC, **asked)
    assert "thinking" not in sent
    assert left_out(ANTHROPIC, **asked)[LeftOut.EFFORT] == 1
    new = body(ANTHROPIC, model="claude-opus-5", **asked)
    assert ("thinking" in new, new["output_config"]) == (False, {"effort": "low"})


def test_thinking_does_not_begin_in_the_middle_of_a_round() -> None:
    call, answer = function_call("c1", "shell", {}), output("c1", "done")
    effort = {"reasoning": {"effort": "low"}}
    assert "thinking" not in body(ANTHROPIC, user("hi"), call, answer, **effort)
    block = {"type": "thinking", "thinking": "t", "signature": "s"}
    thought = builders.reasoning("t", encrypted=wrap("anthropic", block))
    assert "thinking" in body(ANTHROPIC, user("hi"), thought, call, answer, **effort)
    assert "thinking" in body(ANTHROPIC, user("hi"), call, answer, user("next"), **effort)


@pytest.mark.parametrize(
    ("effort", "think"),
    [("none", False), ("minimal", "low"), ("medium", "medium"), ("max", "high")],
)
def test_effort_is_a_level_for_ollama(effort: str, think: object) -> None:
    assert body(OLLAMA, reasoning={"effort": effort})["think"] == think
    assert "think" not in body(OLLAMA)


def test_the_configuration_knows_the_model_of_ollama_better() -> None:
    provider = make_provider("ollama", "http://h", think=False, keep_alive="5m")
    asked = read_request(compact(builders.request(reasoning={"effort": "high"})).encode())
    sent = json.loads(provider.encode(asked, StreamMode.SSE).body)
    assert (sent["think"], sent["keep_alive"]) == (False, "5m")


def test_effort_passes_to_chat_as_it_is() -> None:
    assert body(CHAT, reasoning={"effort": "xhigh"})["reasoning_effort"] == "xhigh"


# -------------------------------------------------------------------------------- tool choice


def test_tool_choice_in_each_dialect() -> None:
    named = {"type": "function", "name": "shell"}
    told = {"type": "function", "function": {"name": "shell"}}
    assert body(CHAT, tool_choice=named)["tool_choice"] == told
    assert body(CHAT, tool_choice="required")["tool_choice"] == "required"
    assert body(CHAT, tool_choice="none")["tool_choice"] == "none"
    assert "tool_choice" not in body(CHAT, tool_choice=None)
    assert body(ANTHROPIC, tool_choice=named)["tool_choice"] == {"type": "tool", "name": "shell"}
    assert body(ANTHROPIC, tool_choice="required")["tool_choice"] == {"type": "any"}
    assert body(ANTHROPIC, tool_choice="none")["tool_choice"] == {"type": "none"}
    assert body(ANTHROPIC, tool_choice="auto")["tool_choice"] == {"type": "auto"}
    assert "tools" not in body(OLLAMA, tool_choice="none")
    assert body(OLLAMA, tool_choice="auto")["tools"]


@each_dialect
def test_allowed_tools_are_the_declared_ones(dialect: Dialect) -> None:
    lookup = builders.CLIENT_TOOL | {"name": "lookup"}
    space = {"type": "namespace", "name": "git", "tools": [lookup, builders.CLIENT_TOOL]}
    search = {"type": "tool_search", "execution": "client", "parameters": SCHEMA}
    tools = [builders.CLIENT_TOOL, lookup, space, search]

    def declared(*names: object) -> list[str]:
        choice = {"type": "allowed_tools", "mode": "auto", "tools": list(names)}
        sent = body(dialect, tools=tools, tool_choice=choice)
        return [tool.get("function", tool)["name"] for tool in sent["tools"]]

    function = {"type": "function", "name": "lookup"}
    assert declared(function, {"type": "web_search"}) == ["lookup"]
    assert declared(function | {"namespace": "git"}) == ["git__lookup"]
    assert declared({"type": "namespace", "name": "git"}) == ["git__lookup", "git__shell"]
    assert declared({"type": "tool_search"}) == ["tool_search"]


@each_dialect
def test_hosted_tools_are_left_out_and_counted(dialect: Dialect) -> None:
    hosted = [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}, {"type": "tool_search"}]
    plain = {key: one for key, one in builders.CLIENT_TOOL.items() if key != "strict"}
    request = whole(dialect, tools=[*hosted, plain])
    assert request.left_out == {LeftOut.HOSTED_TOOL: 3}
    assert len(json.loads(request.body)["tools"]) == 1


def test_anthropic_wants_tools_declared_where_the_history_has_calls() -> None:
    history = [user("hi"), function_call("c1", "recall", {"query": "x"}), output("c1", "found")]
    sent = body(ANTHROPIC, *history, tools=None, tool_choice=None)
    assert [tool["name"] for tool in sent["tools"]] == ["recall"]
    assert sent["tool_choice"] == {"type": "none"}
    only = {"type": "allowed_tools", "mode": "auto", "tools": []}
    call = [user("hi"), function_call("c1", "shell", {}), output("c1", "found")]
    sent = body(ANTHROPIC, *call, tool_choice=only)
    assert sent["tools"][0]["input_schema"] == builders.CLIENT_TOOL["parameters"]
    assert sent["tool_choice"] == {"type": "none"}


# ----------------------------------------------------------------------------------- contents


def image(url: str = PNG, **members: object) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url} | members


def test_images() -> None:
    item = {"role": "user", "content": [{"type": "input_text", "text": "what?"}, image()]}
    [_, said] = body(CHAT, item)["messages"]
    assert said["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": PNG}},
    ]
    detailed = {"role": "user", "content": [image(detail="low")]}
    [_, said] = body(CHAT, detailed)["messages"]
    assert said["content"][0]["image_url"] == {"url": PNG, "detail": "low"}
    [said] = body(ANTHROPIC, item, tools=None)["messages"]
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert said["content"][1] == {"type": "image", "source": source}
    [_, said] = body(OLLAMA, item)["messages"]
    assert (said["content"], said["images"]) == ("what?", ["iVBORw0KGgo="])


def test_images_somewhere_else() -> None:
    url = "https://h/cat.png"
    item = {"role": "user", "content": [image(url)]}
    assert body(CHAT, item)["messages"][1]["content"][0]["image_url"] == {"url": url}
    [said] = body(ANTHROPIC, item, tools=None)["messages"]
    assert said["content"][0]["source"] == {"type": "url", "url": url}
    assert "an image by its URL, which Ollama can't take" in refused(OLLAMA, item)


def test_files() -> None:
    pdf = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,J"}
    item = {"role": "user", "content": [pdf]}
    [_, said] = body(CHAT, item)["messages"]
    file = {"filename": "a.pdf", "file_data": pdf["file_data"]}
    assert said["content"] == [{"type": "file", "file": file}]
    [said] = body(ANTHROPIC, item, tools=None)["messages"]
    source = {"type": "base64", "media_type": "application/pdf", "data": "J"}
    assert said["content"] == [{"type": "document", "source": source}]
    bare = {"role": "user", "content": [pdf | {"file_data": "J"}]}
    [said] = body(ANTHROPIC, bare, tools=None)["messages"]
    assert said["content"][0]["source"] == source
    assert "a file, which Ollama can't take" in refused(OLLAMA, item)
    linked = {"role": "user", "content": [{"type": "input_file", "file_url": "https://h/a.pdf"}]}
    assert "Send its content" in refused(CHAT, linked)
    stored = {"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}
    assert body(CHAT, stored)["messages"][1]["content"][0]["file"] == {"file_id": "file_1"}
    assert "a file, which the Messages API can't take" in refused(ANTHROPIC, stored)


def test_recordings() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "U", "format": "wav"}}
    item = {"role": "user", "content": [sound]}
    assert body(CHAT, item)["messages"][1]["content"] == [sound]
    for dialect in (ANTHROPIC, OLLAMA):
        assert "a recording, which" in refused(dialect, item)


def test_images_from_tools() -> None:
    parts = [{"type": "input_text", "text": "here"}, image()]
    calls = [function_call("c1", "shell", {}), function_call("c2", "shell", {})]
    outputs = [output("c1", "") | {"output": parts}, output("c2", "done")]
    items = [user("hi"), *calls, *outputs, user("next")]
    _, _, _, one, two, shown, _ = body(CHAT, *items)["messages"]
    assert (one["tool_call_id"], one["content"]) == ("c1", "here")
    assert (two["role"], two["content"]) == ("tool", "done")
    assert shown["role"] == "user"
    assert shown["content"][1] == {"type": "image_url", "image_url": {"url": PNG}}
    _, _, results = body(ANTHROPIC, *items)["messages"]
    kinds = [block["type"] for block in results["content"]]
    assert kinds == ["tool_result", "tool_result", "text"]
    assert [part["type"] for part in results["content"][0]["content"]] == ["text", "image"]
    *_, shown, _ = body(OLLAMA, *items)["messages"]
    assert shown["images"] == ["iVBORw0KGgo="]


def test_an_image_alone_from_a_tool_still_answers_its_call() -> None:
    answer = output("c1", "") | {"output": [image()]}
    messages = body(CHAT, user("hi"), function_call("c1", "shell", {}), answer)["messages"]
    assert messages[3]["content"]
    assert messages[4]["role"] == "user"


# -------------------------------------------------------------------------- calls and results


def test_results_stand_behind_their_calls_wherever_they_came() -> None:
    calls = [function_call("c1", "shell", {}), function_call("c2", "shell", {})]
    items = [user("hi"), *calls, output("c2", "two"), user("wait"), output("c1", "one")]
    roles = [message["role"] for message in body(CHAT, *items)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    results = body(ANTHROPIC, *items)["messages"][-1]["content"]
    assert [block["type"] for block in results] == ["tool_result", "tool_result", "text"]


def test_arguments_that_are_no_object_become_an_empty_one_with_a_note() -> None:
    for arguments in ('{"command": "l', "[1]", '"ls"', "7"):
        call = function_call("c1", "shell", arguments)
        items = [user("hi"), message("Let me see."), call, output("c1", "bad arguments")]
        said = body(ANTHROPIC, *items)["messages"][1]["content"]
        assert said[1] == {"type": "text", "text": "[unparseable tool arguments]"}
        assert said[2]["input"] == {}
        said = body(OLLAMA, *items)["messages"][2]
        assert said["content"] == "Let me see.\n[unparseable tool arguments]"
        assert said["tool_calls"][0]["function"]["arguments"] == {}
        call_said = body(CHAT, *items)["messages"][2]["tool_calls"][0]
        assert call_said["function"]["arguments"] == arguments


@pytest.mark.parametrize("arguments", ["", " ", "{}"])
def test_no_arguments_are_an_empty_object_without_a_note(arguments: str) -> None:
    call = function_call("c1", "shell", arguments)
    for dialect in (ANTHROPIC, OLLAMA):
        text = compact(body(dialect, user("hi"), call, output("c1", "x")))
        assert "unparseable" not in text


def test_ids_that_anthropic_would_refuse_are_made_fit() -> None:
    call, answer = function_call("call|1.2", "shell", {}), output("call|1.2", "x")
    _, said, results = body(ANTHROPIC, user("hi"), call, answer)["messages"]
    assert said["content"][0]["id"] == results["content"][0]["tool_use_id"] == "call_1_2"


@pytest.mark.parametrize("members", [{"status": "incomplete"}, {"success": False}])
def test_failed_results_are_errors_to_anthropic(members: dict[str, object]) -> None:
    answer = output("c1", "boom") | members
    sent = body(ANTHROPIC, user("hi"), function_call("c1", "shell", {}), answer)
    assert sent["messages"][-1]["content"][0]["is_error"] is True


@each_dialect
def test_outputs_of_any_form_are_text(dialect: Dialect) -> None:
    answer = output("c1", "") | {"output": {"a": 1}}
    heard = dialect.heard(body(dialect, user("hi"), function_call("c1", "shell", {}), answer))
    assert heard.turns[-1] == ("results", [("shell", '{"a":1}')])


@each_dialect
def test_a_search_for_tools_is_a_call_and_what_it_found_is_declared(dialect: Dialect) -> None:
    search = {"type": "tool_search", "execution": "client", "parameters": SCHEMA}
    call = {"type": "tool_search_call", "call_id": "c1", "execution": "client"}
    found = {"type": "tool_search_output", "call_id": "c1", "execution": "client"}
    items = [
        user("hi"),
        call | {"arguments": {"a": 1}},
        found | {"tools": [builders.CLIENT_TOOL]},
    ]
    heard = dialect.heard(body(dialect, *items, tools=[search]))
    assert list(heard.tools) == ["tool_search", "shell"]
    assert heard.turns[1:] == [
        ("assistant", "", "", [("tool_search", {"a": 1})]),
        ("results", [("tool_search", "Tools found: shell")]),
    ]
    hosted = [one | {"execution": "server"} for one in items[1:]]
    assert whole(dialect, user("hi"), *hosted).left_out[LeftOut.HOSTED_TOOL] == 2


@each_dialect
def test_custom_calls_of_the_past_without_their_tool(dialect: Dialect) -> None:
    items = [user("hi"), custom_call("c1", "gone", "text")]
    answer = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
    heard = dialect.heard(body(dialect, *items, answer, tools=None))
    assert heard.turns[1:] == [
        ("assistant", "", "", [("gone", {"input": "text"})]),
        ("results", [("gone", "done")]),
    ]


# ---------------------------------------------------------------------------------- reasoning


@each_dialect
@pytest.mark.parametrize(
    "encrypted", [None, "gAAAA", "sottovoce.1.other.e30=", "sottovoce.2.anthropic.e30="]
)
def test_reasoning_of_another_provider_is_left_out(dialect: Dialect, encrypted: str | None) -> None:
    thought = builders.reasoning("t", encrypted=encrypted)
    request = whole(dialect, user("hi"), thought, message("hm"), tools=None)
    assert request.left_out == {LeftOut.REASONING: 1}
    heard = dialect.heard(json.loads(request.body))
    assert heard.turns[1] == ("assistant", "hm", "", [])


def test_reasoning_goes_back_in_the_field_it_came_in() -> None:
    kept = {"reasoning": "a", "reasoning_details": [{"type": "reasoning.text", "text": "a"}]}
    thoughts = [builders.reasoning("a", encrypted=wrap("openai_compat", kept)) for _ in "ab"]
    said = body(CHAT, user("hi"), *thoughts, message("hm"))["messages"][2]
    assert said["reasoning"] == "aa"
    assert said["reasoning_details"] == kept["reasoning_details"] * 2
    parts = {"content": [{"type": "thinking", "thinking": []}]}
    thought = builders.reasoning("a", encrypted=wrap("openai_compat", parts))
    said = body(CHAT, user("hi"), thought, message("hm"))["messages"][2]
    assert said["content"] == [*parts["content"], {"type": "text", "text": "hm"}]


def test_what_belongs_to_a_call_goes_back_with_it() -> None:
    extra = {"google": {"thought_signature": "sig"}}
    thought = builders.reasoning("", encrypted=wrap("openai_compat", {"calls": {"c1": extra}}))
    items = [user("hi"), thought, function_call("c1", "shell", {}), output("c1", "x")]
    said = body(CHAT, *items)["messages"][2]
    assert said["tool_calls"][0]["extra_content"] == extra
    assert set(said) == {"role", "content", "tool_calls"}


# -------------------------------------------------------------------------------------- cache


def test_anthropic_caches_up_to_the_end_where_tools_are_declared() -> None:
    sent = body(ANTHROPIC)
    mark = {"type": "ephemeral"}
    assert sent["system"] == [{"type": "text", "text": "Be brief.", "cache_control": mark}]
    assert sent["messages"][-1]["content"][-1]["cache_control"] == mark
    bare = body(ANTHROPIC, instructions=None)
    assert bare["tools"][-1]["cache_control"] == mark
    assert "cache_control" not in compact(body(ANTHROPIC, tools=None))


@each_dialect
def test_the_same_request_is_encoded_to_the_same_bytes(dialect: Dialect) -> None:
    one, other = whole(dialect), whole(dialect)
    assert one.body == other.body


@each_dialect
def test_big_numbers_and_lone_surrogates_survive(dialect: Dialect) -> None:
    text = compact(builders.request()).replace('"hello"', '"\\ud83d"')
    asked = read_request(text.encode())
    assert "\\ud83d" in dialect.provider.encode(asked, StreamMode.SSE).body.decode()
