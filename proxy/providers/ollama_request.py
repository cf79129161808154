"""A Responses request as a request for Ollama's chat.

Ollama knows no ids of calls: a result belongs to the call at its place. So the results of a turn
go out in the order of its calls, whatever order they came in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from pipeline.errors import RequestError
from pipeline.jsontext import dumps
from proxy.providers.base import LeftOut
from proxy.providers.chat_request import chat_tool
from proxy.providers.conversation import AssistantTurn, Call, ResultTurn, Thought, UserTurn
from proxy.providers.parts import Image, Part, Text, base64_of, plain_text, refuse_part
from proxy.providers.tools import UNPARSEABLE, object_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.reader import StreamMode
    from proxy.providers.base import Json
    from proxy.providers.conversation import Conversation, Result, Turn

_CARRIED: Final = frozenset({"max_output_tokens", "temperature", "top_p"})
_LEVELS: Final[dict[str, bool | str]] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
}
"""Effort → ``think``; whatever is above is high."""


def encode_ollama(
    conversation: Conversation,
    mode: StreamMode,
    *,
    think: bool | str | None,
    keep_alive: int | str | None,
) -> bytes:
    """Return the body of the request.

    Args:
        conversation: What is asked.
        mode: In which form.
        think: What the configuration says about thinking; it knows the model, clients don't.
        keep_alive: How long the model stays loaded.

    Raises:
        RequestError: It requires what Ollama lacks.
    """
    value: Json = {"model": conversation.model, "messages": _messages(conversation)}
    if tools := _tools(conversation):
        value["tools"] = tools
    options = {
        "num_predict": conversation.number("max_output_tokens"),
        "temperature": conversation.number("temperature"),
        "top_p": conversation.number("top_p"),
    }
    effort = conversation.effort
    if think is None and effort is not None:
        think = _LEVELS.get(effort, "high")
    settings = {
        "options": {name: one for name, one in options.items() if one is not None} or None,
        "format": _format(conversation.text_format),
        "think": think,
        "keep_alive": keep_alive,
    }
    value |= {name: one for name, one in settings.items() if one is not None}
    value["stream"] = mode.flag
    _count(conversation)
    return dumps(value)


def _count(conversation: Conversation) -> None:
    body, left_out = conversation.body, conversation.left_out
    text = body.get("text")
    if isinstance(text, dict) and text.get("verbosity") is not None:
        left_out[LeftOut.VERBOSITY] += 1
    if any(tool.strict for tool in conversation.toolbox.tools):
        left_out[LeftOut.STRICT] += 1
    used = _CARRIED
    if body.get("parallel_tool_calls") is not False:
        used |= {"parallel_tool_calls"}
    conversation.count_unused(used)


def _format(form: Json) -> object:
    match form:
        case {"type": "json_schema", "schema": dict() as schema}:
            return schema
        case {"type": "json_object"}:
            return "json"
        case _:
            return None


def _tools(conversation: Conversation) -> list[Json]:
    match conversation.choice.mode:
        case "auto":
            return [chat_tool(tool, strict=False) for tool in conversation.toolbox.tools]
        case "none":
            return []
        case _:
            raise RequestError(
                "'tool_choice' forces a call, which Ollama can't promise. Choose 'auto' or 'none'."
            )


# --- Messages ---------------------------------------------------------------------------------


def _messages(conversation: Conversation) -> list[Json]:
    messages: list[Json] = []
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    asked: list[Call] = []
    for turn in conversation.turns:
        messages += _turn(turn, asked)
        if isinstance(turn, AssistantTurn):
            asked = turn.calls
    return messages


def _turn(turn: Turn, asked: list[Call]) -> list[Json]:
    match turn:
        case UserTurn(parts):
            return [_user(parts)]
        case AssistantTurn():
            return [_assistant(turn)]
        case ResultTurn(results):
            return _results(results, asked)
        case _:
            assert_never(turn)


def _user(parts: Sequence[Part]) -> Json:
    message: Json = {"role": "user", "content": plain_text(parts)}
    if images := _images(parts):
        message["images"] = images
    return message


def _assistant(turn: AssistantTurn) -> Json:
    said: list[str] = []
    calls: list[Json] = []
    for entry in turn.entries:
        match entry:
            case Text(text):
                said.append(text)
            case Call(_, name, arguments):
                value = object_of(arguments)
                said += [] if value is not None else [UNPARSEABLE]
                calls.append({"function": {"name": name, "arguments": value or {}}})
            case Thought():
                pass
            case _:
                assert_never(entry)
    message: Json = {"role": "assistant", "content": "\n".join(said)}
    if thinking := "".join(str(one.get("thinking") or "") for one in turn.thoughts):
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = calls
    return message


def _results(results: list[Result], asked: list[Call]) -> list[Json]:
    """Return a tool message each, in the order of the calls; images follow as the user's."""
    places = {call.call_id: place for place, call in enumerate(asked)}
    ordered = sorted(results, key=lambda one: places.get(one.call_id, len(places)))
    messages: list[Json] = []
    images: list[str] = []
    for result in ordered:
        message: Json = {"role": "tool", "content": plain_text(result.parts)}
        if result.name:
            message["tool_name"] = result.name
        messages.append(message)
        images += _images(result.parts)
    if images:
        said = "Images from the tools' outputs:"
        messages.append({"role": "user", "content": said, "images": images})
    return messages


def _images(parts: Sequence[Part]) -> list[str]:
    """Return the images of a content in base64.

    Raises:
        RequestError: A part is no text and no image, or the image is somewhere else.
    """
    images = []
    for part in parts:
        match part:
            case Text():
                pass
            case Image(url) if (held := base64_of(url)) is not None:
                images.append(held[1])
            case Image():
                raise refuse_part(
                    part,
                    upstream="Ollama",
                    how=" by its URL",
                    instead="Send the image itself as a data URL.",
                )
            case _:
                raise refuse_part(part, upstream="Ollama", instead="Send its text.")
    return images
