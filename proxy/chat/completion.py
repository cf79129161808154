"""What a response says, in the members of a chat completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.errors import UpstreamRefusedError
from pipeline.join import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proxy.chat.messages import Json

CALLS: Final = frozenset({"function_call", "custom_tool_call"})
"""The items that are calls of a chat message."""
SHOWN: Final = CALLS | {"message"}
"""The items that have a place in a chat message. Reasoning is told, but nobody sends it back."""
_REASONS: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}
_STATUSES: Final = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "server_is_overloaded": 503,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
}


class Fallback(NamedTuple):
    """What a completion says of itself where its upstream does not.

    Attributes:
        model: As the client asked for it.
        created_at: Unix time.
    """

    model: str
    created_at: int


def identity_of(response: Json, fallback: Fallback) -> Json:
    """Return the members that tell which completion it is, and of which model."""
    identity = str(response.get("id") or "")
    created_at, model = response.get("created_at"), response.get("model")
    known: Json = {
        "id": "chatcmpl-" + identity.removeprefix("resp_"),
        "created": _whole(created_at) or fallback.created_at,
        "model": model if isinstance(model, str) and model else fallback.model,
    }
    if isinstance(tier := response.get("service_tier"), str):
        known["service_tier"] = tier
    return known


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def usage_of(usage: Json) -> Json:
    """Return a usage in the words of chat completions."""
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens", 0)
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def usage_from(usage: Json) -> Json:
    """Return the usage of a chat completion in the words of Responses, as far as it goes."""
    prompt, completion = (
        details if isinstance(details := usage.get(name), dict) else {}
        for name in ("prompt_tokens_details", "completion_tokens_details")
    )
    known: Json = {
        "input_tokens": usage.get("prompt_tokens"),
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens") or 0},
        "output_tokens": usage.get("completion_tokens"),
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens") or 0},
        "total_tokens": usage.get("total_tokens"),
    }
    return {name: value for name, value in known.items() if value is not None}


def finish_reason(response: Json, *, calls: bool) -> str:
    """Return why a completion ended.

    Args:
        response: The last response object.
        calls: Whether the client has calls to answer.
    """
    details = response.get("incomplete_details")
    if response.get("status") == "incomplete" and isinstance(details, dict):
        return _REASONS.get(str(details.get("reason")), "length")
    return "tool_calls" if calls else "stop"


def has_calls(response: Json) -> bool:
    """Say whether a response leaves its client calls to answer."""
    output = response.get("output") or ()
    return any(isinstance(item, dict) and item.get("type") in CALLS for item in output)


def error_of(response: Json) -> Json:
    """Return the error that a failed response holds, in the shape of an error answer."""
    error = response.get("error")
    error = error if isinstance(error, dict) else {}
    return {
        "message": error.get("message") or "the provider gave no message",
        "type": "upstream_error",
        "code": error.get("code"),
        "param": None,
    }


def refused(response: Json) -> UpstreamRefusedError:
    """Return the error for an answer that failed before anything of it was seen."""
    error = error_of(response)
    code = error["code"] if isinstance(error["code"], str) else None
    return UpstreamRefusedError(
        str(error["message"]), status=_STATUSES.get(code or "", 502), code=code
    )


# --- Items ------------------------------------------------------------------------------------


def text_of(item: Json) -> str:
    """Return the text of a message."""
    return _joined(item.get("content"), "text")


def refusal_of(item: Json) -> str:
    """Return the refusal of a message, empty where there is none."""
    return _joined(item.get("content"), "refusal")


def reasoning_of(item: Json) -> str:
    """Return what reasoning tells: its summary, else its text."""
    summary = item.get("summary")
    if isinstance(summary, list) and summary:
        return SEPARATOR.join(_texts(summary, "text"))
    return _joined(item.get("content"), "text")


def _joined(parts: object, member: str) -> str:
    return "".join(_texts(parts, member))


def _texts(parts: object, member: str) -> list[str]:
    return [
        part[member]
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict) and isinstance(part.get(member), str)
    ]


def call_of(item: Json) -> Json:
    """Return a call as a message has it."""
    if item["type"] == "custom_tool_call":
        custom = {"name": item.get("name") or "", "input": item.get("input") or ""}
        return {"id": item.get("call_id") or "", "type": "custom", "custom": custom}
    function = {"name": item.get("name") or "", "arguments": item.get("arguments") or ""}
    return {"id": item.get("call_id") or "", "type": "function", "function": function}


def logprobs_of(entries: object) -> Json | None:
    """Return log probabilities as a choice has them; None where there are none."""
    if not isinstance(entries, list) or not entries:
        return None
    return {"content": [_with_bytes(entry) for entry in entries], "refusal": None}


def _with_bytes(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    top = entry.get("top_logprobs")
    alternatives = [_with_bytes(one) for one in top] if isinstance(top, list) else []
    known = {"bytes": None, **{key: one for key, one in entry.items() if key != "top_logprobs"}}
    return {**known, "top_logprobs": alternatives} if isinstance(top, list) else known


# --- The whole --------------------------------------------------------------------------------


def completion_of(response: Json, thoughts: Iterable[str], fallback: Fallback) -> Json:
    """Return the completion that a response stands for.

    Args:
        response: Not a failed one; its output are the items that the client may see.
        thoughts: What reasoning told.
        fallback: What it says of itself where the response does not.
    """
    output = [item for item in response.get("output") or () if isinstance(item, dict)]
    message, logprobs = _message_of(output)
    if told := SEPARATOR.join(filter(None, thoughts)):
        message["reasoning_content"] = told
    choice = {
        "index": 0,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(response, calls="tool_calls" in message),
    }
    whole = {"object": "chat.completion", **identity_of(response, fallback), "choices": [choice]}
    usage = response.get("usage")
    return {**whole, "usage": usage_of(usage)} if isinstance(usage, dict) else whole


def _message_of(output: Sequence[Json]) -> tuple[Json, Json | None]:
    messages = [item for item in output if item.get("type") == "message"]
    calls = [call_of(item) for item in output if item.get("type") in CALLS]
    message: Json = {
        "role": "assistant",
        "content": SEPARATOR.join(filter(None, map(text_of, messages))) or None,
        "refusal": SEPARATOR.join(filter(None, map(refusal_of, messages))) or None,
    }
    if annotations := list(_citations(messages)):
        message["annotations"] = annotations
    if calls:
        message["tool_calls"] = calls
    entries = [
        entry
        for item in messages
        for part in item.get("content") or ()
        for entry in part.get("logprobs") or ()
    ]
    return message, logprobs_of(entries)


def _citations(messages: Iterable[Json]) -> Iterable[Json]:
    for item in messages:
        for part in item.get("content") or ():
            for note in part.get("annotations") or ():
                if isinstance(note, dict) and note.get("type") == "url_citation":
                    cited = {key: value for key, value in note.items() if key != "type"}
                    yield {"type": "url_citation", "url_citation": cited}
