"""Ollama's chat back: JSON lines, or one of them, as the events of a response.

Every line has a piece of the message; the last one is ``done`` and has the counts. Calls come
whole, mostly without ids: they get some that are made up, which never go back. The reason of the
last line says ``stop`` in spite of calls, and any line may be an error instead.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from pipeline.errors import ProtocolError
from pipeline.jsontext import dumps
from proxy.providers import counts
from proxy.providers.translating import DialectStream

if TYPE_CHECKING:
    from proxy.providers.base import Json
    from proxy.providers.translating import Answering

_REASONS: Final = {"length": "max_output_tokens"}


class OllamaStream(DialectStream):
    """Translates one answer."""

    def __init__(self, answering: Answering) -> None:
        super().__init__(answering)
        self._thinking: list[str] = []
        self._called = False
        self._usage: Json | None = None

    def take(self, value: Json) -> None:
        """Take one line.

        Raises:
            UpstreamRefusedError: The answer begins with an error.
        """
        if value.get("error"):
            self._end_thought()
            self.fail(value)
            return
        if not self.writer.begun:
            self.writer.begin(
                value, model=value.get("model"), created_at=_seconds(value.get("created_at"))
            )
        message = value.get("message")
        if isinstance(message, dict):
            self._take_message(message)
        if value.get("done") is True:
            self._end(value)

    def take_whole(self, value: Json) -> None:
        """Take an answer that is one body: one line that has everything.

        Raises:
            UpstreamRefusedError: It is an error.
            ProtocolError: It is no answer.
        """
        if not value.get("error") and not isinstance(value.get("message"), dict):
            raise ProtocolError(f"{self.phase}: the upstream's answer has no message")
        self.take({**value, "done": True})

    def end(self, *, marked: bool) -> None:
        """Take the end of the body: an answer without its last line was cut."""

    def usage(self) -> Json | None:
        """Return the counts of the last line."""
        return self._usage

    def _take_message(self, message: Json) -> None:
        writer = self.writer
        if isinstance(thinking := message.get("thinking"), str) and thinking:
            self._thinking.append(thinking)
            writer.think(thinking)
        if isinstance(text := message.get("content"), str) and text:
            self._end_thought()
            writer.text(text)
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            match call:
                case {"function": {"name": str() as name, **rest}}:
                    self._take_call(name, rest.get("arguments"), call.get("id"))
                case _:
                    pass

    def _take_call(self, name: str, arguments: object, call_id: object) -> None:
        self._end_thought()
        self._called = True
        call = self.writer.call(
            self.toolbox.meant_by(name), call_id if isinstance(call_id, str) else ""
        )
        text = arguments if isinstance(arguments, str) else dumps(arguments or {}).decode()
        self.writer.add(call, text)
        call.close()

    def _end_thought(self) -> None:
        """Close the thinking with what Ollama must see of it again."""
        if self._thinking:
            thinking = "".join(self._thinking)
            self._thinking.clear()
            self.close_reasoning({"thinking": thinking})

    def _end(self, value: Json) -> None:
        self._end_thought()
        reason = None if self._called else _REASONS.get(str(value.get("done_reason")))
        self._usage = counts.of_ollama(value)
        self.writer.finish(reason, self._usage)


def _seconds(text: object) -> int | None:
    """Return the Unix time of an ISO date with more digits than are read everywhere."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text[:19] + "+00:00")
    except ValueError:
        return None
    return int(time.timestamp())
