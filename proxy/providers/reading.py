"""Answers taken apart for a translator: an event stream, JSON lines, or one JSON body.

A ``TranslatingReader`` is to a turn what ``pipeline.reader`` is for Responses: it asserts that the
answer has the form that was asked for, and gives frames. Between the two stands a ``Translator``,
which takes one value at a time and writes events.

Nothing of another dialect can be relayed as it came, so limits end a turn here even where it is
only observed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from pipeline.errors import (
    ProtocolError,
    SottovoceError,
    SSEStreamLimitError,
    StreamFlagError,
    UpstreamError,
)
from pipeline.jsontext import loads
from pipeline.reader import SSEReader, StreamMode
from pipeline.sse import Fragment, Frame
from proxy.providers.codes import told_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.limits import Limits
    from proxy.providers.base import Json
    from proxy.providers.writer import ResponseWriter

_DONE: Final = b"[DONE]"
_TOLD: Final = 4
"""How often the events of a body may repeat its texts: as delta, in the item, at the end."""


class Translator(Protocol):
    """Takes the values of an answer in its order and writes events."""

    def take(self, value: Json) -> None:
        """Take one event, chunk or line."""

    def take_whole(self, value: Json) -> None:
        """Take an answer that is one JSON body."""

    def end(self, *, marked: bool) -> None:
        """Take the end: ``marked`` by a ``[DONE]``, or that of the body."""


class Source(Protocol):
    """Turns bytes into JSON objects; None stands for ``[DONE]``."""

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head."""

    def feed(self, data: bytes) -> Iterable[Json | None]:
        """Return the objects that these bytes complete."""

    def finish(self) -> Iterable[Json | None]:
        """Return what the end of the body completes."""


