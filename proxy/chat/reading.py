"""Chat completions read for a client that speaks them itself.

They are translated as for any client, so that the turn decides upon events. Beside the events goes
what came: a ``Said`` for every chunk, with the calls and the message that its parts belong to. The
client's side (``proxy.chat.splicing``) writes from these.

Where nothing is declared, bytes that can't be read, or are above a limit, pass as they came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Unpack

from pipeline.companion import Companion
from pipeline.errors import ProtocolError, SottovoceError, SSEStreamLimitError, UpstreamError
from pipeline.lifecycle import TERMINALS
from pipeline.reader import SSEReader
from pipeline.sse import Fragment, Frame
from proxy.providers.chat_stream import DELTA, ChatStream
from proxy.providers.codes import code_of, told_by
from proxy.providers.reading import BodySource, TranslatingReader, parsed
from proxy.providers.tools import toolbox_of
from proxy.providers.translating import Answering
from proxy.providers.writer import ResponseWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.limits import Limits
    from pipeline.reader import Reader, Reading, StreamMode
    from pipeline.request import Request
    from proxy.chat.messages import Json
    from proxy.providers.chat_calls import Call

CHAT_KIND: Final = "openai_compat"
"""The kind of upstreams that speak chat completions."""
_DONE: Final = b"[DONE]"
_PASSED: Final = "response.completed"
"""How an answer that only passed has ended, as far as anybody can tell."""


@dataclass(frozen=True, slots=True)
class Said:
    """One chunk, or a whole completion, as it came.

    Attributes:
        raw: Its bytes, framing included.
        data: Its JSON text; None for a frame that has none.
        value: Its value; None likewise.
        calls: For each of its ``tool_calls`` the call that it belongs to.
        legacy: The call that its ``function_call`` belongs to.
        message: The output index of the message that its text belongs to.
        part: The member of its choice that was read.
        whole: Whether it is a whole completion.
        done: Whether it is ``[DONE]``.
        error: The message of the error that it tells, as the client may see it; None where it
            tells none, or in words that nobody may see.
    """

    raw: bytes
    data: bytes | None = None
    value: Json | None = None
    calls: tuple[Call | None, ...] = ()
    legacy: Call | None = None
    message: int | None = None
    part: str = DELTA
    whole: bool = False
    done: bool = False
    error: str | None = None


OPENING: Final = Said(b"")
"""Stands in front of all that an upstream says that speaks as its client does."""


def said_by(
    stream: ChatStream, raw: bytes, data: bytes, value: Json, *, whole: bool = False
) -> Companion:
    """Return the companion of what a translator has just taken."""
    calls, legacy = tuple(stream.touched), stream.legacy
    said = Said(raw, data, value, calls, legacy, stream.spoke, stream.part, whole)
    return Companion.of(raw, said)


def chat_reader(
    request: Request,
    mode: StreamMode,
    limits: Limits,
    *,
    created_at: int,
    **how: Unpack[Reading],
) -> Reader:
    """Return the reader of an answer for a client that speaks chat completions as well.

    Args:
        request: The Responses request that is answered.
        mode: In which form it was asked for.
        limits: Bounds what the reader keeps.
        created_at: Unix time of a completion whose upstream does not tell.
        how: How the answer is read.
    """
    observed, phase, redact = how["observed"], how["phase"], how["redact"]
    writer = ResponseWriter(
        request, kind=CHAT_KIND, created_at=created_at, limit=limits.retained_bytes
    )
    stream = ChatStream(Answering(writer, toolbox_of(request), CHAT_KIND, phase, redact))
    if mode.flag:
        source = SSEReader(
            limits, relay_oversize=observed, phase=phase, redact=redact, told=told_by
        )
        return ChunkReader(source, stream, writer, observed=observed, redact=redact)
    if observed:
        return PassingBodyReader(stream, writer, limits, phase=phase)
    return BodyReader(stream, writer, limits, phase=phase)


class ChunkReader:
    """Reads a stream of chunks.

    Args:
        source: Takes it apart.
        stream: Translates with ``writer``.
        writer: Has the frames.
        observed: Nothing was declared: what can't be read passes.
        redact: Takes secrets out of a provider's message.

    Attributes:
        relayed_by: The limit for which it returns fragments; None where it can't read on.
    """

    def __init__(
        self,
        source: SSEReader,
        stream: ChatStream,
        writer: ResponseWriter,
        *,
        observed: bool,
        redact: Callable[[str], str],
    ) -> None:
        self.phase = source.phase
        self.relayed_by: str | None = None
        self._source = source
        self._stream = stream
        self._writer = writer
        self._observed = observed
        self._redact = redact
        self._failure: SottovoceError | None = None
        self._relaying = False
        self._ended = False
        self._opening = [Companion.of(b"", OPENING)]

    @property
    def failure(self) -> SottovoceError | None:
        """What ended the reading, after the frames in front of it."""
        return self._failure or self._source.failure

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head, None where the header is absent."""
        self._source.head(content_type)

    def feed(self, data: bytes) -> list[Frame | Fragment]:
        """Return the frames of the events that these bytes complete, and what they were.

        Raises:
            SottovoceError: The answer is none, is an error, or reached a limit.
        """
        if self._failure is not None:
            raise self._failure
        return self._read(self._source.feed(data))

    def skip(self, _frames: int, _size: int, /) -> bool:
        """Say that it reads everything itself."""
        return False

    def finish(self) -> list[Frame | Fragment]:
        """Return what the end of the body completes.

        Raises:
            SottovoceError: As ``feed`` does.
        """
        if self._failure is not None:
            raise self._failure
        out = self._read(self._source.finish())
        if self._relaying and not self._ended:
            out.append(Fragment(b"", _PASSED, last=True))
        elif not self._writer.ended:
            self._stream.end(marked=False)
            out += self._events()
        return out

    def _read(self, frames: list[Frame | Fragment]) -> list[Frame | Fragment]:
        out: list[Frame | Fragment] = [*self._opening]
        self._opening.clear()
        for frame in frames:
            if self._relaying or isinstance(frame, Fragment):
                out.append(self._relayed(frame, "event_bytes"))
                continue
            if self._writer.ended:
                break
            try:
                said = self._take(frame)
            except SottovoceError as error:
                out += self._events()
                if self._observed and self._writer.begun:
                    limit = error.limit if isinstance(error, SSEStreamLimitError) else None
                    out.append(self._relayed(frame, limit))
                    continue
                if not any(one.raw for one in out):
                    raise  # nothing came in front of it
                self._failure = error
                break
            events = self._events()
            out += _beside(said, events)
        return out

    def _take(self, frame: Frame) -> Companion:
        raw, _, data, _ = frame
        if data is None or not data.strip():
            return Companion.of(raw, Said(raw))
        if data.strip() == _DONE:
            self._stream.end(marked=True)
            return Companion.of(raw, Said(raw, done=True))
        value = parsed(data, "text/event-stream", self.phase)
        if not isinstance(value, dict):
            return Companion.of(raw, Said(raw))
        self._stream.take(value)
        if self._writer.ended:
            text = data.decode(errors="replace")
            error = code_of(value)[0] if self._redact(text) == text else None
            return Companion.of(raw, Said(raw, data, value, error=error))
        return said_by(self._stream, raw, data, value)

    def _events(self) -> list[Frame | Fragment]:
        """Return the events that were written.

        Of an answer that may come to pass as it is they have no bytes that could.
        """
        events = self._writer.take()
        if not self._observed:
            return events
        return [replace_raw(event) for event in events]

    def _relayed(self, frame: Frame | Fragment, limit: str | None) -> Fragment:
        if not self._relaying:
            self._relaying, self.relayed_by = True, limit
        if isinstance(frame, Fragment):
            return Fragment(frame.raw, None, last=False)
        self._ended = self._ended or (frame.data or b"").strip() == _DONE
        return Fragment(frame.raw, _PASSED if self._ended else None, last=self._ended)


