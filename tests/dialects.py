"""What upstreams that don't speak Responses say and hear, in their own words. Pure.

Answers are made of the items that they stand for (``tests.builders``), so that a test can compare
what comes out with what went in::

    dialect.stream(message("hi"), function_call("c1", "shell", {"command": "ls"}))

Requests are read back into turns (``heard``), without any code of the project.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.reader import StreamMode
from proxy.providers.kinds import make_provider
from tests import builders
from tests.builders import compact, pieces
from tests.playbook import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.providers.base import Provider
    from tests.builders import Item


def usage(input_tokens: int, output_tokens: int, *, written: int = 0, **details: int) -> Any:
    """Return a usage as translated answers have it."""
    told = builders.usage(input_tokens, output_tokens, **details)
    told["input_tokens_details"]["cache_write_tokens"] = written
    return told


USAGE: Final = usage(12, 3)
ANTHROPIC_ID: Final = "msg_01"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of upstream.

    Attributes:
        kind: As the configuration calls it.
        provider: What translates for it.
        stream: Items → the body of a streamed answer.
        whole: Items → the body of a JSON answer.
        error: Message → an error as it comes in the middle of a stream.
        form: Content type of a stream.
        heard: A request's body, understood.
    """

    kind: str
    provider: Provider
    stream: Callable[..., bytes]
    whole: Callable[..., bytes]
    error: Callable[[str, str], bytes]
    form: str
    heard: Callable[[dict[str, Any]], Heard]

    def answer(self, *items: Item, mode: StreamMode = StreamMode.SSE, **options: Any) -> Answer:
        """Return an answer to one hop."""
        if mode is StreamMode.JSON:
            return Answer(self.whole(*items, **options), content_type="application/json")
        return Answer(self.stream(*items, **options), content_type=self.form)


@dataclass(slots=True)
class Heard:
    """A request as its upstream understands it."""

    system: str = ""
    turns: list[tuple[Any, ...]] = field(default_factory=list)
    """``("user", texts)``, ``("assistant", text, thoughts, calls)`` with calls as name and
    arguments, ``("results", [(name of the call, text)])``."""
    tools: dict[str, Any] = field(default_factory=dict)
    """Name → schema."""
    choice: Any = None


def text_of(item: Item) -> str:
    return "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])


def summary_of(item: Item) -> str:
    return "".join(part["text"] for part in item["summary"])


def sse(*values: object, named: bool = False) -> bytes:
    """Write events; ``named`` ones with the type as their event line."""
    frames = []
    for value in values:
        data = value if isinstance(value, str) else compact(value)
        name = f"event: {value['type']}\n" if named and isinstance(value, dict) else ""
        frames.append(f"{name}data: {data}\n\n")
    return "".join(frames).encode("utf-8", "surrogatepass")


def lines(*values: object) -> bytes:
    """Write JSON lines."""
    return "".join(f"{compact(value)}\n" for value in values).encode("utf-8", "surrogatepass")


# ------------------------------------------------------------------------------------- chat


def chat_chunk(
    delta: dict[str, Any] | None = None,
    *,
    reason: str | None = None,
    identity: str = "chatcmpl-1",
    **members: object,
) -> dict[str, Any]:
    """Return a chunk; without a delta one without choices."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    return {
        "id": identity,
        "object": "chat.completion.chunk",
        "created": builders.CREATED_AT,
        "model": "chat-test",
        "choices": choices,
    } | members


def chat_usage(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": usage["input_tokens_details"],
        "completion_tokens_details": usage["output_tokens_details"],
    }


def chat_call(item: Item, index: int, arguments: str) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": arguments}
    return {"index": index, "id": item["call_id"], "type": "function", "function": function}


def chat_stream(
    *items: Item,
    usage: dict[str, Any] | None = USAGE,
    reason: str | None = None,
    identity: str = "chatcmpl-1",
) -> bytes:
    """Stream a completion as OpenAI does."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    calls = 0
    for item in items:
        match item["type"]:
            case "message":
                key = "refusal" if item["content"][0]["type"] == "refusal" else "content"
                deltas += [{key: piece} for piece in pieces(text_of(item))]
            case "reasoning":
                deltas += [{"reasoning_content": piece} for piece in pieces(summary_of(item))]
            case "function_call":
                deltas.append({"tool_calls": [chat_call(item, calls, "")]})
                deltas += [
                    {"tool_calls": [{"index": calls, "function": {"arguments": piece}}]}
                    for piece in pieces(item["arguments"])
                ]
                calls += 1
    chunks: list[object] = [chat_chunk(delta, identity=identity) for delta in deltas]
    chunks.append(
        chat_chunk({}, reason=reason or ("tool_calls" if calls else "stop"), identity=identity)
    )
    if usage is not None:
        chunks.append(chat_chunk(identity=identity, usage=chat_usage(usage)))
    return sse(*chunks, "[DONE]")


