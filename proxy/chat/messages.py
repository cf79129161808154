"""Messages of a chat request as the input items that say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pipeline.errors import RequestError
from pipeline.jsontext import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Json: TypeAlias = dict[str, Any]

_INSTRUCTING: Final = ("system", "developer")
_OUTPUTS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}


class UntranslatableError(RequestError):
    """A chat request asks for what Responses can't express."""

    def at(self, kinds: Iterable[str]) -> UntranslatableError:
        """Return the error for a client whose upstreams are of these kinds."""
        named = " or ".join(sorted(kinds))
        return UntranslatableError(f"For an upstream of the kind {named}: {self.message}")


class Conversation(NamedTuple):
    """What the messages say.

    Attributes:
        instructions: The text of the system messages that everything begins with.
        items: All others as input items.
        origins: For each item the index of its message.
    """

    instructions: str | None
    items: list[Json]
    origins: list[int]


def read_messages(messages: Sequence[object]) -> Conversation:
    """Return what messages say.

    Args:
        messages: As the client sent them.

    Raises:
        RequestError: They can't be read.
        UntranslatableError: One of them has a part that Responses lacks.
    """
    leading: list[str] = []
    items: list[Json] = []
    origins: list[int] = []
    calls: dict[str, str] = {}
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise RequestError(f"'messages[{number}]' is no object. Send an object with a role.")
        if not items and message.get("role") in _INSTRUCTING:
            leading.append(_plain(message.get("content"), number))
            continue
        for item in _items(message, number, calls):
            items.append(item)
            origins.append(number)
    return Conversation("\n\n".join(filter(None, leading)) or None, items, origins)


def _items(message: Json, number: int, calls: dict[str, str]) -> Iterator[Json]:
    match message.get("role"):
        case "user":
            parts = [_input_part(part, number) for part in _parts(message.get("content"), number)]
            yield {"type": "message", "role": "user", "content": parts}
        case "assistant":
            yield from _assistant_items(message, number, calls)
        case "tool":
            yield _result(message, number, calls)
        case "system" | "developer" as role:
            content = [{"type": "input_text", "text": _plain(message.get("content"), number)}]
            yield {"type": "message", "role": role, "content": content}
        case "function":
            raise UntranslatableError(
                f"'messages[{number}]' is the result of a function in the form that tools have "
                "replaced. Declare tools and send a message of the role tool."
            )
        case _:
            raise RequestError(
                f"'messages[{number}].role' is none that is known. Send system, developer, user, "
                "assistant or tool."
            )


def _assistant_items(message: Json, number: int, calls: dict[str, str]) -> Iterator[Json]:
    if message.get("function_call") is not None or message.get("audio") is not None:
        raise UntranslatableError(
            f"'messages[{number}]' has a function_call or audio, which can't be translated. Send "
            "tool_calls, and text."
        )
    content = [_output_part(part, number) for part in _parts(message.get("content"), number)]
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        content.append({"type": "refusal", "refusal": refusal})
    if any(part.get("text") or part.get("refusal") for part in content):
        yield {"type": "message", "role": "assistant", "content": content}
    tool_calls = message.get("tool_calls")
    if not isinstance(tool_calls, list | None):
        raise RequestError(
            f"'messages[{number}].tool_calls' is no array. Send the calls as they were received."
        )
    for call in tool_calls or ():
        item = _call(call, number)
        calls[item["call_id"]] = item["type"]
        yield item


def _call(call: object, number: int) -> Json:
    match call:
        case {"id": str(identity), "custom": {"name": str(name), "input": str(text)}}:
            return {
                "type": "custom_tool_call",
                "call_id": identity,
                "name": name,
                "input": text,
            }
        case {"id": str(identity), "function": {"name": str(name), **function}}:
            return {
                "type": "function_call",
                "call_id": identity,
                "name": name,
                "arguments": _arguments(function.get("arguments")),
            }
        case _:
            raise RequestError(
                f"'messages[{number}].tool_calls' has a call without an id or a name. Send each "
                "call as it was received."
            )


def _arguments(value: object) -> str:
    """Return arguments as a text: some clients send what they parsed."""
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return dumps(value).decode("utf-8", "surrogatepass")


def _result(message: Json, number: int, calls: dict[str, str]) -> Json:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        raise RequestError(
            f"'messages[{number}].tool_call_id' is missing. Send the id of its call."
        )
    content = message.get("content")
    output: str | list[Json]
    if isinstance(content, str):
        output = content
    else:
        output = [_input_part(part, number) for part in _parts(content, number)]
    kind = _OUTPUTS[calls.get(call_id, "function_call")]
    return {"type": kind, "call_id": call_id, "output": output}


# --- Parts ------------------------------------------------------------------------------------


def _parts(content: object, number: int) -> list[Json]:
    match content:
        case None | "":
            return []
        case str():
            return [{"type": "text", "text": content}]
        case list() if all(isinstance(part, dict) for part in content):
            return content
        case _:
            raise RequestError(
                f"'messages[{number}].content' is neither a text nor an array of parts. Send one "
                "of the two."
            )


def _plain(content: object, number: int) -> str:
    texts = [part.get("text") for part in _parts(content, number)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _input_part(part: Json, number: int) -> Json:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url), **more}}:
            return {"type": "input_image", "image_url": url, "detail": more.get("detail") or "auto"}
        case {"type": "input_audio", "input_audio": dict() as audio}:
            return {"type": "input_audio", "input_audio": audio}
        case {"type": "file", "file": dict() as file}:
            kept = {
                name: file[name] for name in ("file_id", "file_data", "filename") if name in file
            }
            return {"type": "input_file", **kept}
        case _:
            raise _unknown_part(part, number)


def _output_part(part: Json, number: int) -> Json:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "output_text", "text": text, "annotations": []}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "refusal", "refusal": text}
        case _:
            raise _unknown_part(part, number)


def _unknown_part(part: Json, number: int) -> UntranslatableError:
    return UntranslatableError(
        f"'messages[{number}].content' has a part of the type {str(part.get('type'))[:40]!r}, "
        "which can't be translated. Send text, images, audio or files."
    )
