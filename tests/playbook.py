"""Scripts of one turn: what happens goes in, what is asked for comes out, all in process.

Step by step, as a protocol is read::

    script = Playbook(turn(request()))
    script.expect(OpenUpstream)
    script.feed(opened()).expect()
    script.feed(chunk(body(stream(message("hi"))))).expect(CloseUpstream, Send, Send, Finish)

Or a whole turn, with the upstream's answers and the results of hidden calls given in advance::

    played = run_turn(hops=[stream(recall_call("c1", {"query": "x"})), stream(message("hi"))],
                      results={"c1": "found"})
    assert played.text == "hi"

Every turn that is played is held to what holds for all of them: see ``Performer``.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pipeline import commands as c
from pipeline import events as e
from pipeline.lifecycle import Dialect
from pipeline.limits import Budgets, Limits
from pipeline.options import TurnOptions
from pipeline.reader import StreamMode
from pipeline.request import HiddenTool, Request, declare, read_request
from pipeline.turn import Turn
from recall.tool import DECLARATION, NAME
from tests import builders
from tests.sse import parse_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pipeline.errors import SottovoceError
    from pipeline.outcome import TurnOutcome
    from tests.builders import Event, Item

    Body = bytes | Sequence[Event] | Callable[[dict[str, Any]], Sequence[Event]]
    Chunking = Callable[[bytes], Iterable[bytes]]

LIMITS: Final = Limits(
    stream_bytes=1 << 20,
    retained_bytes=1 << 19,
    deferred_bytes=1 << 17,
    hidden_bytes=1 << 17,
    event_bytes=1 << 18,
    frames=10_000,
    items=65_535,
    error_bytes=1 << 12,
)
BUDGETS: Final = Budgets(
    rounds=10,
    executions=24,
    result_bytes=1 << 16,
    extra_tokens=128_000,
    stalled_rounds=2,
    seconds=300.0,
)
TOOL: Final = HiddenTool(NAME, DECLARATION)
ID_KEY: Final = b"a key of the tests"
OPTIONS: Final = TurnOptions(
    limits=LIMITS,
    budgets=BUDGETS,
    dialect=Dialect.PUBLIC,
    mode=StreamMode.SSE,
    streamed=True,
    tools=(TOOL,),
    withhold_ciphertext=False,
    hold_text=False,
    report="sum",
    id_key=ID_KEY,
    turn_id="turn_1",
    created_at=1_790_000_000,
    redact=lambda text: text.replace("sk-secret", "[redacted]"),
)


# ------------------------------------------------------------------------------- the ingredients


def limits(**changes: int) -> Limits:
    """Return the limits of the tests with some of them changed."""
    return replace(LIMITS, **changes)


def budgets(**changes: float) -> Budgets:
    """Return the budgets of the tests with some of them changed."""
    return replace(BUDGETS, **changes)  # type: ignore[arg-type]  # counts are whole


def turn(request: Mapping[str, Any] | None = None, **options: Any) -> Turn:
    """Return a turn that was not started.

    Args:
        request: The client's request, a streamed one with a client tool by default.
        options: Members of ``TurnOptions``; without ``tools`` nothing is declared.
    """
    prepared, whole = prepare(request, **options)
    return Turn(prepared, whole)


def prepare(
    request: Mapping[str, Any] | None = None,
    **options: Any,  # members of TurnOptions
) -> tuple[Request, TurnOptions]:
    """Return the request as its upstream gets it, and the options of its turn."""
    body = dict(request if request is not None else builders.request())
    whole = replace(OPTIONS, **options)
    body["stream"] = whole.mode.flag
    prepared = read_request(builders.compact(body).encode("utf-8", "surrogatepass"))
    if not whole.tools:
        return prepared, whole
    declared = declare(prepared, *whole.tools)
    if "withhold_ciphertext" not in options:
        whole = replace(whole, withhold_ciphertext=declared.include_added)
    return declared.request, whole


def opened(
    status: int = 200, content_type: str | None = "text/event-stream", now: float = 0.0
) -> e.UpstreamOpened:
    return e.UpstreamOpened(status, content_type, now)


def chunk(data: bytes, now: float = 0.0) -> e.UpstreamChunk:
    return e.UpstreamChunk(data, now)


def ended(now: float = 0.0) -> e.UpstreamEnded:
    return e.UpstreamEnded(now)


def broken(error: SottovoceError, now: float = 0.0) -> e.UpstreamFailed:
    return e.UpstreamFailed(error, now)


def found(call_id: str, text: str, now: float = 0.0) -> e.ToolFinished:
    return e.ToolFinished(call_id, text, now)


def whole(data: bytes) -> list[bytes]:
    """Deliver a body at once."""
    return [data]


def bytewise(data: bytes) -> list[bytes]:
    """Deliver a body one byte at a time."""
    return [data[at : at + 1] for at in range(len(data))]


def framewise(data: bytes) -> list[bytes]:
    """Deliver a body one event at a time."""
    frames = [part + b"\n\n" for part in data.split(b"\n\n")]
    frames[-1] = frames[-1][:-2]
    return [frame for frame in frames if frame]


def cut_at(*places: int) -> Chunking:
    """Deliver a body in pieces, cut at these offsets."""

    def cut(data: bytes) -> list[bytes]:
        edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
        return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]

    return cut


@dataclass(frozen=True, slots=True)
class Answer:
    """How an upstream answers one hop."""

    body: bytes = b""
    status: int = 200
    content_type: str | None = "text/event-stream"
    refused: SottovoceError | None = None
    """There is no head but this."""
    cut: SottovoceError | None = None
    """The body doesn't end as announced, but like this."""