def chat_whole(
    *items: Item,
    usage: dict[str, Any] | None = USAGE,
    reason: str | None = None,
    identity: str = "chatcmpl-1",
) -> bytes:
    """Return a completion as one body."""
    said: dict[str, Any] = {"role": "assistant", "content": None}
    calls = []
    for item in items:
        match item["type"]:
            case "message":
                key = "refusal" if item["content"][0]["type"] == "refusal" else "content"
                said[key] = (said.get(key) or "") + text_of(item)
            case "reasoning":
                said["reasoning_content"] = said.get("reasoning_content", "") + summary_of(item)
            case "function_call":
                calls.append(chat_call(item, len(calls), item["arguments"]))
    if calls:
        said["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
    choice = {
        "index": 0,
        "message": said,
        "finish_reason": reason or ("tool_calls" if calls else "stop"),
    }
    value = {
        "id": identity,
        "object": "chat.completion",
        "created": builders.CREATED_AT,
        "model": "chat-test",
        "choices": [choice],
    }
    return compact(value | ({} if usage is None else {"usage": chat_usage(usage)})).encode(
        "utf-8", "surrogatepass"
    )


def chat_error(code: str, text: str) -> bytes:
    return sse({"error": {"message": text, "type": code, "code": code}})


def heard_chat(body: dict[str, Any]) -> Heard:
    heard = Heard(choice=body.get("tool_choice"))
    names: dict[str, str] = {}
    for message in body["messages"]:
        match message["role"]:
            case "system":
                heard.system = message["content"]
            case "user":
                heard.turns.append(("user", _texts(message["content"])))
            case "assistant":
                calls = message.get("tool_calls", [])
                names |= {call["id"]: call["function"]["name"] for call in calls}
                asked = [
                    (call["function"]["name"], _value(call["function"]["arguments"]))
                    for call in calls
                ]
                thoughts = message.get("reasoning_content", "")
                heard.turns.append(("assistant", message["content"] or "", thoughts, asked))
            case "tool":
                _add_result(heard, names[message["tool_call_id"]], message["content"])
    for tool in body.get("tools", []):
        heard.tools[tool["function"]["name"]] = tool["function"]["parameters"]
    return heard


# --------------------------------------------------------------------------------- anthropic


def anthropic_usage(usage: dict[str, Any]) -> dict[str, Any]:
    cached = usage["input_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["input_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage["output_tokens"],
    }


def anthropic_start(
    usage: dict[str, Any] | None = USAGE, identity: str = ANTHROPIC_ID
) -> dict[str, Any]:
    counted = anthropic_usage(usage or USAGE) | {"output_tokens": 1}
    return {
        "type": "message_start",
        "message": {
            "id": identity,
            "type": "message",
            "role": "assistant",
            "model": "claude-test",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": counted if usage is not None else {},
        },
    }


def anthropic_end(reason: str, usage: dict[str, Any] | None = USAGE) -> list[dict[str, Any]]:
    counted = {} if usage is None else {"output_tokens": usage["output_tokens"]}
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [
        {"type": "message_delta", "delta": delta, "usage": counted},
        {"type": "message_stop"},
    ]


def _anthropic_block(item: Item) -> dict[str, Any]:
    match item["type"]:
        case "reasoning" if not summary_of(item):
            return {"type": "redacted_thinking", "data": "gAAAA"}
        case "reasoning":
            return {"type": "thinking", "thinking": summary_of(item), "signature": "sig=="}
        case "function_call":
            value = _value(item["arguments"])
            return {
                "type": "tool_use",
                "id": item["call_id"],
                "name": item["name"],
                "input": value if isinstance(value, dict) else {},
            }
    return {"type": "text", "text": text_of(item)}


def anthropic_block(item: Item, index: int) -> list[dict[str, Any]]:
    """Return the events of one block."""
    block = _anthropic_block(item)
    deltas: list[dict[str, Any]] = []
    match block:
        case {"type": "thinking"}:
            deltas = [{"type": "thinking_delta", "thinking": p} for p in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            block = block | {"thinking": "", "signature": ""}
        case {"type": "tool_use"}:
            parts = ["", *pieces(item["arguments"])]
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in parts]
            block = block | {"input": {}}
        case {"type": "text"}:
            deltas = [{"type": "text_delta", "text": p} for p in pieces(block["text"])]
            block = block | {"text": ""}
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def anthropic_stream(
    *items: Item,
    usage: dict[str, Any] | None = USAGE,
    reason: str | None = None,
    identity: str = ANTHROPIC_ID,
) -> bytes:
    """Stream a message."""
    events = [anthropic_start(usage, identity)]
    for index, item in enumerate(items):
        events += anthropic_block(item, index)
    calls = any(item["type"] == "function_call" for item in items)
    events += anthropic_end(reason or ("tool_use" if calls else "end_turn"), usage)
    return sse(*events, named=True)


def anthropic_whole(
    *items: Item,
    usage: dict[str, Any] | None = USAGE,
    reason: str | None = None,
    identity: str = ANTHROPIC_ID,
) -> bytes:
    """Return a message as one body."""
    calls = any(item["type"] == "function_call" for item in items)
    message = anthropic_start(usage, identity)["message"] | {
        "content": [_anthropic_block(item) for item in items],
        "stop_reason": reason or ("tool_use" if calls else "end_turn"),
        "usage": {} if usage is None else anthropic_usage(usage),
    }
    return compact(message).encode("utf-8", "surrogatepass")


def anthropic_error(code: str, text: str) -> bytes:
    return sse({"type": "error", "error": {"type": code, "message": text}}, named=True)


def heard_anthropic(body: dict[str, Any]) -> Heard:
    heard = Heard(choice=body.get("tool_choice"))
    system = body.get("system", "")
    heard.system = system if isinstance(system, str) else "\n".join(b["text"] for b in system)
    names: dict[str, str] = {}
    for message in body["messages"]:
        blocks = message["content"]
        if message["role"] == "assistant":
            calls = [block for block in blocks if block["type"] == "tool_use"]
            names |= {block["id"]: block["name"] for block in calls}
            texts = [block["text"] for block in blocks if block["type"] == "text"]
            thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
            asked = [(block["name"], block["input"]) for block in calls]
            heard.turns.append(("assistant", "\n".join(texts), "".join(thoughts), asked))
            continue
        for block in blocks:
            if block["type"] == "tool_result":
                texts = [part["text"] for part in block.get("content", [])]
                _add_result(heard, names[block["tool_use_id"]], "\n".join(texts))
        if texts := [block["text"] for block in blocks if block["type"] == "text"]:
            heard.turns.append(("user", texts))
    heard.tools = {tool["name"]: tool["input_schema"] for tool in body.get("tools", [])}
    return heard


# ------------------------------------------------------------------------------------ ollama


def ollama_line(message: dict[str, Any], **members: object) -> dict[str, Any]:
    return {
        "model": "ollama-test",
        "created_at": "2026-09-21T12:00:00.123456789Z",
        "message": {"role": "assistant", "content": ""} | message,
        "done": False,
    } | members


def ollama_end(
    usage: dict[str, Any] | None = USAGE, reason: str = "stop", **message: object
) -> dict[str, Any]:
    counted = (
        {}
        if usage is None
        else {"prompt_eval_count": usage["input_tokens"], "eval_count": usage["output_tokens"]}
    )
    return ollama_line(dict(message), done=True, done_reason=reason, **counted)


def _ollama_call(item: Item) -> dict[str, Any]:
    return {"function": {"name": item["name"], "arguments": _value(item["arguments"])}}


def ollama_stream(
    *items: Item,
    usage: dict[str, Any] | None = USAGE,
    reason: str | None = None,
    identity: str = "",
) -> bytes:
    """Stream an answer; ``identity`` makes no difference, as Ollama has none."""
    del identity
    values: list[object] = []
    for item in items:
        match item["type"]:
            case "message":
                values += [ollama_line({"content": p}) for p in pieces(text_of(item))]
            case "reasoning":
                values += [ollama_line({"thinking": p}) for p in pieces(summary_of(item))]
            case "function_call":
                values.append(ollama_line({"tool_calls": [_ollama_call(item)]}))
    return lines(*values, ollama_end(usage, reason or "stop"))


def ollama_whole(
    *items: Item,
    usage: dict[str, Any] | None = USAGE,
    reason: str | None = None,
    identity: str = "",
) -> bytes:
    """Return an answer as one body."""
    del identity
    said: dict[str, Any] = {"content": ""}
    for item in items:
        match item["type"]:
            case "message":
                said["content"] += text_of(item)
            case "reasoning":
                said["thinking"] = said.get("thinking", "") + summary_of(item)
            case "function_call":
                said.setdefault("tool_calls", []).append(_ollama_call(item))
    return lines(ollama_end(usage, reason or "stop", **said))


def ollama_error(code: str, text: str) -> bytes:
    del code
    return lines({"error": text})


def heard_ollama(body: dict[str, Any]) -> Heard:
    heard = Heard()
    open_calls: list[str] = []
    for message in body["messages"]:
        match message["role"]:
            case "system":
                heard.system = message["content"]
            case "user":
                heard.turns.append(("user", [message["content"]]))
            case "assistant":
                calls = message.get("tool_calls", [])
                open_calls = [call["function"]["name"] for call in calls]
                asked = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
                thoughts = message.get("thinking", "")
                heard.turns.append(("assistant", message["content"], thoughts, asked))
            case "tool":
                assert message["tool_name"] == open_calls.pop(0), "results are out of order"
                _add_result(heard, message["tool_name"], message["content"])
    for tool in body.get("tools", []):
        heard.tools[tool["function"]["name"]] = tool["function"]["parameters"]
    return heard


# ------------------------------------------------------------------------------------ shared


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    assert isinstance(content, list)
    return [part["text"] for part in content if part["type"] == "text"]


def _value(arguments: str) -> Any:  # JSON, or the text that is none
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _add_result(heard: Heard, name: str, text: str) -> None:
    if not heard.turns or heard.turns[-1][0] != "results":
        heard.turns.append(("results", []))
    heard.turns[-1][1].append((name, text))


CHAT: Final = Dialect(
    "openai_compat",
    make_provider("openai_compat", "https://chat.test/v1"),
    chat_stream,
    chat_whole,
    chat_error,
    "text/event-stream",
    heard_chat,
)
ANTHROPIC: Final = Dialect(
    "anthropic",
    make_provider("anthropic", "https://anthropic.test"),
    anthropic_stream,
    anthropic_whole,
    anthropic_error,
    "text/event-stream; charset=utf-8",
    heard_anthropic,
)
OLLAMA: Final = Dialect(
    "ollama",
    make_provider("ollama", "http://ollama.test"),
    ollama_stream,
    ollama_whole,
    ollama_error,
    "application/x-ndjson",
    heard_ollama,
)
DIALECTS: Final = (CHAT, ANTHROPIC, OLLAMA)
each_dialect: Final = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.kind)
"""Runs a test once per kind."""