def _beside(said: Companion, events: list[Frame | Fragment]) -> list[Frame | Fragment]:
    """Put what was said behind its events, but in front of a terminal: that ends the answer."""
    last = events[-1] if events else None
    at = len(events) - (isinstance(last, Frame) and last.event in TERMINALS)
    return [*events[:at], said, *events[at:]]


def replace_raw(event: Frame | Fragment) -> Frame | Fragment:
    """Return an event without the bytes of its frame."""
    return event._replace(raw=b"")


class BodyReader(TranslatingReader):
    """Reads a completion that is one body."""

    def __init__(
        self, stream: ChatStream, writer: ResponseWriter, limits: Limits, *, phase: str
    ) -> None:
        self._body = KeptBody(limits, phase=phase)
        super().__init__(self._body, stream, writer, whole=True, phase=phase)
        self._stream = stream

    def skip(self, _frames: int, _size: int, /) -> bool:
        """Say that it reads everything itself."""
        return False

    def finish(self) -> list[Frame | Fragment]:
        """Return the events of the body, and the body.

        Raises:
            SottovoceError: It is none that the client could use.
        """
        events = super().finish()
        raw, value = self._body.text, self._body.value
        said = said_by(self._stream, raw, raw, value, whole=True)
        return [Companion.of(b"", OPENING), *_beside(said, events)]


