r"""Server-sent events: bytes to frames and back, without losing a byte.

A *frame* is what stands between two blank lines, that blank line included. The decoder gives the
same frames however the bytes were cut, and their ``raw`` parts, joined, are the bytes that went
in: a stream that needs no change is forwarded from them.

Where a frame ends
    Lines end in LF, CRLF or CR, mixed as the sender likes. A blank line is a line end at the
    start of a frame or right after another line end, so a frame ends at ``\n\n``, ``\n\r\n``,
    ``\n\r`` or ``\r\r`` (the LF of a CRLF is an LF like any other). A chunk that ends in
    ``\n\r`` leaves open whether an LF belongs to it, so it waits for the next byte; ``\r\r``
    doesn't wait, because an LF after it is a blank line of its own, which means nothing. So every
    cut gives the same frames, and a stream of bare CRs is not one event late.

Cost
    Every byte is searched once and copied a fixed number of times: an unfinished frame lies in a
    ``bytearray`` (it grows in place, amortised), the search starts in the new chunk, and the one
    to three line-end bytes that a blank line may straddle are carried into it. Common frames, one
    ``data:`` line ended by LF with or without an ``event:`` line, are taken from the lines of
    their whole chunk.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pipeline.errors import SSEStreamLimitError
from pipeline.possessive import repeated

BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = re.compile(rb"\n|\r\n|\r(?=.)", re.DOTALL)
"""A blank line at the start of a frame; a CR needs to know its next byte."""
_END: Final = re.compile(rb"\n(?:\n|\r\n|\r(?=.))", re.DOTALL)
"""A line end and the blank line after it, in a chunk without two bare CRs: seven times faster."""
_END_BARE: Final = re.compile(rb"\n(?:\n|\r\n|\r(?=.))|\r\r", re.DOTALL)
"""The same for any chunk."""
_WHOLE: Final = (b"\n\n", b"\n\r\n", b"\n\r", b"\r\r")
"""How a frame ends that came to its end."""
_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")

_HEAD: Final = 1024
"""How much of an oversized event is read to learn its type."""
_SCALAR_MEMBER: Final = (
    r'(?!"type")"[^"\\]*+"\s*+:\s*+(?:"[^"\\]*+"|[-+.\deE]++|true|false|null)\s*+,\s*+'
)
_TYPE: Final = re.compile(
    rb"\s*\{\s*" + repeated(_SCALAR_MEMBER).encode() + rb'"type"\s*+:\s*+"([^"\\]*+)"'
)
"""The top-level ``type`` of a JSON object, where only plain scalars stand before it."""

_event_lines: dict[bytes, str] = {}
"""Memo of ``event: NAME`` lines to their names. A few dozen serve all streams; it is bounded."""
_MEMO_ENTRIES: Final = 512
_MEMO_NAME: Final = 128


class Frame(NamedTuple):
    """What stands between two blank lines. Comments and empty frames are frames as well."""

    raw: bytes
    """The exact bytes with the blank line; the first frame has the byte order mark, if any."""
    event: str | None
    """Value of the ``event:`` field (the last, if several); None if there is none."""
    data: bytes | None
    """The data lines, joined with LF; None if there is none."""
    sound: bool
    """What every client can read: LF only, no byte order mark, one data line, a blank line."""


class Fragment(NamedTuple):
    """A piece of an event above the limit, only from a decoder that relays such events."""

    raw: bytes
    event: str | None
    """The event's type: its ``event:`` field, else the ``type`` its data begins with."""
    last: bool
    """Whether the event ends here. ``raw`` may then be empty."""


