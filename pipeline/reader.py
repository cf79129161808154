"""How an upstream is asked for its answer, and how that answer is read: one value decides both.

``StreamMode`` is what ``body["stream"]`` says and which reader consumes the body. Nothing else
sets either, so a follow-up can't ask for one form and wait for the other. A hop hands the one
value of its turn's options to both sides (``pipeline.hop``): to the command that asks, and to the
``ReaderFactory`` that reads.

What reads is the provider's business: an upstream that speaks Responses is read by
``responses_reader``, any other by a translator with the same ``Reader`` face.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, Unpack

from pipeline import jsontext
from pipeline.errors import (
    ProtocolError,
    SottovoceError,
    SSEStreamLimitError,
    StreamFlagError,
    UpstreamError,
    UpstreamRefusedError,
)
from pipeline.members import bare_item
from pipeline.sse import BOM, Fragment, Frame, SSEDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.limits import Limits
    from pipeline.request import Request

    Told = Callable[[object], tuple[str, str | None]]
    """A body → message and code of the error that it is; an empty message where it is none."""

_SSE_STARTS: Final = (b":", b"event", b"data", b"id", b"retry")
_SNIFF_BYTES: Final = 64
"""How many blank bytes may stand in front of what tells a stream from a body."""
_MESSAGE_CHARACTERS: Final = 500


class Reading(TypedDict):
    """How an answer is read, whoever reads it.

    Attributes:
        observed: Nothing was declared: what exceeds a limit passes where it can.
        phase: What the messages of errors begin with.
        redact: Takes secrets out of a provider's message.
    """

    observed: bool
    phase: str
    redact: Callable[[str], str]


class StreamMode(StrEnum):
    """Whether an answer is streamed."""

    SSE = "sse"
    JSON = "json"

    @property
    def flag(self) -> bool:
        """The value of ``stream`` in the request."""
        return self is StreamMode.SSE

    def reader(self, limits: Limits, **how: Unpack[Reading]) -> SSEReader | JSONReader:
        """Return the reader for an answer that was asked for in this form.

        Args:
            limits: Bounds what it keeps.
            how: As for any reader.
        """
        observed, phase, redact = how["observed"], how["phase"], how["redact"]
        if self is StreamMode.SSE:
            return SSEReader(limits, relay_oversize=observed, phase=phase, redact=redact)
        return JSONReader(limits, relay=observed, phase=phase, redact=redact)

    @property
    def accept(self) -> str:
        """The media type that the answer must have."""
        return "text/event-stream" if self is StreamMode.SSE else "application/json"


class Reader(Protocol):
    """Turns the bytes of one answer into frames of Responses events.

    Attributes:
        phase: What the messages of errors begin with.
    """

    phase: str

    @property
    def relayed_by(self) -> str | None:
        """The limit for which it returns fragments; None where there is none."""

    @property
    def failure(self) -> SottovoceError | None:
        """What ended the reading, after the frames in front of it; the next call raises it."""

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head, None where the header is absent."""

    def feed(self, data: bytes) -> list[Frame | Fragment]:
        """Return the frames that these bytes complete."""

    def skip(self, frames: int, size: int, /) -> bool:
        """Count frames of so many bytes that were read past it; False where it must read all.

        It must where its frames are not the bytes that come, and inside of a frame.
        """

    def finish(self) -> list[Frame | Fragment]:
        """Return what the end of the body completes."""


class ReaderFactory(Protocol):
    """Makes the reader for the answer to one request."""

    def __call__(
        self, request: Request, mode: StreamMode, limits: Limits, /, **how: Unpack[Reading]
    ) -> Reader:
        """Return the reader.

        Args:
            request: What is asked, as a Responses request.
            mode: In which form it is asked for.
            limits: Bounds what the reader keeps.
            how: How the answer is read.
        """


def responses_reader(
    _request: Request, mode: StreamMode, limits: Limits, /, **how: Unpack[Reading]
) -> Reader:
    """Return the reader for an upstream that speaks Responses; see ``ReaderFactory``."""
    return mode.reader(limits, **how)