class TranslatingReader:
    """Reads an answer of another dialect.

    Args:
        source: Takes it apart.
        translator: Writes with ``writer``.
        writer: Has the frames.
        whole: Whether the answer is one body.
        phase: What the messages of errors begin with.

    Attributes:
        failure: What ended the reading after the frames in front of it; the next call raises it.
    """

    relayed_by: str | None = None
    """Nothing is ever relayed."""

    def __init__(
        self,
        source: Source,
        translator: Translator,
        writer: ResponseWriter,
        *,
        whole: bool,
        phase: str,
    ) -> None:
        self.phase = phase
        self.failure: SottovoceError | None = None
        self._source = source
        self._translator = translator
        self._take = translator.take_whole if whole else translator.take
        self._writer = writer

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head, None where the header is absent.

        Raises:
            StreamFlagError: The answer has another form than it was asked for.
        """
        self._source.head(content_type)

    def feed(self, data: bytes) -> list[Frame | Fragment]:
        """Return the frames of the events that these bytes complete.

        Raises:
            SottovoceError: The answer is none, is an error, or reached a limit.
        """
        return self._translate(lambda: self._source.feed(data), at_end=False)

    def skip(self, _frames: int, _size: int, /) -> bool:
        """Say that it reads everything itself."""
        return False

    def finish(self) -> list[Frame | Fragment]:
        """Return what the end of the body completes.

        Raises:
            SottovoceError: As ``feed`` does.
        """
        return self._translate(self._source.finish, at_end=True)

    def _translate(
        self, read: Callable[[], Iterable[Json | None]], *, at_end: bool
    ) -> list[Frame | Fragment]:
        """Translate what is read; an error comes after the frames in front of it."""
        if self.failure is not None:
            raise self.failure
        try:
            for value in read():
                if self._writer.ended:
                    break
                if value is None:
                    self._translator.end(marked=True)
                else:
                    self._take(value)
            if at_end and not self._writer.ended:
                self._translator.end(marked=False)
        except SottovoceError as error:
            self.failure = error
            frames = self._writer.take()
            if frames:
                return frames
            raise
        return self._writer.take()


def source_of(
    mode: StreamMode,
    limits: Limits,
    *,
    lines: bool = False,
    observed: bool,
    phase: str,
    redact: Callable[[str], str],
) -> Source:
    """Return what takes an answer apart.

    Args:
        mode: In which form it was asked for.
        limits: Bounds one event, their number, a body and an error body.
        lines: A stream of this upstream is JSON lines, not events.
        observed: Nothing was declared: there may be any number of events.
        phase: What the messages of errors begin with.
        redact: Takes secrets out of a provider's message.
    """
    if observed:
        limits = replace(limits, frames=sys.maxsize)
    if mode is StreamMode.JSON:
        return BodySource(limits, phase=phase)
    if lines:
        return LineSource(limits, phase=phase)
    return EventSource(limits, phase=phase, redact=redact)


class EventSource:
    """Server-sent events."""

    def __init__(self, limits: Limits, *, phase: str, redact: Callable[[str], str]) -> None:
        self._reader = SSEReader(
            limits, relay_oversize=False, phase=phase, redact=redact, told=told_by
        )
        self._phase = phase

    def head(self, content_type: str | None) -> None:
        """Take the content type; what is no stream is told when its body is there."""
        self._reader.head(content_type)

    def feed(self, data: bytes) -> Iterable[Json | None]:
        """Yield the objects that these bytes complete.

        Raises:
            SottovoceError: As ``pipeline.reader.SSEReader``, or data is not JSON.
        """
        yield from self._values(self._reader.feed(data))
        if self._reader.failure is not None:
            raise self._reader.failure

    def finish(self) -> Iterable[Json | None]:
        """Yield what the end completes."""
        yield from self._values(self._reader.finish())

    def _values(self, frames: list[Frame | Fragment]) -> Iterable[Json | None]:
        for frame in frames:
            data = frame.data if isinstance(frame, Frame) else None
            if data is None or not data.strip():
                continue
            if data.strip() == _DONE:
                yield None
                continue
            value = parsed(data, StreamMode.SSE.accept, self._phase)
            if isinstance(value, dict):
                yield value


class LineSource:
    """JSON lines. An upstream of this sort may also call them JSON."""

    def __init__(self, limits: Limits, *, phase: str) -> None:
        self._limits = limits
        self._phase = phase
        self._form = ""
        self._held = bytearray()
        self._count = 0

    def head(self, content_type: str | None) -> None:
        """Take the content type.

        Raises:
            StreamFlagError: An event stream came.
        """
        self._form = _form(content_type, "stream=true, which means lines,", self._phase)

    def feed(self, data: bytes) -> Iterable[Json | None]:
        """Yield the objects whose lines these bytes complete.

        Raises:
            SSEStreamLimitError: A line, or their number, is above its limit.
            ProtocolError: A line is not JSON.
        """
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._held += line
            yield from self._value()
        self._held += rest
        self._check_size()

    def finish(self) -> Iterable[Json | None]:
        """Yield the object of a last line that no line end closed.

        Raises:
            UpstreamError: The body was empty.
        """
        yield from self._value()
        if not self._count:
            raise UpstreamError(f"{self._phase}: the upstream's stream was empty")

    def _value(self) -> Iterable[Json | None]:
        self._check_size()
        line = bytes(self._held).strip()
        self._held.clear()
        if not line:
            return
        self._count += 1
        if self._count > self._limits.frames:
            raise SSEStreamLimitError("SSE stream exceeded frame limit", limit="frames")
        value = parsed(line, self._form, self._phase)
        if isinstance(value, dict):
            yield value

    def _check_size(self) -> None:
        limit = self._limits.event_bytes
        if len(self._held) > limit:
            raise SSEStreamLimitError(f"SSE event exceeded {limit} byte limit", limit="event_bytes")


class BodySource:
    """One JSON body."""

    def __init__(self, limits: Limits, *, phase: str) -> None:
        self._limit = limits.retained_bytes // _TOLD
        self._phase = phase
        self._form = ""
        self._body = bytearray()

    def head(self, content_type: str | None) -> None:
        """Take the content type.

        Raises:
            StreamFlagError: A stream came.
        """
        self._form = _form(content_type, "stream=false", self._phase)

    def feed(self, data: bytes) -> Iterable[Json | None]:
        """Keep bytes of the body.

        Raises:
            SSEStreamLimitError: It is larger than what may be retained.
        """
        self._body += data
        if len(self._body) > self._limit:
            raise SSEStreamLimitError(
                "Responses retained state exceeded byte limit", limit="retained_bytes"
            )
        return ()

    def finish(self) -> tuple[Json]:
        """Return the body's object.

        Raises:
            UpstreamError: The body was empty.
            ProtocolError: It is no JSON object.
        """
        if not self._body.strip():
            raise UpstreamError(f"{self._phase}: the upstream answered with nothing")
        value = parsed(bytes(self._body), self._form, self._phase)
        if not isinstance(value, dict):
            raise ProtocolError(f"{self._phase}: the upstream's answer is no JSON object")
        return (value,)


def parsed(data: bytes, form: str, phase: str) -> Any:
    """Return the value of a JSON text that came under a media type."""
    try:
        return loads(data)
    except ValueError:
        what = f"{form}, which is no JSON" if form else "what is no JSON"
        raise ProtocolError(
            f"{phase}: the upstream answered with {what}; check the upstream's base_url"
        ) from None


def _form(content_type: str | None, sent: str, phase: str) -> str:
    """Return the media type of an answer that must be no event stream."""
    form = (content_type or "").partition(";")[0].strip().lower()
    if form == StreamMode.SSE.accept:
        raise StreamFlagError(
            f"{phase}: stream flag and consumer disagree: {sent} was sent, the upstream answered "
            f"{form}"
        )
    return form