class SSEDecoder:
    """Incremental decoder for one stream.

    Args:
        event_bytes: The largest frame, blank line included.
        frames: The largest number of frames, comments and empty ones included.
        relay_oversize: For streams that are only observed: nothing is an error, frames above
            ``event_bytes`` come as fragments, and ``count`` may go beyond ``frames``.

    A limit is reported after the frames in front of it: if the chunk that reaches it completes
    frames, these are returned, ``failure`` is set, and the next call raises it.
    """

    __slots__ = (
        "_between",
        "_bom",
        "_carry",
        "_event_bytes",
        "_frames",
        "_held",
        "_opening",
        "_relay",
        "_relayed",
        "_relaying",
        "count",
        "failure",
    )

    def __init__(self, *, event_bytes: int, frames: int, relay_oversize: bool = False) -> None:
        self._event_bytes = event_bytes
        self._frames = frames
        self._relay = relay_oversize
        self._between = False  # at the end of a frame, with nothing kept, owed or wrong
        self._opening = True  # nothing was decoded: a byte order mark may come
        self._bom = b""  # seen, and owed to the first frame
        self._held = bytearray()  # the unfinished frame
        self._carry = b""  # its last line end, which may be half of a blank line
        self._relaying = False  # inside an event that leaves in fragments
        self._relayed: str | None = None  # its type
        self.count = 0
        """Frames so far; an event in fragments counts once, when it ends."""
        self.failure: SSEStreamLimitError | None = None
        """The limit that ended this stream."""

    def feed(self, chunk: bytes) -> list[Frame | Fragment]:
        """Return the frames that ``chunk`` completes.

        Raises:
            SSEStreamLimitError: ``event_bytes`` or ``frames``, as its ``limit`` says.
        """
        if self._between:
            if len(chunk) <= self._event_bytes and (self._relay or self.count < self._frames):
                frame = _only_frame(chunk)
                if frame is not None:
                    self.count += 1
                    return [frame]
            self._between = False
        self._raise_failure()
        if self._carry:
            chunk = self._carry + chunk
            self._carry = b""
        if self._opening:
            if len(chunk) < len(BOM) and BOM.startswith(chunk):
                self._carry = chunk
                return []
            self._opening = False
            if chunk.startswith(BOM):
                self._bom = BOM
                chunk = chunk[len(BOM) :]
        out: list[Frame | Fragment] = []
        position = self._decode(chunk, out)
        whole = position == len(chunk)
        if not whole and self.failure is None:
            self._keep(chunk[position:], out)
        if self._bom or self.failure is not None:
            return self._deliver(out)
        self._between = whole and not self._held and not self._relaying
        return out

    def skip(self, frames: int, size: int, /) -> bool:
        """Count frames that were read past the decoder; say whether it may be passed.

        Args:
            frames: Their number.
            size: Bytes of all of them: none is longer.
        """
        if not self._between or size > self._event_bytes:
            return False
        if self.count + frames > self._frames and not self._relay:
            return False
        self.count += frames
        return True

    def finish(self) -> list[Frame | Fragment]:
        """Return what the stream left without a blank line: at most one frame or fragment.

        Raises:
            SSEStreamLimitError: As ``feed``.
        """
        self._raise_failure()
        out: list[Frame | Fragment] = []
        rest, self._carry = self._carry, b""
        if rest or self._held or self._relaying or self._bom:
            self._emit(rest, out, ended=False)
        return self._deliver(out)

    def _decode(self, chunk: bytes, out: list[Frame | Fragment]) -> int:
        """Decode the complete frames of ``chunk``; return where the unfinished one goes on."""
        lf_only = b"\r" not in chunk
        blank = _END if lf_only or b"\r\r" not in chunk else _END_BARE
        regular = lf_only and len(chunk) <= self._event_bytes
        position = 0
        while position < len(chunk):
            inside = self._relaying or bool(self._held)
            if regular and not inside:
                regular = False  # once a chunk: again, it would split the same bytes again
                position = self._decode_regular(chunk, position, out)
                continue
            if not inside and chunk[position] in b"\r\n":
                end = _BLANK.match(chunk, position)
            else:
                end = blank.search(chunk, position)
            if end is None:
                break
            self._emit(chunk[position : end.end()], out, ended=True)
            if self.failure is not None:
                break
            position = end.end()
        return position

    def _decode_regular(self, chunk: bytes, position: int, out: list[Frame | Fragment]) -> int:
        """Decode frames of one form (data line, event line or not) up to the first of another."""
        lines = (chunk[position:] if position else chunk).split(b"\n")
        lines.pop()  # no LF came after it
        if not self._relay and self.count + len(lines) // 2 > self._frames:
            return position
        frames: list[Frame] = []
        new, append = tuple.__new__, frames.append  # half the cost of Frame(...)
        line = iter(lines)
        if lines and lines[0].startswith(b"event: "):
            name_of = _event_lines.get
            for event, data, blank in zip(line, line, line, strict=False):
                if blank or data[:6] != b"data: ":
                    break
                name = name_of(event)
                if name is None:
                    if not event.startswith(b"event: "):
                        break
                    name = _event_name(event[7:])
                end = position + len(event) + len(data) + 3
                append(new(Frame, (chunk[position:end], name, data[6:], True)))
                position = end
        else:
            for data, blank in zip(line, line, strict=False):
                if blank or data[:6] != b"data: ":
                    break
                end = position + len(data) + 2
                append(new(Frame, (chunk[position:end], None, data[6:], True)))
                position = end
        self.count += len(frames)
        out += frames
        return position

    def _emit(self, raw: bytes, out: list[Frame | Fragment], *, ended: bool) -> None:
        """Append the frame that ends with ``raw``, or set ``failure``."""
        if self._held:
            raw = b"".join((self._held, raw))
            self._held = bytearray()
        large = len(raw) > self._event_bytes
        if self._relaying:
            self._relaying = False
            out.append(Fragment(raw, self._relayed, last=True))
        elif large and self._relay:
            out.append(Fragment(raw, self._sniff(raw), last=True))
        elif large:
            self._fail_event()
        elif self.count >= self._frames and not self._relay:
            self._fail("SSE stream exceeded frame limit", limit="frames")
        else:
            out.append(_parse(raw, ended=ended))
        self.count += 1

    def _keep(self, rest: bytes, out: list[Frame | Fragment]) -> None:
        """Keep the start of a frame, or relay it where it is too large to be kept."""
        text = rest.rstrip(b"\r\n")
        rest, self._carry = text, rest[len(text) :]
        if self._relaying:
            if rest:
                out.append(Fragment(rest, self._relayed, last=False))
            return
        self._held += rest
        if len(self._held) <= self._event_bytes:
            return
        if not self._relay:
            self._fail_event()
            return
        raw = bytes(self._held)
        self._held = bytearray()
        self._relaying, self._relayed = True, self._sniff(raw)
        out.append(Fragment(raw, self._relayed, last=False))

    def _sniff(self, raw: bytes) -> str | None:
        # The same bytes for every chunking: a first fragment is longer than event_bytes.
        return _sniff_head(raw[: min(_HEAD, self._event_bytes + 1)])

    def _deliver(self, out: list[Frame | Fragment]) -> list[Frame | Fragment]:
        if out and self._bom:
            first = out[0]
            raw = self._bom + first.raw
            self._bom = b""
            if isinstance(first, Frame):
                out[0] = first._replace(raw=raw, sound=False)
            else:
                out[0] = first._replace(raw=raw)
        if not out:
            self._raise_failure()
        return out

    def _raise_failure(self) -> None:
        # Not where it is needed: a type checker would believe that it stays None from there on.
        if self.failure is not None:
            raise self.failure

    def _fail_event(self) -> None:
        self._fail(f"SSE event exceeded {self._event_bytes} byte limit", limit="event_bytes")

    def _fail(self, message: str, *, limit: str) -> None:
        self._held = bytearray()
        self.failure = SSEStreamLimitError(message, limit=limit)


