r"""Fixtures: recorded or hand-written exchanges, one JSON record a line.

The first line is the header. Every other line is something that came *in* (``in``: from the
client, the upstream, a tool, the clock) or what a correct proxy makes of it (``out``: the golden
answer, in the place where it is due)::

    {"fixture":1,"about":"a recall that the client never sees"}
    {"in":"request","body":{…}}                  {"out":"upstream","hop":1,"body":{…}}
    {"in":"head"}                                {"out":"event","event":{…}}
    {"in":"event","event":{…}}                   {"out":"bytes","text":": keep-alive\n\n"}
    {"in":"bytes","text":"data: [DONE]\n\n"}       {"out":"tool","call_id":"c1",…}
    {"in":"tool","call_id":"c1","text":"…"}      {"out":"error","status":502,"body":{…}}
    {"in":"end"}                                 {"out":"end"}
    {"in":"failure","error":"reset"}             {"out":"outcome","ending":"completed",…}

``t`` is when, in milliseconds from the start. Whatever is exactly what we would write ourselves
stands as a JSON value; anything else as ``text``, or as ``base64`` where it is no UTF-8. So a file
can be read, reviewed and written by hand, and loses no byte.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.sse import SSEDecoder, encode_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

VERSION: Final = 1
IN_KINDS: Final = frozenset(
    {"request", "head", "event", "bytes", "end", "failure", "tool", "keepalive"}
)
OUT_KINDS: Final = frozenset(
    {"upstream", "event", "bytes", "tool", "end", "error", "relay", "save", "empty", "outcome"}
)
_NO_LIMIT: Final = 1 << 40


class FixtureError(Exception):
    """A file is no fixture; the message names file, line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: what the fixture is about, and under which conditions it holds."""

    about: str
    dialect: str = "public"
    """The upstream's: ``public`` or ``codex``."""
    client: str = "sdk"
    """Who asks, which decides the usage that is reported: ``sdk`` or ``codex``; ``chat`` is one who
    speaks chat completions, before an upstream that speaks them as well."""
    recall: bool = True
    """Whether the hidden tool may be declared."""
    limits: dict[str, int] = field(default_factory=dict)
    """Limits that differ from the defaults."""
    budgets: dict[str, float] = field(default_factory=dict)
    """Budgets that differ from the defaults."""
    memory: tuple[str, ...] = ()
    """What a demonstration's memory holds before."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line after the header.

    Attributes:
        side: ``in`` or ``out``.
        kind: One of ``IN_KINDS`` or ``OUT_KINDS``.
        members: All else.
        t: Milliseconds since the start, None where time doesn't matter.
    """

    side: str
    kind: str
    members: dict[str, Any]
    t: float | None = None

    def data(self) -> bytes:
        """Return the bytes that the record stands for.

        Raises:
            FixtureError: It stands for none.
        """
        members = self.members
        if "event" in members:
            event = members["event"]
            return encode_event(str(event["type"]), jsontext.dumps(event))
        if "body" in members:
            return jsontext.dumps(members["body"])
        if "text" in members:
            return str(members["text"]).encode()
        if "base64" in members:
            return base64.b64decode(members["base64"], validate=True)
        raise FixtureError(f"a record of kind {self.kind} has no event, body, text or base64")


@dataclass(frozen=True, slots=True)
class Fixture:
    """A header and its records, in order."""

    header: Header
    records: tuple[Record, ...]


# ---------------------------------------------------------------------------------- files


def read_fixture(path: Path) -> Fixture:
    """Read a fixture file.

    Raises:
        FixtureError: It is none.
        OSError: It can't be read.
    """
    lines = path.read_bytes().splitlines()
    try:
        return parse_fixture(lines)
    except FixtureError as error:
        raise FixtureError(f"{path}:{error}") from error


def parse_fixture(lines: Iterable[bytes]) -> Fixture:
    """Read a fixture's lines; blank ones and those that start with ``#`` are skipped.

    Raises:
        FixtureError: They are none; the message begins with the line's number.
    """
    header: Header | None = None
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            value = _object(line)
            if header is None:
                header = _header(value)
            else:
                records.append(_record(value))
        except FixtureError as error:
            raise FixtureError(f"{number}: {error}") from error
    if header is None:
        raise FixtureError("1: the header is missing")
    return Fixture(header, tuple(records))


