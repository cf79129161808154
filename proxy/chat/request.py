"""A chat request as the Responses request that asks the same.

A turn is run on Responses requests, whatever its client speaks. What a chat request asks for and
Responses can't express (several choices, stop sequences, audio out …) is an
``UntranslatableError``: whoever knows an upstream that speaks chat itself can still pass it on.
What only tunes the sampling is left out.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.errors import RequestError
from pipeline.jsontext import dumps
from pipeline.request import Request, read_request
from proxy.chat.messages import Conversation, UntranslatableError, read_messages
from proxy.providers.base import LeftOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.chat.messages import Json

_SAME: Final = (
    "model",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_logprobs",
    "user",
    "metadata",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
)
"""Members of the same name and sense."""
_OF_CODEX: Final = (
    "model",
    "instructions",
    "input",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "store",
    "include",
    "prompt_cache_key",
    "text",
    "stream",
)
"""What Codex backends take: they refuse any other member."""
_USED: Final = frozenset(_SAME) | {
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "modalities",
    "n",
    "reasoning_effort",
    "logprobs",
    "response_format",
    "store",
    "stream",
    "stream_options",
    "tool_choice",
    "tools",
    "verbosity",
}
"""Members that a translation takes care of."""
_COUNTED: Final = {
    "frequency_penalty": LeftOut.SAMPLING,
    "logit_bias": LeftOut.SAMPLING,
    "max_output_tokens": LeftOut.OTHER,
    "presence_penalty": LeftOut.SAMPLING,
    "seed": LeftOut.SAMPLING,
    "stop": LeftOut.SAMPLING,
    "temperature": LeftOut.SAMPLING,
    "top_k": LeftOut.SAMPLING,
    "top_p": LeftOut.SAMPLING,
    "top_logprobs": LeftOut.LOGPROBS,
    "metadata": LeftOut.METADATA,
    "user": LeftOut.METADATA,
    "safety_identifier": LeftOut.METADATA,
    "service_tier": LeftOut.SERVICE_TIER,
    "prompt_cache_retention": LeftOut.CACHE_HINT,
}
_OF_TYPE: Final[Mapping[str, type]] = {"stream_options": dict, "tools": list}
"""Members that every turn looks into, and what they are where they are there."""
_OF_TYPE_TRANSLATED: Final[Mapping[str, type]] = {
    "logprobs": bool,
    "parallel_tool_calls": bool,
    "store": bool,
}
"""Those that a translation looks into as well."""
_TYPES: Final = {bool: "true or false", dict: "an object", list: "an array"}
_LOGPROBS: Final = "message.output_text.logprobs"
_INEXPRESSIBLE: Final = ("audio", "function_call", "functions")
"""Members whose answer has a form that a turn doesn't know."""
_REQUIRED: Final = (*_INEXPRESSIBLE, "logit_bias", "prediction", "stop", "web_search_options")
"""Members that no answer could do without, if they say anything."""
_LISTS: Final = frozenset({"functions", "logit_bias", "stop"})
"""Those of them that say nothing where they are empty."""


class Translation(NamedTuple):
    """A chat request, understood.

    Attributes:
        request: The Responses request.
        origins: For each of its input items the index of the message that it came from.
        include_usage: Whether the client wants a chunk with the usage at a stream's end.
        left_out: What the client offers and the Responses request has no place for.
        refusal: Why it can't be translated; the request then says nothing.
    """

    request: Request
    origins: tuple[int, ...]
    include_usage: bool
    left_out: Mapping[LeftOut, int]
    refusal: UntranslatableError | None = None


def read_chat_request(data: bytes) -> Request:
    """Parse the body of a chat request.

    Raises:
        RequestError: It is no JSON object with messages, or a member that every turn looks into
            is of another type.
    """
    request = read_request(data)
    messages = request.body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("'messages' is missing or no array. Send an array of messages.")
    _check(request.body, _OF_TYPE)
    return request


class Manner(StrEnum):
    """For whom a request is translated."""

    ANY = "any"
    CODEX = "codex"
    """A Codex backend, which takes fewer members."""
    CHAT = "chat"
    """An upstream that gets the client's own members all the same."""


def translate(chat: Request, manner: Manner = Manner.ANY) -> Translation:
    """Return the Responses request that asks the same as a chat request.

    Args:
        chat: The chat request.
        manner: For whom.

    Raises:
        RequestError: It can't be read.
        UntranslatableError: Responses can't express it.
    """
    body = chat.body
    if manner is not Manner.CHAT:  # such an upstream gets them as they are
        _check(body, _OF_TYPE_TRANSLATED)
    _refuse(body, _INEXPRESSIBLE if manner is Manner.CHAT else _REQUIRED)
    said = read_messages(body["messages"])
    whole = _settings(body, said) | _tools(body)
    left_out = Counter(_COUNTED.get(name, LeftOut.OTHER) for name in _unused(body))
    if manner is Manner.CODEX:
        gone = whole.keys() - frozenset(_OF_CODEX)
        left_out.update(_COUNTED.get(name, LeftOut.OTHER) for name in gone)
        whole = {name: value for name, value in whole.items() if name not in gone}
    request = Request(dumps(whole), whole)
    return Translation(request, tuple(said.origins), _wants_usage(body), left_out)


