"""What a chat completion says that passes as it came: for memory, figures and telemetry.

An observer changes nothing and ends nothing. What it can't read, or what is above a limit, ends
the observation alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.errors import SottovoceError
from pipeline.jsontext import loads
from pipeline.outcome import Ending, TurnOutcome
from pipeline.sse import Frame, SSEDecoder
from pipeline.usage import usable_usage
from proxy.chat.completion import usage_from

if TYPE_CHECKING:
    from pipeline.limits import Limits
    from proxy.chat.messages import Json

_INCOMPLETE = frozenset({"length", "content_filter"})


class ChatObserver:
    """Reads along.

    Args:
        streamed: Whether the answer is a stream.
        limits: Bounds what is kept.

    Attributes:
        truncated_by: The limit that ended the observation, ``unreadable`` for what is no
            completion; None while it goes on.
    """

    def __init__(self, *, streamed: bool, limits: Limits) -> None:
        self.truncated_by: str | None = None
        self._left = limits.retained_bytes
        self._decoder = (
            SSEDecoder(event_bytes=limits.event_bytes, frames=limits.frames) if streamed else None
        )
        self._body = bytearray()
        self._texts: list[str] = []
        self._model: str | None = None
        self._reason: str | None = None
        self._usage: Json | None = None
        self._said_more = False
        self._ended = False
        self._failed = False

    def feed(self, data: bytes) -> None:
        """Take bytes of the answer."""
        if self.truncated_by is not None:
            return
        self._left -= len(data)
        if self._left < 0:
            self.truncated_by = "retained_bytes"
        elif self._decoder is None:
            self._body += data
        else:
            try:
                frames = self._decoder.feed(data)
            except SottovoceError:
                self.truncated_by = "event_bytes"
                return
            for frame in frames:
                if isinstance(frame, Frame) and frame.data:
                    self._take(frame.data)

    def finish(self) -> None:
        """Take the end of the body."""
        if self.truncated_by is None and self._decoder is None:
            self._take(bytes(self._body))
            self._ended = self.truncated_by is None

    def output(self) -> list[Json]:
        """Return what the assistant said, as items."""
        text = "".join(self._texts)
        if not text:
            return []
        part = {"type": "output_text", "text": text, "annotations": []}
        return [{"type": "message", "role": "assistant", "content": [part]}]

    def outcome(self, status: int | None, *, delivered: bool) -> TurnOutcome:
        """Return how it ended.

        Args:
            status: The upstream's; None where there was no answer.
            delivered: Whether the client got all of it.
        """
        reason = self._reason
        ending = Ending.COMPLETED
        if status is None or not 200 <= status < 300 or self._failed:
            ending = Ending.PROVIDER_FAILED
        elif not delivered:
            ending = Ending.CLIENT_DISCONNECT
        elif not self._ended and reason is None and self.truncated_by is None:
            ending = Ending.PROVIDER_FAILED
        elif reason in _INCOMPLETE:
            ending = Ending.INCOMPLETE
        empty = ending is Ending.COMPLETED and not self._texts and not self._said_more
        return TurnOutcome(
            ending,
            truncated_by=self.truncated_by,
            status=None if status is None or status < 300 else status,
            hops=1,
            spent=self._usage,
            context=self._usage,
            model=self._model,
            stop_reason=reason,
            empty=empty and self.truncated_by is None,
        )

    # --- What comes -----------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        if self.truncated_by is not None:
            return
        if data.strip() == b"[DONE]":
            self._ended = True
            return
        try:
            value = loads(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self.truncated_by = "unreadable"
            return
        self._failed = self._failed or bool(value.get("error"))
        if isinstance(model := value.get("model"), str) and model:
            self._model = model
        if isinstance(usage := value.get("usage"), dict):
            self._usage = usable_usage(usage_from(usage)) or self._usage
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (None, 0):
                self._take_choice(choice)

    def _take_choice(self, choice: Json) -> None:
        if isinstance(reason := choice.get("finish_reason"), str):
            self._reason = reason
        said: Any = choice.get("delta") or choice.get("message")
        if not isinstance(said, dict):
            return
        if isinstance(text := said.get("content"), str) and text:
            self._texts.append(text)
        named = ("refusal", "tool_calls", "function_call", "audio", "reasoning_content")
        self._said_more = self._said_more or any(said.get(name) for name in (*named, "reasoning"))
