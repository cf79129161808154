"""A Responses request as a request for an Anthropic message."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from pipeline.errors import RequestError
from pipeline.jsontext import dumps
from proxy.providers.base import LeftOut
from proxy.providers.conversation import AssistantTurn, Call, ResultTurn, Thought, UserTurn
from proxy.providers.parts import File, Image, Part, Text, base64_of, refuse_part
from proxy.providers.tools import UNPARSEABLE, object_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.reader import StreamMode
    from proxy.providers.base import Json
    from proxy.providers.conversation import Conversation, Result, Turn
    from proxy.providers.tools import Tool

MAX_TOKENS: Final = 4096
"""What an answer may take where the client sets no limit: the API has no default."""
_BUDGETS: Final = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 32768,
    "max": 32768,
}
"""Effort → tokens of thinking."""
_MIN_BUDGET: Final = 1024
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_CARRIED: Final = frozenset(
    {"max_output_tokens", "temperature", "top_p", "parallel_tool_calls", "user"}
    | {"safety_identifier"}
)
_CACHED: Final[Json] = {"type": "ephemeral"}
_MODEL: Final = re.compile(r"claude-(?:([a-z]+)-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_ALWAYS_THINKING: Final = ("claude-fable", "claude-mythos")
_ID: Final = re.compile(r"[^A-Za-z0-9_-]")


class _Version(NamedTuple):
    """Of a Claude model; (0, 0) for a model that is none."""

    major: int
    minor: int


_ADAPTIVE: Final = _Version(4, 6)
"""From here on a model thinks as much as it finds right, by an effort; budgets are before it."""
_NO_SAMPLING: Final = _Version(4, 7)
"""From here on temperature and top_p are refused."""


def encode_messages(conversation: Conversation, mode: StreamMode) -> bytes:
    """Return the body of the request.

    Args:
        conversation: What is asked.
        mode: In which form.

    Raises:
        RequestError: It requires what the Messages API lacks.
    """
    system, turns = conversation.system, conversation.turns
    if not turns:  # a message has to be there, and it is the user's
        system, turns = "", (UserTurn([Text(_only_text(system))]),)
    value: Json = {"model": conversation.model, "messages": _messages(turns)}
    if system:
        value["system"] = system
    value |= _tools(conversation)
    value |= _settings(conversation)
    value["stream"] = mode.flag
    return dumps(_with_cache_marks(value))


def _only_text(system: str) -> str:
    if system:
        return system
    raise RequestError("The request has no input, and the Messages API needs some. Send 'input'.")


def version_of(model: str) -> tuple[int, int]:
    """Return major and minor version of a Claude model, (0, 0) for a model that is none."""
    if any(family in model for family in _ALWAYS_THINKING):
        return _Version(5, 0)
    match = _MODEL.search(model)
    return _Version(0, 0) if match is None else _Version(int(match[2]), int(match[3] or 0))


# --- Settings ---------------------------------------------------------------------------------


def _settings(conversation: Conversation) -> Json:
    body, left_out = conversation.body, conversation.left_out
    settings = _thinking(conversation)
    settings |= _sampling(conversation, thinks="thinking" in settings)
    if (form := _output_format(conversation.text_format)) is not None:
        settings["output_config"] = {**settings.get("output_config", {}), "format": form}
    user = body.get("safety_identifier") or body.get("user")
    if isinstance(user, str):
        settings["metadata"] = {"user_id": user}
    text = body.get("text")
    if isinstance(text, dict) and text.get("verbosity") is not None:
        left_out[LeftOut.VERBOSITY] += 1
    conversation.count_unused(_CARRIED)
    return settings


def _output_format(form: Json) -> Json | None:
    match form:
        case {"type": "json_schema", "schema": dict() as schema}:
            return {"type": "json_schema", "schema": schema}
        case {"type": "json_object"}:
            raise RequestError(
                "'text.format' asks for any JSON object, which the Messages API can't promise. "
                "Send a json_schema."
            )
        case _:
            return None


def _sampling(conversation: Conversation, *, thinks: bool) -> Json:
    """Return temperature or top_p: models that think take neither, the others one of them."""
    names = [name for name in ("temperature", "top_p") if conversation.number(name) is not None]
    refused = thinks or version_of(conversation.model) >= _NO_SAMPLING
    taken = [] if refused else names[:1]
    if len(names) > len(taken):
        conversation.left_out[LeftOut.SAMPLING] += len(names) - len(taken)
    return {name: conversation.number(name) for name in taken}


def _thinking(conversation: Conversation) -> Json:
    """Return how much is thought, and the limit that includes it."""
    limit = conversation.number("max_output_tokens")
    effort = conversation.effort
    version = version_of(conversation.model)
    if effort is None or effort == "none":
        settings: Json = {"max_tokens": limit or MAX_TOKENS}
        thinks = any(family in conversation.model for family in _ALWAYS_THINKING)
        if effort == "none" and version >= (5, 0) and not thinks:
            settings["thinking"] = {"type": "disabled"}
        return settings
    budget = _BUDGETS.get(effort, _BUDGETS["medium"])
    if version >= _ADAPTIVE:
        return {"max_tokens": limit or MAX_TOKENS + budget, **_adaptive(conversation, effort)}
    if limit is not None:
        budget = min(budget, limit - _MIN_BUDGET)
    if budget < _MIN_BUDGET or _is_forced(conversation) or _thoughtless(conversation.turns):
        conversation.left_out[LeftOut.EFFORT] += 1
        return {"max_tokens": limit or MAX_TOKENS}
    thinking = {"type": "enabled", "budget_tokens": budget}
    return {"max_tokens": limit or MAX_TOKENS + budget, "thinking": thinking}


def _adaptive(conversation: Conversation, effort: str) -> Json:
    above = "xhigh" if version_of(conversation.model) >= _NO_SAMPLING else "high"
    settings: Json = {"output_config": {"effort": _EFFORTS.get(effort, above)}}
    if _is_forced(conversation):
        return settings
    reasoning = conversation.body["reasoning"]
    shown = {"display": "summarized"} if reasoning.get("summary") else {}
    return {**settings, "thinking": {"type": "adaptive", **shown}}


def _is_forced(conversation: Conversation) -> bool:
    """Whether a call is forced, which rules out thinking."""
    return conversation.choice.mode in ("required", "named")


def _thoughtless(turns: Sequence[Turn]) -> bool:
    """Whether the calls that are being answered were made without thinking.

    Thinking can't begin in the middle of a round of tools.
    """
    if not turns or not isinstance(turns[-1], ResultTurn):
        return False
    asking = next((turn for turn in reversed(turns) if isinstance(turn, AssistantTurn)), None)
    return asking is not None and not asking.thoughts


# --- Tools ------------------------------------------------------------------------------------


def _tools(conversation: Conversation) -> Json:
    tools, choice = conversation.toolbox.tools, conversation.choice
    if not tools:
        return _tools_of_the_past(conversation)
    if any(tool.strict for tool in tools):
        conversation.left_out[LeftOut.STRICT] += 1
    value: Json = {"tools": [_tool(tool) for tool in tools]}
    match choice.mode:
        case "named":
            chosen: Json = {"type": "tool", "name": choice.name}
        case "required":
            chosen = {"type": "any"}
        case mode:
            chosen = {"type": mode}
    one_by_one = conversation.body.get("parallel_tool_calls") is False
    if one_by_one and choice.mode != "none":
        chosen["disable_parallel_tool_use"] = True
    if one_by_one or conversation.body.get("tool_choice") is not None:
        value["tool_choice"] = chosen
    return value


def _tool(tool: Tool) -> Json:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.flat, **described, "input_schema": tool.parameters}


def _tools_of_the_past(conversation: Conversation) -> Json:
    """Declare what the history calls: a history with calls is refused without any tools."""
    names = {
        call.name: None
        for turn in conversation.turns
        if isinstance(turn, AssistantTurn)
        for call in turn.calls
    }
    if not names:
        return {}
    known = {tool.flat: tool for tool in conversation.known.tools}
    declared = [
        _tool(known[name])
        if name in known
        else {"name": name, "input_schema": {"type": "object", "properties": {}}}
        for name in names
    ]
    return {"tools": declared, "tool_choice": {"type": "none"}}


# --- Messages ---------------------------------------------------------------------------------


def _messages(turns: Iterable[Turn]) -> list[Json]:
    """Return the messages; turns of one role that follow each other are one message."""
    messages: list[Json] = []
    for turn in turns:
        role = "assistant" if isinstance(turn, AssistantTurn) else "user"
        blocks = _blocks(turn)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    return messages


def _blocks(turn: Turn) -> list[Json]:
    match turn:
        case UserTurn(parts):
            return [_block(part) for part in parts]
        case AssistantTurn(entries):
            return [block for entry in entries for block in _assistant_blocks(entry)]
        case ResultTurn(results):
            return [_result(result) for result in results]
        case _:
            assert_never(turn)


def _assistant_blocks(entry: Text | Thought | Call) -> list[Json]:
    match entry:
        case Text(text):
            return [{"type": "text", "text": text}]
        case Thought(replay):
            return [replay]
        case Call():
            value = object_of(entry.arguments)
            note = [] if value is not None else [{"type": "text", "text": UNPARSEABLE}]
            call = {
                "type": "tool_use",
                "id": _id(entry.call_id),
                "name": entry.name,
                "input": value or {},
            }
            return [*note, call]
        case _:
            assert_never(entry)


def _id(call_id: str) -> str:
    return _ID.sub("_", call_id)


def _result(result: Result) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": _id(result.call_id)}
    if result.parts:
        block["content"] = [_block(part) for part in result.parts]
    if result.failed:
        block["is_error"] = True
    return block


def _block(part: Part) -> Json:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(url):
            return {"type": "image", "source": _source(url)}
        case File(_, data, url) if (held := data or url) is not None:
            return {"type": "document", "source": _source(held, plain="application/pdf")}
        case _:
            raise refuse_part(
                part, upstream="the Messages API", instead="Send text, images or PDF files."
            )


def _source(url: str, *, plain: str | None = None) -> Json:
    """Return where an image or document is; ``plain`` is the type of bare base64."""
    if (held := base64_of(url)) is not None:
        return {"type": "base64", "media_type": held[0], "data": held[1]}
    if plain is not None and "://" not in url[:16]:
        return {"type": "base64", "media_type": plain, "data": url}
    return {"type": "url", "url": url}


# --- Cache ------------------------------------------------------------------------------------


def _with_cache_marks(value: Json) -> Json:
    """Mark what the next hop will send again, where tools say that there will be one.

    The API caches up to the marks and nowhere else: one stands behind tools and system text, one
    at the end.
    """
    tools, messages = value.get("tools"), value["messages"]
    if not tools or not messages:
        return value
    if isinstance(system := value.get("system"), str):
        value["system"] = [{"type": "text", "text": system, "cache_control": _CACHED}]
    else:
        tools[-1] = {**tools[-1], "cache_control": _CACHED}
    content = messages[-1]["content"]
    if content and content[-1]["type"] in ("text", "tool_result", "image", "document"):
        content[-1] = {**content[-1], "cache_control": _CACHED}
    return value
