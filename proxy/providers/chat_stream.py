"""Chat completions back: chunks, or a whole completion, as the events of a response.

What real upstreams do, beside what is documented:

- The first chunk has no choices, no id and no model (Azure); usage comes with the finish reason,
  in a chunk without choices, in every chunk, or twice. The last one counts.
- Tool deltas are keyed by an index that may begin at 1, be the same for several calls or be
  missing (``chat_calls`` tells what belongs together). Their later ids and names may be empty.
  Whole calls come in one chunk, arguments as an object.
- A chunk has a whole ``message`` in the place of a delta, or once more at the end.
- Reasoning stands in ``reasoning_content``, ``reasoning``, ``reasoning_details``, or as parts of
  the content. It goes back in the field in which it came.
- An error comes in the middle of a 200, and a finish reason says ``stop`` in spite of calls.
- Nothing has to follow the finish reason, not even ``[DONE]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import ProtocolError
from pipeline.jsontext import dumps
from proxy.providers import counts
from proxy.providers.chat_calls import Calls
from proxy.providers.translating import DialectStream

if TYPE_CHECKING:
    from proxy.providers.base import Json
    from proxy.providers.chat_calls import Call, Place
    from proxy.providers.translating import Answering

_REASONING: Final = ("reasoning_content", "reasoning")
DETAILS: Final = "reasoning_details"
DELTA: Final = "delta"
MESSAGE: Final = "message"
LEGACY: Final = "function_call"
_REASONS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ChatStream(DialectStream):
    """Translates one completion.

    Attributes:
        touched: The calls that the last chunk said something of, by its entries; None for an
            entry that says nothing.
        legacy: The call of its ``function_call``.
        spoke: The output index of the message that its text belongs to.
        part: The member of its choice that was read.
    """

    def __init__(self, answering: Answering) -> None:
        super().__init__(answering)
        self.touched: list[Call | None] = []
        self.legacy: Call | None = None
        self.spoke: int | None = None
        self.part = DELTA
        self._calls = Calls(tool.flat for tool in self.toolbox.tools)
        self._thoughts: dict[str, Any] = {}
        self._spoken: dict[str, list[str]] = {}
        self._usage: Json | None = None
        self._finish_reason: str | None = None

    # --- What comes -----------------------------------------------------------------------

    def take(self, value: Json) -> None:
        """Take one chunk.

        Raises:
            UpstreamRefusedError: The answer begins with an error.
            ProtocolError: A call was never named.
        """
        choice = first_choice(value)
        self.touched, self.legacy, self.spoke, self.part = [], None, None, DELTA
        if value.get("error") or choice.get("error"):
            self._end_thought()
            self.fail(value if value.get("error") else choice)
            return
        self._usage = counts.of_chat(_usage_of(value)) or self._usage
        if not self.writer.begun:
            if not _has_choice(value):
                return  # not the beginning of an answer yet, and perhaps there is none
            self.writer.begin(
                value.get("id") or value,
                model=value.get("model"),
                created_at=value.get("created"),
            )
        self._take_choice(choice)
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self._finish_reason = reason
            self._end_items()

    def take_whole(self, value: Json) -> None:
        """Take a completion that is one body: all of it in one chunk.

        Raises:
            UpstreamRefusedError: It is an error.
            ProtocolError: It has no message.
        """
        if not value.get("error") and not first_choice(value):
            raise self._no_message()
        self.take(value)
        self.end(marked=True)

    def end(self, *, marked: bool) -> None:
        """Take the end of the answer; without a mark or a finish reason it was cut.

        Raises:
            ProtocolError: It was none.
        """
        writer = self.writer
        if writer.ended:
            return
        if not writer.begun:
            if marked:
                raise self._no_message()
            return
        if marked or self._finish_reason is not None:
            self._end_items()
            writer.finish(self._reason(), self._usage)

    def _no_message(self) -> ProtocolError:
        return ProtocolError(f"{self.phase}: the upstream's answer has no message")

    def usage(self) -> Json | None:
        """Return the last usage that was told."""
        return self._usage

    # --- Deltas ---------------------------------------------------------------------------

    def _take_choice(self, choice: Json) -> None:
        """Take the delta, else the message; but not one that says again what deltas said."""
        delta, message = choice.get(DELTA), choice.get(MESSAGE)
        if isinstance(delta, dict) and (delta or not isinstance(message, dict)):
            self._take_delta(delta)
        elif isinstance(message, dict) and not self._calls and not self.writer.said:
            self.part = MESSAGE
            self._take_delta(message)

    def _take_delta(self, delta: Json) -> None:
        self._take_reasoning(delta)
        match delta.get("content"):
            case str() as text if text:
                self._say(text)
            case list() as parts:
                for part in parts:
                    self._take_part(part)
            case _:
                pass
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._end_thought()
            self.writer.refusal(refusal)
            self.spoke = self.writer.speaking
        calls = delta.get("tool_calls")
        for at, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                # The calls of a message are told apart by where they stand.
                place = at if self.part == MESSAGE else _place(call.get("index"))
                self.touched.append(self._take_call(call, place))
            else:
                self.touched.append(None)
        if isinstance(legacy := delta.get(LEGACY), dict):
            self.legacy = self._take_call({"function": legacy}, LEGACY)

    def _take_reasoning(self, delta: Json) -> None:
        field = next((f for f in _REASONING if isinstance(delta.get(f), str) and delta[f]), None)
        details = delta.get(DETAILS)
        if isinstance(details, list) and details:
            self._think()
            self._thoughts.setdefault(DETAILS, []).extend(details)
        if field is not None:
            self._think()
            self._spoken.setdefault(field, []).append(delta[field])
            self.writer.think(delta[field])
        elif isinstance(details, list):
            for detail in details:
                self.writer.think(_text_of(detail))

    def _take_part(self, part: object) -> None:
        """Take a part of a content that is a list, as reasoning models of Mistral send it."""
        match part:
            case {"type": "text", "text": str() as text}:
                self._say(text)
            case {"type": "thinking", "thinking": thinking}:
                self._think()
                self._thoughts.setdefault("content", []).append(part)
                if isinstance(thinking, list):
                    for one in thinking:
                        self.writer.think(_text_of(one))
                else:
                    self.writer.think(str(thinking))
            case _:
                pass

    def _say(self, text: str) -> None:
        self._end_thought()
        self.writer.text(text)
        self.spoke = self.writer.speaking

    def _think(self) -> None:
        self.writer.reasoning()

    def _end_thought(self) -> None:
        """Close reasoning with what the upstream must see of it again."""
        if self._thoughts or self._spoken:
            spoken = {field: "".join(texts) for field, texts in self._spoken.items()}
            self.close_reasoning({**spoken, **self._thoughts})
            self._thoughts, self._spoken = {}, {}

    # --- Calls ----------------------------------------------------------------------------

    def _take_call(self, delta: Json, place: Place) -> Call:
        function = delta.get("function")
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = dumps(arguments).decode("utf-8", "surrogatepass")
        call, arguments = self._calls.take(
            place,
            _string(delta.get("id")),
            _string(function.get("name")),
            _string(arguments),
            self.touched,
        )
        if isinstance(extra := delta.get("extra_content"), dict):
            call.extra |= extra
        self._add(call, arguments)
        return call

    def _add(self, call: Call, arguments: str) -> None:
        """Write arguments of a call, and announce it first: by its name, as soon as that is known.

        An id that has not come by the first argument is not waited for.
        """
        if call.written is None:
            call.arguments += arguments
            if not self._calls.is_named(call) or not (call.sign or call.arguments):
                return
            self._announce(call)
        elif arguments:
            self.writer.add(call.written, arguments)

    def _announce(self, call: Call) -> None:
        if call.extra and call.call_id:
            self.writer.reasoning()
            self._thoughts.setdefault("calls", {})[call.call_id] = call.extra
        self._end_thought()
        call.written = self.writer.call(self.toolbox.meant_by(call.name), call.call_id)
        self.writer.add(call.written, call.arguments)
        call.arguments = ""

    # --- The end --------------------------------------------------------------------------

    def _end_items(self) -> None:
        """Close every item, so that clients can begin to run calls before usage has come."""
        self._end_thought()
        for call in self._calls:
            if call.written is None:
                if not call.name:
                    raise ProtocolError(f"{self.phase}: the upstream never named a call")
                self._announce(call)
        self.writer.close_prose("incomplete" if self._reason() else "completed")
        self.writer.close_calls(cut_off=self._reason() is not None)

    def _reason(self) -> str | None:
        """Return why the answer is incomplete; whole calls are worth more than any reason."""
        reason = _REASONS.get(self._finish_reason or "")
        return None if reason is None or self.writer.has_whole_call else reason


def first_choice(value: Json) -> Json:
    """Return the first choice, the only one that a turn ever asks for; an empty one if absent."""
    at = first_choice_at(value)
    choice: Json = {} if at is None else value["choices"][at]
    return choice


def first_choice_at(value: Json) -> int | None:
    """Return where the first choice stands among those of a chunk, None if it is not there."""
    choices = value.get("choices")
    for at, choice in enumerate(choices if isinstance(choices, list) else ()):
        if isinstance(choice, dict) and choice.get("index") in (None, 0):
            return at
    return None


def _has_choice(value: Json) -> bool:
    """Say whether a chunk has a choice, whichever of several it is."""
    choices = value.get("choices")
    return isinstance(choices, list) and any(isinstance(one, dict) for one in choices)


def _place(index: object) -> int | None:
    return index if type(index) is int else None


def _usage_of(value: Json) -> object:
    match value:
        case {"usage": dict() as usage}:
            return usage
        case {"x_groq": {"usage": dict() as usage}}:
            return usage
        case _:
            return None


def _text_of(detail: object) -> str:
    match detail:
        case {"text": str() as text} | {"summary": str() as text}:
            return text
        case _:
            return ""


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