def dump_fixture(fixture: Fixture) -> bytes:
    """Write a fixture, one record a line."""
    lines = [_header_line(fixture.header), *map(_record_line, fixture.records)]
    return b"".join(jsontext.dumps(line) + b"\n" for line in lines)


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = jsontext.loads(line)
    except ValueError as error:
        raise FixtureError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FixtureError("not a JSON object")
    return value


def _header(value: dict[str, Any]) -> Header:
    version = value.pop("fixture", None)
    if version != VERSION:
        raise FixtureError(f'the header must say "fixture": {VERSION}, it says {version!r}')
    known = Header.__slots__
    unknown = sorted(value.keys() - set(known))
    if unknown:
        raise FixtureError(f"the header has unknown members: {', '.join(unknown)}")
    value.setdefault("about", "")
    value["memory"] = tuple(value.get("memory", ()))
    header = Header(**value)
    if header.dialect not in {"public", "codex"} or header.client not in {
        "sdk",
        "codex",
        "chat",
    }:
        raise FixtureError("dialect is public or codex, client is sdk, codex or chat")
    return header


def _record(value: dict[str, Any]) -> Record:
    sides = [side for side in ("in", "out") if side in value]
    if len(sides) != 1:
        raise FixtureError('a record has either "in" or "out"')
    side = sides[0]
    kind = value.pop(side)
    kinds = IN_KINDS if side == "in" else OUT_KINDS
    if kind not in kinds:
        raise FixtureError(f'"{side}" is one of {", ".join(sorted(kinds))}, not {kind!r}')
    t = value.pop("t", None)
    if not (t is None or (isinstance(t, int | float) and not isinstance(t, bool) and t >= 0)):
        raise FixtureError(f"t is milliseconds, not {t!r}")
    record = Record(side, kind, value, t)
    if kind in _CARRIERS:
        _check_content(record)
    return record


_CARRIERS: Final = frozenset({"request", "event", "bytes", "upstream"})
"""Kinds that stand for bytes."""


def _check_content(record: Record) -> None:
    event = record.members.get("event")
    if "event" in record.members and not (isinstance(event, dict) and "type" in event):
        raise FixtureError("an event is an object with a type")
    try:
        record.data()
    except (binascii.Error, UnicodeEncodeError) as error:
        raise FixtureError(f"unreadable content: {error}") from error


def _header_line(header: Header) -> dict[str, Any]:
    plain = Header(about=header.about)
    named = {name: getattr(header, name) for name in Header.__slots__}
    changed = {
        name: value
        for name, value in named.items()
        if name == "about" or value != getattr(plain, name)
    }
    return {"fixture": VERSION, **changed}


def _record_line(record: Record) -> dict[str, Any]:
    time = {} if record.t is None else {"t": record.t}
    return {record.side: record.kind, **time, **record.members}


# -------------------------------------------------------------------------------- content


def content(data: bytes, name: str) -> dict[str, Any]:
    """Return the members that stand for bytes: a JSON value under ``name``, else the text.

    Args:
        data: The bytes.
        name: ``body`` for a JSON text.
    """
    try:
        value = jsontext.loads(data)
    except ValueError:
        return plain(data)
    return {name: value} if jsontext.dumps(value) == data else plain(data)


def plain(data: bytes) -> dict[str, Any]:
    """Return the members that stand for bytes that are no JSON value of ours."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def stream_records(side: str, data: bytes, t: float | None = None) -> Iterator[Record]:
    """Yield the records of a piece of a stream: events where they are in our own form.

    The pieces of one stream may be cut anywhere; what is no whole event stands as ``bytes``.
    """
    decoder = SSEDecoder(event_bytes=_NO_LIMIT, frames=_NO_LIMIT)
    for frame in [*decoder.feed(data), *decoder.finish()]:
        event = _own_event(frame.raw, getattr(frame, "data", None))
        if event is None:
            yield Record(side, "bytes", plain(frame.raw), t)
        else:
            yield Record(side, "event", {"event": event}, t)


def _own_event(raw: bytes, data: bytes | None) -> dict[str, Any] | None:
    """Return the event of a frame that is exactly as we would write it."""
    try:
        event = jsontext.loads(data or b"")
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return None
    ours = encode_event(event["type"], jsontext.dumps(event))
    return event if ours == raw else None
