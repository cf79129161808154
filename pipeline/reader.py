"""How an upstream is asked for its answer, and how that answer is read: one value decides both.

``StreamMode`` is what ``body["stream"]`` says and which reader consumes the body. Nothing else
sets either, so a follow-up can't ask for one form and wait for the other.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pipeline import jsontext
from pipeline.errors import (
    ProtocolError,
    SottovoceError,
    StreamFlagError,
    UpstreamError,
    UpstreamRefusedError,
)
from pipeline.sse import Fragment, Frame, SSEDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.limits import Limits

_SSE_STARTS: Final = (b":", b"event", b"data", b"id", b"retry")
_SNIFF_BYTES: Final = 64
_BOM: Final = b"\xef\xbb\xbf"
_MESSAGE_CHARACTERS: Final = 500


class StreamMode(StrEnum):
    """Whether an answer is streamed."""

    SSE = "sse"
    JSON = "json"

    @property
    def flag(self) -> bool:
        """The value of ``stream`` in the request."""
        return self is StreamMode.SSE

    @property
    def accept(self) -> str:
        """The media type that the answer must have."""
        return "text/event-stream" if self is StreamMode.SSE else "application/json"


class SSEReader:
    """Reads a streamed answer: asserts that it is one, then decodes it.

    Args:
        limits: Bounds one event, the number of events, and an error body.
        relay_oversize: Return an event above the limit in pieces instead of raising.
        phase: What the messages of errors begin with.
        redact: Takes secrets out of a provider's message.
    """

    def __init__(
        self, limits: Limits, *, relay_oversize: bool, phase: str, redact: Callable[[str], str]
    ) -> None:
        self._decoder = SSEDecoder(
            event_bytes=limits.event_bytes,
            frames=limits.frames,
            relay_oversize=relay_oversize,
        )
        self._error_bytes = limits.error_bytes
        self._phase = phase
        self._redact = redact
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
            start = self._sniffed.removeprefix(_BOM).lstrip(b"\r\n")
            if start.startswith(_SSE_STARTS):
                data, self._sniffed = self._sniffed, None
                return self._decoder.feed(data)
            if len(start) < len(b"event") and any(p.startswith(start) for p in _SSE_STARTS):
                return []
            data, self._foreign = self._sniffed, bytearray()
        self._foreign += data
        if len(self._foreign) >= self._error_bytes:
            raise self._not_a_stream()
        return []

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
            raise UpstreamError(f"{self._phase}: the upstream's stream was empty")
        return self._decoder.finish()

    def _not_a_stream(self) -> SottovoceError:
        body = bytes(self._foreign or b"")
        what = self._content_type or "an unnamed content type"
        try:
            value = jsontext.loads(body[: self._error_bytes])
        except ValueError:
            if not body.strip():
                return UpstreamError(f"{self._phase}: the upstream answered a stream with nothing")
            return ProtocolError(
                f"{self._phase}: the upstream answered a stream request with {what}, not with "
                "text/event-stream; check the upstream's base_url"
            )
        message, code = provider_error(value)
        if message:
            text = self._redact(message)[:_MESSAGE_CHARACTERS]
            return UpstreamRefusedError(
                f"{self._phase}: the upstream answered a stream request with an error: {text}",
                status=502,
                code=code,
                upstream_body=body,
            )
        return StreamFlagError(
            f"{self._phase}: stream flag and consumer disagree: stream=true was sent, the "
            f"upstream answered {what}"
        )


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