class KeptBody(BodySource):
    """One JSON body, which is still there when it was read.

    Attributes:
        text: The body.
        value: Its value.
    """

    def __init__(self, limits: Limits, *, phase: str) -> None:
        super().__init__(limits, phase=phase)
        self.text = b""
        self.value: Json = {}

    def finish(self) -> tuple[Json]:
        """Return the body's object.

        Raises:
            UpstreamError: The body was empty.
            ProtocolError: It is no JSON object.
        """
        self.text = bytes(self._body)
        (value,) = super().finish()
        self.value = value
        return (value,)


class PassingBodyReader:
    """Reads a body that passes as it came, whatever it is: along with it where it can be read.

    Attributes:
        relayed_by: The limit for which it returns fragments; None where the body is no completion.
    """

    failure: SottovoceError | None = None

    def __init__(
        self, stream: ChatStream, writer: ResponseWriter, limits: Limits, *, phase: str
    ) -> None:
        self.phase = phase
        self.relayed_by: str | None = None
        self._reader = BodyReader(stream, writer, limits, phase=phase)
        self._body = bytearray()
        self._relaying = False

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head, None where the header is absent."""
        try:
            self._reader.head(content_type)
        except SottovoceError:
            self._relaying = True

    def feed(self, data: bytes) -> list[Frame | Fragment]:
        """Keep bytes of the body; return them as fragments where it only passes."""
        if not self._relaying:
            self._body += data
            try:
                self._reader.feed(data)
            except SSEStreamLimitError as error:
                self.relayed_by = error.limit
                self._relaying = True
                data = bytes(self._body)
                self._body.clear()
        if not self._relaying:
            return []
        return [Companion.of(b"", OPENING), Fragment(data, None, last=False)]

    def skip(self, _frames: int, _size: int, /) -> bool:
        """Say that it reads everything itself."""
        return False

    def finish(self) -> list[Frame | Fragment]:
        """Return the events that the body stands for, or the body as one fragment.

        Raises:
            UpstreamError: There is nothing.
        """
        body = bytes(self._body)
        if not self._relaying:
            try:
                return [replace_raw(one) if type(one) is Frame else one for one in self._events()]
            except (ProtocolError, UpstreamError):
                if not body.strip():
                    raise
        return [Companion.of(b"", OPENING), Fragment(body, None, last=True)]

    def _events(self) -> list[Frame | Fragment]:
        return self._reader.finish()
