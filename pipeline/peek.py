"""Looks into the beginning of a 2xx answer: does it fail before the client could see anything?

Some upstreams say 200, begin a response, and then fail. While another upstream could still take
the request, the first events are read ahead; nothing of them is lost, the turn reads them again.
Created, queued and in progress say nothing yet, nor do quota records and comments. Any other event
is an answer, and a failure from then on is the client's to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.errors import (
    ProtocolError,
    SottovoceError,
    SSEStreamLimitError,
    UpstreamError,
    UpstreamRefusedError,
)
from pipeline.sse import Fragment
from pipeline.taxonomy import (
    MESSAGE_CHARACTERS,
    ErrorKind,
    Failure,
    classify_code,
    failed_inside,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.reader import Reader
    from pipeline.sse import Frame

_SILENT: Final = frozenset(
    {"response.created", "response.queued", "response.in_progress", "codex.rate_limits"}
)
_DONE: Final = b"[DONE]"
_TERMINALS: Final = frozenset({"response.failed", "response.done"})


class Peek:
    """Reads the beginning of one answer.

    Args:
        reader: A reader of its own, made like the turn's.
        byte_limit: How much is read ahead.
        redact: Takes secrets out of the provider's message.

    Attributes:
        over: It is known: either ``failure`` says what happened, or the answer is good.
        failure: How the answer failed.
    """

    def __init__(self, reader: Reader, *, byte_limit: int, redact: Callable[[str], str]) -> None:
        self.over = False
        self.failure: Failure | None = None
        self._reader = reader
        self._left = byte_limit
        self._redact = redact

    def __repr__(self) -> str:
        state = "open" if not self.over else "good" if self.failure is None else "failed"
        return f"<Peek {state}>"

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head, None where the header is absent."""
        try:
            self._reader.head(content_type)
        except SottovoceError as error:
            self._fail(error)

    def feed(self, data: bytes) -> None:
        """Take bytes of the body."""
        self._left -= len(data)
        try:
            self._look(self._reader.feed(data))
        except SottovoceError as error:
            self._fail(error)
        if not self.over and self._reader.failure is not None:  # behind frames that say nothing
            self._fail(self._reader.failure)
        if self._left <= 0:
            self.over = True

    def finish(self) -> None:
        """Take the end of the body: an answer that says nothing until here is none."""
        try:
            self._look(self._reader.finish())
        except SottovoceError as error:
            self._fail(error)
        if not self.over:
            self.broken(UpstreamError("the upstream's stream ended without a terminal event"))

    def broken(self, error: SottovoceError) -> None:
        """Take the news that the body was cut."""
        self.over = True
        self.failure = failed_inside(error, ErrorKind.NETWORK)

    def _look(self, frames: Iterable[Frame | Fragment]) -> None:
        for frame in frames:
            if self.over:
                return
            if isinstance(frame, Fragment):
                self.over = True
            elif frame.data and frame.data.strip() != _DONE:
                self._look_at(frame.event, frame.data)

    def _look_at(self, name: str | None, data: bytes) -> None:
        try:
            event = jsontext.loads(data)
        except ValueError:
            event = None
        event = event if isinstance(event, dict) else {}
        kind = event.get("type") or name
        if kind in _SILENT:
            return
        self.over = True
        error = _error_of(kind, event)
        if error is not None:
            code = error.get("code") or error.get("type")
            message = str(error.get("message") or "the provider gave no message")
            self.failure = failed_inside(
                UpstreamError(
                    self._redact(message)[:MESSAGE_CHARACTERS],
                    code=code if isinstance(code, str) else None,
                ),
                classify_code(code),
            )

    def _fail(self, error: SottovoceError) -> None:
        """Take what the reader found wrong with the answer as a whole."""
        self.over = True
        match error:
            case SSEStreamLimitError():
                return  # the turn's to judge: it may be allowed to pass
            case UpstreamRefusedError() if classify_code(error.code) is not ErrorKind.UNKNOWN:
                kind = classify_code(error.code)
            case UpstreamError() | ProtocolError():
                kind = ErrorKind.BAD_REQUEST
            case _:
                kind = ErrorKind.UNKNOWN
        self.failure = failed_inside(error, kind)


def _error_of(kind: object, event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the error that an event tells of, None if it is another event."""
    if kind == "error":
        nested = event.get("error")
        return nested if isinstance(nested, dict) else event
    if kind is None and isinstance(event.get("error"), dict):
        return dict(event["error"])
    if kind not in _TERMINALS:
        return None
    response = event.get("response")
    response = response if isinstance(response, dict) else {}
    if kind != "response.failed" and response.get("status") != "failed":
        return None
    error = response.get("error")
    return error if isinstance(error, dict) else {}
