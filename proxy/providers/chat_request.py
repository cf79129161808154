"""A Responses request as a request for a chat completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, assert_never

from pipeline.jsontext import dumps
from proxy.providers.base import LeftOut
from proxy.providers.chat_stream import DETAILS
from proxy.providers.conversation import AssistantTurn, ResultTurn, UserTurn
from proxy.providers.parts import (
    Audio,
    File,
    Image,
    Part,
    Text,
    plain_text,
    refuse_part,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.reader import StreamMode
    from proxy.providers.base import Json
    from proxy.providers.conversation import Call, Conversation, Result, Turn
    from proxy.providers.tools import Tool

_CARRIED: Final = frozenset({"max_output_tokens", "temperature", "top_p", "parallel_tool_calls"})
_CARRIED_BY_OPENAI: Final = (
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)
"""Members of the same name and sense that other upstreams may refuse."""


def encode_chat(conversation: Conversation, mode: StreamMode, *, openai: bool) -> bytes:
    """Return the body of the request.

    Args:
        conversation: What is asked.
        mode: In which form.
        openai: Whether it goes to OpenAI (or Azure) itself, which alone takes all its members.

    Raises:
        RequestError: It requires what chat completions lack.
    """
    value: Json = {"model": conversation.model, "messages": _messages(conversation)}
    value |= _tools(conversation)
    value |= _settings(conversation, openai=openai)
    value["stream"] = mode.flag
    if mode.flag:
        value["stream_options"] = {"include_usage": True}
    return dumps(value)


def _settings(conversation: Conversation, *, openai: bool) -> Json:
    body, left_out = conversation.body, conversation.left_out
    settings: Json = {
        "max_completion_tokens" if openai else "max_tokens": conversation.number(
            "max_output_tokens"
        ),
        "temperature": conversation.number("temperature"),
        "top_p": conversation.number("top_p"),
        "reasoning_effort": conversation.effort,
        "response_format": _response_format(conversation.text_format),
    }
    used = _CARRIED
    text = body.get("text")
    verbosity = text.get("verbosity") if isinstance(text, dict) else None
    if openai:
        settings |= {name: body.get(name) for name in _CARRIED_BY_OPENAI}
        settings["verbosity"] = verbosity
        used |= frozenset(_CARRIED_BY_OPENAI)
    elif verbosity is not None:
        left_out[LeftOut.VERBOSITY] += 1
    conversation.count_unused(used)
    return {name: value for name, value in settings.items() if value is not None}


def _response_format(form: Json) -> Json | None:
    match form.get("type"):
        case "json_schema":
            named = {key: value for key, value in form.items() if key != "type"}
            return {"type": "json_schema", "json_schema": {"name": "answer", **named}}
        case "json_object":
            return {"type": "json_object"}
        case _:
            return None


# --- Tools ------------------------------------------------------------------------------------


def _tools(conversation: Conversation) -> Json:
    tools, choice = conversation.toolbox.tools, conversation.choice
    if not tools:
        return {}
    value: Json = {"tools": [chat_tool(tool) for tool in tools]}
    if choice.mode == "named":
        value["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif conversation.body.get("tool_choice") is not None:
        value["tool_choice"] = choice.mode
    if conversation.body.get("parallel_tool_calls") is False:
        value["parallel_tool_calls"] = False
    return value


def chat_tool(tool: Tool, *, strict: bool = True) -> Json:
    """Return a tool as chat completions, and Ollama, declare it.

    Args:
        tool: The tool.
        strict: Whether the dialect knows strict arguments.
    """
    function: Json = {"name": tool.flat}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters
    if strict and tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


# --- Messages ---------------------------------------------------------------------------------


def _messages(conversation: Conversation) -> list[Json]:
    messages: list[Json] = []
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    for turn in conversation.turns:
        messages += _turn(turn)
    return messages


def _turn(turn: Turn) -> list[Json]:
    match turn:
        case UserTurn(parts):
            return [{"role": "user", "content": _content(parts)}]
        case AssistantTurn():
            return [_assistant(turn)]
        case ResultTurn(results):
            return _results(results)
        case _:
            assert_never(turn)


def _content(parts: Sequence[Part]) -> str | list[Json]:
    """Return a content: a string where text is all there is, which every upstream takes."""
    if all(isinstance(part, Text) for part in parts):
        return plain_text(parts)
    return [_part(part) for part in parts]


def _part(part: Part) -> Json:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(url, detail):
            kept = {"detail": detail} if detail in ("auto", "low", "high") else {}
            return {"type": "image_url", "image_url": {"url": url, **kept}}
        case Audio(data, form):
            return {"type": "input_audio", "input_audio": {"data": data, "format": form}}
        case File(name, data, _, identity) if data is not None or identity is not None:
            known = {"filename": name, "file_data": data, "file_id": identity}
            return {"type": "file", "file": {k: v for k, v in known.items() if v is not None}}
        case File():
            raise refuse_part(
                part, upstream="a chat completion", instead="Send its content as file_data."
            )
        case _:
            assert_never(part)


def _assistant(turn: AssistantTurn) -> Json:
    replayed, extras = _replayed(turn.thoughts)
    message: Json = {"role": "assistant", "content": turn.text or None, **replayed}
    if isinstance(content := replayed.get("content"), list):
        said = [{"type": "text", "text": turn.text}] if turn.text else []
        message["content"] = [*content, *said]
    if calls := turn.calls:
        message["tool_calls"] = [_call(call, extras) for call in calls]
    return message


def _replayed(thoughts: list[Json]) -> tuple[Json, Json]:
    """Return reasoning in the fields in which it came, and what belongs to calls, by call id."""
    fields: dict[str, Any] = {}
    extras: Json = {}
    for thought in thoughts:
        for name, value in thought.items():
            if name == "calls" and isinstance(value, dict):
                extras |= value
            elif name in (DETAILS, "content") and isinstance(value, list):
                fields[name] = [*fields.get(name, []), *value]
            elif isinstance(value, str):
                fields[name] = fields.get(name, "") + value
    return fields, extras


def _call(call: Call, extras: Json) -> Json:
    value: Json = {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    if (extra := extras.get(call.call_id)) is not None:
        value["extra_content"] = extra
    return value


def _results(results: list[Result]) -> list[Json]:
    """Return a tool message each; what is no text follows as the user's, after all of them."""
    messages: list[Json] = []
    shown: list[Part] = []
    for result in results:
        text = plain_text(result.parts)
        more = [part for part in result.parts if not isinstance(part, Text)]
        if more:
            shown += [Text(f"Output of tool call {result.call_id}:"), *more]
            text = text or "The output follows in the next message."
        messages.append({"role": "tool", "tool_call_id": result.call_id, "content": text})
    if shown:
        messages.append({"role": "user", "content": _content(shown)})
    return messages
