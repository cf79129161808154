"""Contents of messages and of tool results, read once for all dialects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pipeline.errors import RequestError
from pipeline.jsontext import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proxy.providers.base import Json

_DATA_URL: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Text:
    """Text of anybody; a refusal is the assistant's text like any other once it was said."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image: a URL, which may hold the image itself."""

    url: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class File:
    """A file: its content in base64 or as a data URL, where it can be had, or a stored one."""

    name: str | None = None
    data: str | None = None
    url: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Audio:
    """A recording in base64."""

    data: str
    format: str


Part: TypeAlias = Text | Image | File | Audio


def read_parts(content: object, *, where: str) -> list[Part]:
    """Return the parts of a content, which may be a plain string; empty texts are none.

    Args:
        content: As the item has it.
        where: Names the place in messages of errors.

    Raises:
        RequestError: A part is of a kind that can't be translated.
    """
    match content:
        case None:
            return []
        case str():
            return [Text(content)] if content else []
        case list():
            read = [_read_part(part, where) for part in content]
            return [part for part in read if not isinstance(part, Text) or part.text]
        case _:
            raise RequestError(
                f"The content of {where} is neither a string nor an array of parts. "
                "Send one of the two."
            )


def _read_part(part: Any, where: str) -> Part:
    match part:
        case {
            "type": "input_text" | "output_text" | "text" | "summary_text",
            "text": str() as text,
        }:
            return Text(text)
        case {"type": "refusal", "refusal": str() as text}:
            return Text(text)
        case {"type": "input_image", "image_url": str() as url, **rest}:
            detail = rest.get("detail")
            return Image(url, detail if isinstance(detail, str) else None)
        case {"type": "input_image"}:
            raise RequestError(
                f"{where} has an image by its file id, which is stored where this upstream can't "
                "reach it. Send the image itself as a data URL."
            )
        case {"type": "input_file"}:
            return _read_file(part)
        case {
            "type": "input_audio",
            "input_audio": {"data": str() as data, "format": str() as form},
        }:
            return Audio(data, form)
        case {"type": str() as kind}:
            raise RequestError(
                f"{where} has a part of type {kind!r:.80}, which this upstream does not know. "
                "Leave it out, or use an upstream that speaks Responses."
            )
        case _:
            raise RequestError(f"{where} has a part without a type. Send parts with their type.")


def _read_file(part: Json) -> File:
    def text(key: str) -> str | None:
        value = part.get(key)
        return value if isinstance(value, str) else None

    return File(text("filename"), text("file_data"), text("file_url"), text("file_id"))


def plain_text(parts: Iterable[Part]) -> str:
    """Return the texts of a content, a line apart."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def base64_of(url: str) -> tuple[str, str] | None:
    """Return media type and base64 text of a data URL; None for any other URL."""
    match = _DATA_URL.fullmatch(url)
    return None if match is None else (match[1], match[2])


def refuse_part(part: Part, *, upstream: str, instead: str, how: str = "") -> RequestError:
    """Return the error for a part that an upstream has no place for.

    Args:
        part: The part.
        upstream: What the upstream is.
        instead: What to do.
        how: What about the part it is that has no place.
    """
    kind = type(part).__name__.lower()
    return RequestError(f"The input has {_A[kind]}{how}, which {upstream} can't take. {instead}")


_A: Final = {"text": "a text", "image": "an image", "file": "a file", "audio": "a recording"}


def unsent(value: object) -> str:
    """Return a value that is not text as JSON: results of tools may be anything."""
    return value if isinstance(value, str) else dumps(value).decode()