class SSEReader:
    """Reads a streamed answer: asserts that it is one, then decodes it.

    Args:
        limits: Bounds one event, the number of events, and an error body.
        relay_oversize: Return an event above the limit in pieces instead of raising.
        phase: What the messages of errors begin with.
        redact: Takes secrets out of a provider's message.
        told: Returns message and code of an error body, as ``provider_error`` does.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        relay_oversize: bool,
        phase: str,
        redact: Callable[[str], str],
        told: Told | None = None,
    ) -> None:
        self._decoder = SSEDecoder(
            event_bytes=limits.event_bytes,
            frames=limits.frames,
            relay_oversize=relay_oversize,
        )
        self._error_bytes = limits.error_bytes
        self.phase = phase
        self._redact = redact
        self._told = told or provider_error
        self._content_type: str | None = None
        self._sniffed: bytes | None = b""
        self._foreign: bytearray | None = None

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head, None where the header is absent."""
        essence = (content_type or "").partition(";")[0].strip().lower()
        self._content_type = essence or None
        if essence == StreamMode.SSE.accept:
            self._sniffed = None
        elif essence:
            self._foreign = bytearray()

    def feed(self, data: bytes) -> list[Frame | Fragment]:
        """Return the frames that these bytes complete.

        Raises:
            UpstreamRefusedError: The body is an error of the provider in another form.
            StreamFlagError: The body is a JSON response.
            ProtocolError: The body is something else.
            SSEStreamLimitError: An event, or their number, is above its limit.
        """
        if self._sniffed is None:
            return self._decoder.feed(data)
        if self._foreign is None:
            self._sniffed += data
            start = self._sniffed.removeprefix(BOM).lstrip(b"\r\n")
            if start.startswith(_SSE_STARTS):
                data, self._sniffed = self._sniffed, None
                return self._decoder.feed(data)
            undecided = BOM.startswith(self._sniffed) or (
                len(self._sniffed) <= _SNIFF_BYTES and any(p.startswith(start) for p in _SSE_STARTS)
            )
            if undecided:
                return []
            data, self._foreign = self._sniffed, bytearray()
        self._foreign += data
        if len(self._foreign) >= self._error_bytes:
            raise self._not_a_stream()
        return []

    def skip(self, frames: int, size: int, /) -> bool:
        """Count frames that were read past it; see ``Reader``."""
        return self._sniffed is None and self._decoder.skip(frames, size)

    relayed_by: str | None = "event_bytes"
    """The limit for which it returns fragments."""

    @property
    def failure(self) -> SottovoceError | None:
        """The limit that the last bytes reached, after the frames in front of it."""
        return self._decoder.failure

    def finish(self) -> list[Frame | Fragment]:
        """Return what the end of the body completes.

        Raises:
            UpstreamError: The body was empty.
            SottovoceError: As ``feed`` does.
        """
        if self._foreign is not None:
            raise self._not_a_stream()
        if self._sniffed is not None:
            if self._sniffed.strip():
                self._foreign = bytearray(self._sniffed)
                raise self._not_a_stream()
            raise UpstreamError(f"{self.phase}: the upstream's stream was empty")
        return self._decoder.finish()

    def _not_a_stream(self) -> SottovoceError:
        body = bytes(self._foreign or b"")
        what = self._content_type or "an unnamed content type"
        try:
            value = jsontext.loads(body[: self._error_bytes])
        except ValueError:
            if not body.strip():
                return UpstreamError(f"{self.phase}: the upstream answered a stream with nothing")
            return ProtocolError(
                f"{self.phase}: the upstream answered a stream request with {what}, not with "
                "text/event-stream; check the upstream's base_url"
            )
        message, code = self._told(value)
        if message:
            text = self._redact(message)[:_MESSAGE_CHARACTERS]
            return UpstreamRefusedError(
                f"{self.phase}: the upstream answered a stream request with an error: {text}",
                status=502,
                code=code,
                upstream_body=body,
            )
        return StreamFlagError(
            f"{self.phase}: stream flag and consumer disagree: stream=true was sent, the "
            f"upstream answered {what}"
        )