def says(*items: Item, **members: Any) -> Callable[[dict[str, Any]], list[Event]]:
    """Return an answer of these items that echoes its request's tools, as providers do.

    Args:
        items: In output order.
        members: For ``builders.stream``.
    """
    return lambda request: builders.stream(*items, echo=request, **members)


def answer(body: Body | Answer, request: Request, mode: StreamMode) -> Answer:
    """Return an answer to a request; events are written down as the mode asks for."""
    match body:
        case Answer():
            return body
        case bytes():
            return Answer(body, content_type=mode.accept)
    events = body(request.body) if callable(body) else body
    if mode is StreamMode.JSON:
        response = builders.compact(events[-1]["response"])
        return Answer(response.encode("utf-8", "surrogatepass"), content_type=mode.accept)
    return Answer(builders.body(events))


# ---------------------------------------------------------------------------------- performing


class Performer:
    """Performs commands as a driver does, and holds the turn to what every turn owes.

    Attributes:
        sent: Bytes for the client.
        ended: Whether its body ended.
        saved: The join records, in order.
        running: Hidden calls without a result.
        faulty: Whether something of ours is broken on purpose.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.faulty = False
        self.commands: list[c.Command] = []
        self.sent = b""
        self.ended = False
        self.open = False
        self.hop = 0
        self.requests: list[Request] = []
        self.running: dict[str, c.RunTool] = {}
        self.saved: list[c.SaveJoin] = []
        self.empty: c.ReportEmpty | None = None
        self.refused: SottovoceError | None = None
        self.relayed = False
        self.outcome: TurnOutcome | None = None

    def start(self) -> list[c.Command]:
        """Start the turn; return what it asked for."""
        return self.perform(self.turn.start())

    def happen(self, event: e.TurnEvent) -> list[c.Command]:
        """Let something happen; return what was asked for."""
        if isinstance(event, e.ToolFinished):
            self.running.pop(event.call_id, None)
        return self.perform(self.turn.receive(event))

    def perform(self, commands: list[c.Command]) -> list[c.Command]:
        """Perform what was asked for."""
        for command in commands:
            assert self.outcome is None, f"{command} after the end"
            self.commands.append(command)
            self._perform(command)
        if self.turn.fault is not None and not self.faulty:
            raise self.turn.fault
        assert (self.outcome is None) == (self.turn.outcome is None)
        if self.outcome is not None:
            assert not self.open, "the upstream stays open"
        return commands

    def _perform(self, command: c.Command) -> None:
        match command:
            case c.Send(data, last):
                assert self.refused is None
                assert not self.ended, "bytes after the end of the body"
                # One body may be empty; of a stream that passes in another dialect nobody knows
                # which bytes are the last before it is over.
                client = self.turn.view.client
                whole = client.numbered is None or client.one_text
                assert data or (last and whole), "a send of nothing"
                self.sent += data
                self.ended = last
            case c.OpenUpstream(hop, request, mode):
                assert not self.open, "two upstreams at a time"
                assert not self.ended
                assert hop - self.hop in (0, 1), "a hop is left out"
                self.hop = hop
                assert request.body["stream"] is mode.flag is json.loads(request.text)["stream"]
                self.open = True
                self.requests.append(request)
            case c.CloseUpstream():
                assert self.open, "closed twice"
                self.open = False
            case c.RunTool(call_id):
                assert call_id not in self.running
                self.running[call_id] = command
            case c.CancelTools():
                self.running.clear()
            case c.SaveJoin():
                assert not self.ended, "the record is made after the terminal left"
                self.saved.append(command)
            case c.ReportEmpty():
                assert not self.ended, "the report comes after the terminal left"
                self.empty = command
            case c.Refuse(error):
                assert not self.sent, "an error of its own after the head"
                self.refused = error
                self.ended = True
            case c.Relay():
                assert not self.sent
                self.relayed = self.ended = True
                self.open = False
            case c.Finish(outcome):
                assert self.ended, "finished without an end of the body"
                assert not self.running, "finished while hidden calls run"
                self.outcome = outcome


class Playbook:
    """One turn, step by step: ``feed`` what happens, ``expect`` what is asked for."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.performer = Performer(turn)
        self._unseen: deque[c.Command] = deque()
        self._unseen += self.performer.start()

    def feed(self, *happened: e.TurnEvent) -> Self:
        """Let something happen."""
        for event in happened:
            self._unseen += self.performer.happen(event)
        return self

    def expect(self, *expected: c.Command | type) -> Self:
        """Compare all that was asked for since the last call; a type stands for any of its kind."""
        got = list(self._unseen)
        self._unseen.clear()
        kinds = [one if isinstance(one, type) else type(one) for one in expected]
        assert [type(one) for one in got] == kinds, got
        for wanted, one in zip(expected, got, strict=True):
            assert isinstance(wanted, type) or wanted == one
        return self

    def skip(self) -> Self:
        """Pass over what was asked for."""
        self._unseen.clear()
        return self

    def sent(self) -> bytes:
        """Return what was sent since the last look; nothing else may have been asked for."""
        got = list(self._unseen)
        self._unseen.clear()
        assert all(isinstance(one, c.Send) for one in got), got
        return b"".join(one.data for one in got if isinstance(one, c.Send))