def encode_event(type_: str, data: bytes) -> bytes:
    """Return the frame that every client reads: ``event:`` equal to its type, one data line.

    Args:
        type_: The event's ``type``. One that would break the line is left to the data alone.
        data: Its JSON text. Line breaks in it are only white space there, and become blanks.
    """
    if b"\n" in data or b"\r" in data:
        data = data.translate(_LINE_BREAKS)
    if "\n" in type_ or "\r" in type_:
        return b"data: %b\n\n" % data
    return b"event: %b\ndata: %b\n\n" % (type_.encode(errors="replace"), data)


def encode_data(name: str, data: bytes) -> bytes:
    """Return a frame whose data need not be JSON: its line breaks stay."""
    lines = [b"event: %b" % name.encode(errors="replace"), *data.split(b"\n")]
    return b"\ndata: ".join(lines) + b"\n\n"


def encode_comment(text: str) -> bytes:
    """Return a frame that clients skip; its arrival resets their read timeout."""
    return b": %b\n\n" % text.encode(errors="replace").translate(_LINE_BREAKS)


def _parse(raw: bytes, *, ended: bool) -> Frame:
    """Read the fields of one frame; ``ended`` says that its blank line came."""
    lf_only = b"\r" not in raw
    event: bytes | None = None
    data: list[bytes] = []
    for line in _lines(raw):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            event = value.removeprefix(b" ")
    return Frame(
        raw,
        None if event is None else _event_name(event),
        b"\n".join(data) if data else None,
        sound=lf_only and ended and len(data) <= 1,
    )


def _only_frame(chunk: bytes) -> Frame | None:
    """Return the frame that a chunk is, as those of a live stream mostly are: one, regular."""
    line, found, data = chunk.partition(b"data: ")
    if not found or data.find(b"\n") != len(data) - 2 or data[-1] != 0x0A or b"\r" in data:
        return None
    name = None
    if line:
        name = _event_lines.get(line[:-1])
        if name is None or line[-1] != 0x0A:
            return None
    frame: Frame = tuple.__new__(Frame, (chunk, name, data[:-2], True))
    return frame


def _lines(raw: bytes) -> list[bytes]:
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return raw.split(b"\n")


def _event_name(value: bytes) -> str:
    name = value.decode(errors="replace")
    if len(value) <= _MEMO_NAME:
        if len(_event_lines) >= _MEMO_ENTRIES:
            _event_lines.clear()
        _event_lines[b"event: " + value] = name
    return name


def _sniff_head(head: bytes) -> str | None:
    """Return an event's type from its first bytes, None if they don't tell."""
    data: bytes | None = None
    lines = _lines(head)
    for line in lines[:-1]:
        name, _, value = line.partition(b":")
        if name == b"event":
            return value.removeprefix(b" ").decode(errors="replace")
    for line in lines:
        name, _, value = line.partition(b":")
        if name == b"data":
            data = value
            break
    return None if data is None else sniff_type(data)


def is_comment(raw: bytes) -> bool:
    """Tell whether a frame is made of comments alone: any field makes some clients an event."""
    return all(line[:1] in (b"", b":") for line in _lines(raw.removeprefix(BOM)))


def is_whole(raw: bytes) -> bool:
    """Tell whether a frame has its blank line. What a stream was cut in is no event."""
    return raw.endswith(_WHOLE) or not raw.strip(b"\r\n")


def sniff_type(data: bytes) -> str | None:
    """Return the type of an event from the first bytes of its data, None if they don't tell."""
    match = _TYPE.match(data[:_HEAD])
    return None if match is None else match[1].decode(errors="replace")
