"""A conversation with a model through the proxy: the client behind ``ask`` and ``chat``."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx

from pipeline import jsontext
from pipeline.errors import SottovoceError
from pipeline.lifecycle import TERMINALS
from pipeline.sse import Frame, SSEDecoder
from proxy.cli_output import CliError
from telemetry.redact import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proxy.local import Place

MESSAGES: Final = 40
"""Messages of a conversation that are sent again; the oldest are left out first."""
_EVENT_BYTES: Final = 16 << 20
_FRAMES: Final = 1_000_000
_SILENCE: Final = httpx.Timeout(10.0, read=120.0)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")
_TOLD_AS: Final = {
    "x-sottovoce-session": "--session",
    "x-sottovoce-project": "--project",
    "authorization": "OPENAI_API_KEY",
    "x-sottovoce-key": "the access token",
}
_PLAIN: Final = ("message", "reasoning")
_HINTS: Final = {
    401: "set OPENAI_API_KEY, or api_key_env of the upstream in sottovoce.toml",
    403: "the credential may not do this: check OPENAI_API_KEY",
    404: "check the model's name and the upstream's base_url",
    429: "wait a little, or check the quota of the credential",
}
_HINT: Final = "`sottovoce config show` prints where requests go"


@dataclass(slots=True)
class Answer:
    """What came back.

    Attributes:
        text: What the model said.
        output: The items of the response.
        model: As it was reported.
        usage: As it was reported.
        status: ``completed`` or ``incomplete``.
        reason: Why it is incomplete.
        turn: The proxy's name for the turn.
        tools: The hidden calls of the turn: name and seconds.
    """

    text: str = ""
    output: list[dict[str, Any]] = field(default_factory=list)
    model: str | None = None
    usage: dict[str, Any] | None = None
    status: str = "completed"
    reason: str | None = None
    turn: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)


class Talk:
    """One conversation.

    Args:
        place: The proxy.
        model: Who is asked.
        session: Names the conversation.
        project: What memory is ranked by; the proxy's default if None.
        on_text: Gets the answer as it comes.
        on_activity: Gets a line for each tool that starts or ends.
    """

    def __init__(
        self,
        place: Place,
        *,
        model: str,
        session: str,
        project: str | None,
        on_text: Callable[[str], None],
        on_activity: Callable[[str], None],
    ) -> None:
        self.history: list[dict[str, Any]] = []
        self._place = place
        self._model = model
        self._on_text = on_text
        self._on_activity = on_activity
        named = {
            **place.headers,
            "x-sottovoce-recall": "on",
            "x-sottovoce-session": session,
        }
        if project is not None:
            named["x-sottovoce-project"] = project
        self._headers = {name.encode(): header_value(name, text) for name, text in named.items()}

    def ask(self, question: str) -> Answer:
        """Ask, and wait for the end of the answer. The history grows only if it comes.

        Raises:
            CliError: There is no answer; the text says why.
        """
        asked = [*self.history, {"role": "user", "content": question}]
        body = {"model": self._model, "input": asked, "stream": True, "store": False}
        try:
            with httpx.Client(trust_env=False, timeout=_SILENCE) as client:
                answer = self._stream(client, jsontext.dumps(body))
        except httpx.HTTPError as error:
            problem = f"the proxy at {self._place.url} broke off: {type(error).__name__}"
            raise CliError(problem, hint="`sottovoce serve` shows what it says") from None
        self.history = kept([*asked, *answer.output])
        return answer

    def _stream(self, client: httpx.Client, body: bytes) -> Answer:
        url = f"{self._place.url}/v1/responses"
        headers = {**self._headers, b"content-type": b"application/json"}
        answer = Answer()
        with client.stream("POST", url, content=body, headers=headers) as response:
            if response.status_code != 200:
                raise refused(response.status_code, response.read())
            answer.turn = response.headers.get("x-sottovoce-turn")
            with self._following(answer):
                for event in events(response.iter_bytes()):
                    self._take(event, answer)
                    if event["type"] in TERMINALS:
                        return answer
        raise CliError("the answer broke off before its end", hint="ask again")

    def _take(self, event: dict[str, Any], answer: Answer) -> None:
        match event:
            case {"type": "response.output_text.delta" | "response.refusal.delta", "delta": str()}:
                answer.text += event["delta"]
                self._on_text(event["delta"])
            case {"type": "response.output_item.added", "item": {"type": str() as kind}}:
                if kind not in _PLAIN:
                    self._on_activity(f"{event['item'].get('name') or kind} …")
            case {"type": "response.failed", "response": {"error": {"message": message}}}:
                raise CliError(redact(f"the model failed: {message}"), hint=_HINT)
            case {"type": "response.failed"}:
                raise CliError("the model failed and gave no reason", hint=_HINT)
            case {"type": "response.completed" | "response.incomplete", "response": dict() as end}:
                answer.output = [one for one in end.get("output") or [] if isinstance(one, dict)]
                answer.model, answer.usage = end.get("model"), end.get("usage")
                answer.status = str(end.get("status"))
                answer.reason = (end.get("incomplete_details") or {}).get("reason")

    @contextlib.contextmanager
    def _following(self, answer: Answer) -> Iterator[None]:
        """Show the hidden tools of a turn meanwhile: the answer itself knows nothing of them."""
        thread = threading.Thread(target=self._follow, args=(answer,), daemon=True)
        if answer.turn is not None:
            thread.start()
        yield
        if answer.turn is not None:
            thread.join(1.0)

    def _follow(self, answer: Answer) -> None:
        url = f"{self._place.url}/api/turns/{answer.turn}/activity"
        with (
            contextlib.suppress(httpx.HTTPError, ValueError),
            httpx.stream(
                "GET", url, headers=self._headers, trust_env=False, timeout=_SILENCE
            ) as lines,
        ):
            if lines.status_code != 200:
                return
            for line in lines.iter_lines():
                told = json.loads(line)
                if told["state"] == "ended":
                    answer.tools.append({"tool": told["tool"], "seconds": told["seconds"]})
                    self._on_activity(f"{told['tool']} took {told['seconds']:.3f} s")
                else:
                    self._on_activity(f"{told['tool']} …")


def events(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream.

    Raises:
        CliError: It is not what a Responses stream is made of.
    """
    decoder = SSEDecoder(event_bytes=_EVENT_BYTES, frames=_FRAMES)
    try:
        for piece in pieces:
            for frame in decoder.feed(piece):
                if isinstance(frame, Frame) and frame.data and frame.data != b"[DONE]":
                    event = jsontext.loads(frame.data)
                    if isinstance(event, dict) and isinstance(event.get("type"), str):
                        yield event
    except (ValueError, SottovoceError) as error:
        raise CliError(f"the answer can't be read: {error}", hint=_HINT) from None


def header_value(name: str, text: str) -> bytes:
    """Return a text as a header carries it.

    Raises:
        CliError: No header can carry it.
    """
    if _CONTROLS.search(text):
        what = _TOLD_AS.get(name, name)
        hint = "it is one line without control characters"
        raise CliError(f"{what} has a line break or another control character", hint=hint)
    return text.encode("utf-8", "surrogateescape")


def refused(status: int, body: bytes) -> CliError:
    """Return the error for an answer that is none."""
    try:
        error = jsontext.loads(body)["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = "no reason was given"
    return CliError(redact(f"refused with {status}: {message}"), hint=_HINTS.get(status, _HINT))


def kept(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is sent again: the last messages, beginning with one of the user."""
    history = history[-MESSAGES:]
    asked = [at for at, item in enumerate(history) if item.get("role") == "user"]
    return history[asked[0] :] if asked else []