@dataclass(frozen=True, slots=True)
class Played:
    """A turn that was played to its end."""

    performer: Performer
    options: TurnOptions
    calls: list[c.RunTool] = field(default_factory=list)

    @property
    def turn(self) -> Turn:
        return self.performer.turn

    @property
    def commands(self) -> list[c.Command]:
        return self.performer.commands

    @property
    def client_bytes(self) -> bytes:
        return self.performer.sent

    @property
    def events(self) -> list[Event]:
        """The client's events, read without any code of ours."""
        return [event for _, event in parse_stream(self.client_bytes, foreign=True)]

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def response(self) -> dict[str, Any]:
        """The client's final response object."""
        if self.options.streamed:
            response = self.events[-1]["response"]
        else:
            response = json.loads(self.client_bytes)
        assert isinstance(response, dict)
        return response

    @property
    def text(self) -> str:
        """The text of the final response."""
        parts = [
            part.get("text", "")
            for item in self.response["output"]
            if item["type"] == "message"
            for part in item["content"]
        ]
        return "".join(parts)

    @property
    def requests(self) -> list[Request]:
        return self.performer.requests

    @property
    def outcome(self) -> TurnOutcome:
        assert self.performer.outcome is not None
        return self.performer.outcome

    @property
    def error(self) -> SottovoceError:
        """The error that was answered instead of a stream."""
        assert self.performer.refused is not None
        return self.performer.refused