class JSONReader:
    """Reads an answer that comes as one JSON body, as the events that it stands for.

    Args:
        limits: Bounds the body and an error body.
        relay: The turn is only observed: what is no response, or too large, passes as it is.
        phase: What the messages of errors begin with.
        redact: Takes secrets out of a provider's message.
    """

    failure: SottovoceError | None = None
    relayed_by: str | None = None
    """The limit for which it returns fragments; None where the body is no response."""

    def __init__(
        self, limits: Limits, *, relay: bool, phase: str, redact: Callable[[str], str]
    ) -> None:
        self._limit = limits.retained_bytes
        self._relay = relay
        self.phase = phase
        self._redact = redact
        self._relaying = False
        self._parts: list[bytes] = []
        self._size = 0

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head, None where the header is absent.

        Raises:
            StreamFlagError: A stream came.
        """
        essence = (content_type or "").partition(";")[0].strip().lower()
        if self._relay:
            self._relaying = essence not in {StreamMode.JSON.accept, ""}
        elif essence == StreamMode.SSE.accept:
            raise StreamFlagError(
                f"{self.phase}: stream flag and consumer disagree: stream=false was sent, the "
                f"upstream answered {essence}"
            )

    def feed(self, data: bytes) -> list[Frame | Fragment]:
        """Keep bytes of the body; return them as fragments where it only passes.

        Raises:
            SSEStreamLimitError: The body is larger than what may be retained.
        """
        if self._relaying:
            return [Fragment(data, None, last=False)]
        self._parts.append(data)
        self._size += len(data)
        if self._size <= self._limit:
            return []
        if not self._relay:
            raise SSEStreamLimitError(
                "Responses retained state exceeded byte limit", limit="retained_bytes"
            )
        self._relaying = True
        self.relayed_by = "retained_bytes"
        return [Fragment(b"".join(self._parts), None, last=False)]

    def skip(self, _frames: int, _size: int, /) -> bool:
        """Say that it reads everything itself."""
        return False

    def finish(self) -> list[Frame | Fragment]:
        """Return the events that the body stands for, or the body as one fragment.

        Raises:
            SottovoceError: The body is none that the client could use.
        """
        if self._relaying:
            return [Fragment(b"", None, last=True)]
        body = b"".join(self._parts)
        try:
            value = jsontext.loads(body)
        except ValueError:
            value = None
        if isinstance(value, dict) and (kind := _TERMINAL_OF.get(str(value.get("status")))):
            output = value.get("output")
            if isinstance(output, list) and isinstance(value.get("id"), str):
                return _events_of(kind, value, body)
        if self._relay:
            return [Fragment(body, None, last=True)]
        if not body.strip():
            raise UpstreamError(f"{self.phase}: the upstream answered with nothing")
        message, code = provider_error(value)
        if message:
            raise UpstreamRefusedError(
                f"{self.phase}: the upstream answered with an error: "
                f"{self._redact(message)[:_MESSAGE_CHARACTERS]}",
                status=502,
                code=code,
                upstream_body=body,
            )
        raise ProtocolError(f"{self.phase}: the upstream's answer is no response object")


_TERMINAL_OF: Final = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}


def terminal_prefix(kind: str) -> bytes:
    """Return what stands in front of a JSON body where it is read as a terminal event."""
    return b'{"type":"' + kind.encode() + b'","response":'


def _events_of(kind: str, response: dict[str, Any], body: bytes) -> list[Frame | Fragment]:
    created = {**response, "status": "in_progress", "output": [], "usage": None, "error": None}
    frames: list[Frame | Fragment] = [_frame("response.created", {"response": created})]
    for index, item in enumerate(response["output"]):
        if isinstance(item, dict) and isinstance(item.get("type"), str):
            at = {"output_index": index}
            begun = {key: item[key] for key in _OF_BEGUN if key in item}
            begun |= {"status": "in_progress", **bare_item(item["type"])}
            frames.append(_frame("response.output_item.added", at | {"item": begun}))
            frames.append(_frame("response.output_item.done", at | {"item": item}))
    data = terminal_prefix(kind) + body + b"}"
    return [*frames, Frame(data, kind, data, sound=True)]


_OF_BEGUN: Final = ("id", "type", "role", "name", "call_id", "execution")
"""What an item has when it begins: whose call it is must be known at once."""


def _frame(kind: str, members: dict[str, Any]) -> Frame:
    data = jsontext.dumps({"type": kind, **members})
    return Frame(data, kind, data, sound=True)


def provider_error(value: object) -> tuple[str, str | None]:
    """Return message and code of a provider's error body; an empty message where it is none.

    Shapes seen: ``{"error": {"message", "code", "type"}}``, ``{"error": "text"}``,
    ``{"detail": "text"}``, ``{"message": "text", "code"}``, and FastAPI's list of details.
    """
    if not isinstance(value, dict):
        return "", None
    error = value.get("error")
    if isinstance(error, dict):
        message = error.get("message")
        code = error.get("code") or error.get("type")
    elif error:
        message, code = error, value.get("code")
    else:
        message, code = value.get("detail") or value.get("message"), value.get("code")
        if isinstance(message, list):
            message = "; ".join(str(one.get("msg")) for one in message if isinstance(one, dict))
    if isinstance(message, dict):
        message = message.get("message")
    text = message if isinstance(message, str) else ""
    if not text and error:
        text = "the provider gave no message"
    return text, str(code) if code is not None and text else None