def untranslated(chat: Request, refusal: UntranslatableError) -> Translation:
    """Return what a turn is run on whose request only passes.

    Args:
        chat: The chat request.
        refusal: Why it can't be translated.
    """
    body = chat.body
    whole: Json = {"input": [], "store": False, "stream": body.get("stream") is True}
    if isinstance(model := body.get("model"), str):
        whole["model"] = model
    return Translation(Request(dumps(whole), whole), (), _wants_usage(body), {}, refusal)


def _wants_usage(body: Json) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _unused(body: Json) -> Iterable[str]:
    return (name for name, value in body.items() if value is not None and name not in _USED)


def _check(body: Json, types: Mapping[str, type]) -> None:
    """Raise for a member of another type than it has to be."""
    for name, kind in types.items():
        value = body.get(name)
        if value is not None and not isinstance(value, kind):
            wanted = _TYPES[kind]
            raise RequestError(f"'{name}' is not {wanted}. Send {wanted}, or leave it out.")


def _refuse(body: Json, names: Iterable[str]) -> None:
    """Raise for what can't be expressed."""
    named = [name for name in names if _says_something(name, body.get(name))]
    if body.get("n") not in (None, 1):
        named.append("n")
    if body.get("modalities") not in (None, ["text"]):
        named.append("modalities")
    if named:
        listed = ", ".join(f"'{name}'" for name in named)
        raise UntranslatableError(
            f"{listed} can't be translated. Leave it out, or use an upstream that speaks chat "
            "completions."
        )


def _says_something(name: str, value: object) -> bool:
    """Say whether a member asks for anything: options do by being there, a list by its entries."""
    return value is not None and not (name in _LISTS and value in ([], {}, ""))


def _settings(body: Json, said: Conversation) -> Json:
    limit = body.get("max_completion_tokens")
    known: Json = {name: body.get(name) for name in _SAME}
    known |= {
        "instructions": said.instructions,
        "max_output_tokens": body.get("max_tokens") if limit is None else limit,
        "reasoning": _member("effort", body.get("reasoning_effort")),
        "include": [_LOGPROBS] if body.get("logprobs") is True else None,
        "text": _text(body),
    }
    settings = {name: value for name, value in known.items() if value is not None}
    # Chat completions are not stored unless asked for; responses are unless told not to be.
    settings["store"] = body.get("store") is True
    settings["stream"] = body.get("stream") is True
    return settings | {"input": said.items}


def _member(name: str, value: object) -> Json | None:
    return None if value is None else {name: value}


def _text(body: Json) -> Json | None:
    text: Json = _member("verbosity", body.get("verbosity")) or {}
    match body.get("response_format"):
        case {"type": "json_schema", "json_schema": dict() as schema}:
            text["format"] = {"type": "json_schema", **schema}
        case {"type": "json_object" | "text" as kind}:
            text["format"] = {"type": kind}
        case None:
            pass
        case _:
            raise UntranslatableError(
                "'response_format' is none that is known. Send text, json_object or json_schema."
            )
    return text or None


# --- Tools ------------------------------------------------------------------------------------


def _tools(body: Json) -> Json:
    tools, choice = body.get("tools"), body.get("tool_choice")
    value: Json = {}
    if isinstance(tools, list):
        value["tools"] = [_tool(tool) for tool in tools]
    if choice is not None:
        value["tool_choice"] = choice if isinstance(choice, str) else _choice(choice)
    return value


def _tool(tool: object) -> Json:
    match tool:
        case {"type": "function", "function": {"name": str(name), **function}}:
            parameters = function.get("parameters")
            return {
                "type": "function",
                "name": name,
                **_present(function, ("description",)),
                "parameters": {"type": "object", "properties": {}}
                if parameters is None
                else parameters,
                # Without a word on it Responses makes a schema strict, chat doesn't.
                "strict": function.get("strict") is True,
            }
        case {"type": "custom", "custom": {"name": str(name), **custom}}:
            described = _present(custom, ("description",))
            return {"type": "custom", "name": name, **described, **_grammar(custom.get("format"))}
        case _:
            raise UntranslatableError(
                "'tools' has one that is neither a function nor a custom tool with a name. Send "
                "functions."
            )


def _grammar(form: Any) -> Json:
    match form:
        case {"type": "grammar", "grammar": dict() as grammar}:
            return {"format": {"type": "grammar", **grammar}}
        case dict():
            return {"format": form}
        case _:
            return {}


def _choice(choice: object) -> Json:
    match choice:
        case {"type": "allowed_tools", "allowed_tools": {"tools": list() as tools, **more}}:
            mode = more.get("mode", "auto")
            return {"type": "allowed_tools", "mode": mode, "tools": [_choice(t) for t in tools]}
        case {"type": "function" | "custom" as kind, **named}:
            match named.get(kind):
                case {"name": str(name)}:
                    return {"type": kind, "name": name}
                case _:
                    pass
        case _:
            pass
    raise RequestError(
        "'tool_choice' names no tool in a way that is known. Send none, auto, required or "
        '{"type": "function", "function": {"name": …}}.'
    )


def _present(value: Mapping[Any, Any], names: Iterable[str]) -> Json:
    return {name: value[name] for name in names if value.get(name) is not None}