def run_turn(
    request: Mapping[str, Any] | None = None,
    hops: Sequence[Body | Answer] = (),
    results: Mapping[str, str] | str = "nothing was found",
    *,
    chunking: Chunking = whole,
    client: Literal["stream", "json"] = "stream",
    declared: bool = True,
    late: bool = False,
    **options: Any,  # members of TurnOptions
) -> Played:
    """Play a turn to its end.

    Args:
        request: The client's request, a streamed one with a client tool by default.
        hops: The upstream's answers, request by request: events, a body, or an ``Answer``.
        results: Results of hidden calls by call id, or one for all.
        chunking: How bodies are cut.
        client: What the client asked for.
        declared: Whether the hidden tool is declared.
        late: Results come at the hop's end, not as soon as their call is complete.
        options: Members of ``TurnOptions``.
    """
    if client == "json":
        request = {**(request or builders.request()), "stream": False}
        options = {"streamed": False, "mode": StreamMode.JSON} | options
    if not declared:
        options["tools"] = ()
    prepared, fixed = prepare(request, **options)
    played = Played(Performer(Turn(prepared, fixed)), fixed)
    _Player(played, hops, results, chunking, late=late).play()
    return played


class _Player:
    """Answers what a turn asks for, from a script."""

    def __init__(
        self,
        played: Played,
        hops: Sequence[Body | Answer],
        results: Mapping[str, str] | str,
        chunking: Chunking,
        *,
        late: bool,
    ) -> None:
        self.played = played
        self.hops = hops
        self.results = results
        self.chunking = chunking
        self.late = late
        self.happening: deque[e.TurnEvent] = deque()

    def play(self) -> None:
        turn, performer = self.played.turn, self.played.performer
        self._react(performer.start())
        while turn.outcome is None:
            assert self.happening, f"nothing happens any more: {turn!r}"
            self._react(performer.happen(self.happening.popleft()))
        for event in self.happening:  # what comes too late is ignored
            assert performer.happen(event) == []

    def _react(self, commands: list[c.Command]) -> None:
        for command in commands:
            match command:
                case c.OpenUpstream(_, request, mode):
                    asked = len(self.played.requests)
                    assert asked <= len(self.hops), "the upstream is asked once too often"
                    answered = self._answered(answer(self.hops[asked - 1], request, mode))
                    self.happening.extend(answered)
                case c.CloseUpstream():
                    self.happening = deque(
                        one for one in self.happening if isinstance(one, e.ToolFinished)
                    )
                case c.RunTool(call_id):
                    self._ran(command, call_id)
                case _:
                    pass

    def _ran(self, command: c.RunTool, call_id: str) -> None:
        self.played.calls.append(command)
        text = self.results if isinstance(self.results, str) else self.results[call_id]
        result = found(call_id, text)
        if self.late:
            self.happening.append(result)
        else:
            self.happening.appendleft(result)

    def _answered(self, script: Answer) -> list[e.TurnEvent]:
        if script.refused is not None:
            return [broken(script.refused)]
        happened: list[e.TurnEvent] = [opened(script.status, script.content_type)]
        happened += [chunk(piece) for piece in self.chunking(script.body)]
        happened.append(ended() if script.cut is None else broken(script.cut))
        return happened
