"""A fixture run through real turns: what comes in is fed to them, what they ask for is recorded.

Several requests in one fixture are several turns of one memory: hidden items of an earlier one
are put back into a later one, as the proxy does it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, assert_never

from pipeline import commands as c
from pipeline import events, jsontext
from pipeline.errors import SottovoceError, UpstreamError
from pipeline.history import minted_ids, restorations
from pipeline.join import OneMessageJoin
from pipeline.lifecycle import Dialect
from pipeline.options import ClientForm, TurnOptions
from pipeline.reader import StreamMode
from pipeline.request import (
    HiddenTool,
    Request,
    declaration_blocker,
    declare,
    input_items,
    read_request,
)
from pipeline.restore import restore
from pipeline.survey import Survey
from pipeline.turn import Turn
from proxy.chat.completion import Fallback
from proxy.chat.native import NativeRequest, encoding
from proxy.chat.reading import chat_reader
from proxy.chat.request import Manner, read_chat_request, translate
from proxy.chat.splicing import SplicedChatAnswer, SplicedChatStream
from proxy.config_tables import BudgetsConfig, LimitsConfig
from proxy.fixture import Fixture, FixtureError, Header, Record, content, stream_records
from proxy.providers.chat import ChatProvider
from recall import tool
from telemetry.redact import redact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.history import HiddenGroup
    from pipeline.options import MakeAnswer
    from pipeline.outcome import TurnOutcome

TOOL: Final = HiddenTool(tool.NAME, tool.DECLARATION)
_ID_KEY: Final = b"fixture"
_CHAT_URL: Final = "http://localhost/v1"
_FAILURES: Final = {
    "refused": UpstreamError("the upstream refused the connection", status=502),
    "reset": UpstreamError("the upstream reset the connection", status=502),
    "timeout": UpstreamError("the upstream did not answer in time", status=504),
    "idle": UpstreamError("the upstream fell silent", status=504),
}


def play(fixture: Fixture) -> Fixture:
    """Return the fixture with what our turns make of it in place of its golden answer.

    Raises:
        FixtureError: A record can't be played where it stands.
    """
    playback = Playback(fixture.header)
    records: list[Record] = []
    for record in fixture.records:
        if record.side == "in":
            records += [record, *playback.feed(record)]
    return Fixture(fixture.header, tuple(records))


class Playback:
    """Plays records one after the other.

    Args:
        header: The fixture's conditions.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._groups: list[HiddenGroup] = []
        self._turn: Turn | None = None
        self._native: NativeRequest | None = None
        self._streamed = True
        self._include_usage = False
        self._fallback = Fallback("", 0)
        self._turns = 0
        self._now = 0.0
        defaults = (LimitsConfig().as_limits(), BudgetsConfig().as_budgets())
        try:
            self._limits = replace(defaults[0], **header.limits)
            self._budgets = replace(defaults[1], **dict[str, Any](header.budgets))
        except TypeError as error:
            raise FixtureError(f"the header's limits or budgets: {error}") from error

    def feed(self, record: Record) -> list[Record]:
        """Play one ``in`` record; return the ``out`` records that it leads to.

        Raises:
            FixtureError: The record comes before any request, or is not understood.
        """
        self._now = self._now if record.t is None else record.t / 1000
        if record.kind == "request":
            return self._request(record)
        if self._turn is None:
            raise FixtureError(f"{record.kind} comes before any request")
        return list(self._records(self._turn.receive(self._event(record))))

    def _request(self, record: Record) -> list[Record]:
        self._turns += 1
        try:
            request = self._read(record.data())
        except SottovoceError as error:
            self._turn = None
            return [_error(error)]
        self._turn = Turn(*self._prepare(request, record.members))
        return list(self._records(self._turn.start()))

    def _read(self, data: bytes) -> Request:
        """Return the Responses request that the turn is run on."""
        if self._header.client != "chat":
            return read_request(data)
        chat = read_chat_request(data)
        translation = translate(chat, Manner.CHAT)
        self._native = NativeRequest(chat, translation)
        self._include_usage = translation.include_usage
        self._fallback = Fallback(str(translation.request.body.get("model") or ""), 0)
        return translation.request

    def _chat_options(self, tools: tuple[HiddenTool, ...]) -> dict[str, Any]:
        names = frozenset(tool.name for tool in tools)
        answer: MakeAnswer = partial(
            SplicedChatAnswer, fallback=self._fallback, names=names, sums=True
        )
        if self._streamed:
            answer = partial(
                SplicedChatStream,
                include_usage=self._include_usage,
                fallback=self._fallback,
                names=names,
                sums=True,
                held_bytes=self._limits.deferred_bytes,
            )
        form = ClientForm(answer, OneMessageJoin, passes=True)
        return {"form": form, "reader": partial(chat_reader, created_at=0)}

    def _prepare(self, request: Request, members: Mapping[str, Any]) -> tuple[Request, TurnOptions]:
        """Do what the proxy does before a turn: put back, declare, settle how to read."""
        header = self._header
        survey = Survey(input_items(request.body), _ID_KEY)
        known = set(survey.lookup_keys)
        groups = [group for group in self._groups if known.intersection(group.lookup_keys())]
        request = restore(request, [*minted_ids(survey), *restorations(survey, groups)])
        self._streamed = request.body.get("stream") is True
        codex = header.dialect == "codex"
        mode = StreamMode.SSE if codex or self._streamed else StreamMode.JSON
        blocker = declaration_blocker(
            request,
            TOOL.name,
            enabled=header.recall and members.get("recall") != "off",
            inject="with_tools",
            request_kind=str(members.get("request_kind") or "") or None,
        )
        withhold = False
        if blocker is None:
            declared = declare(request, TOOL)
            request, withhold = declared.request, declared.include_added
        options = TurnOptions(
            limits=self._limits,
            budgets=self._budgets,
            dialect=Dialect.CODEX if codex else Dialect.PUBLIC,
            mode=mode,
            streamed=self._streamed,
            tools=(TOOL,) if blocker is None else (),
            withhold_ciphertext=withhold,
            hold_text=blocker is None and _wants_json(request.body),
            report="last" if header.client == "codex" else "sum",
            id_key=_ID_KEY,
            turn_id=f"turn_{self._turns}",
            created_at=0,
            redact=redact,
        )
        if self._native is not None:
            options = replace(options, **self._chat_options(options.tools))
        return request, options

    def _event(self, record: Record) -> events.TurnEvent:
        members, now = record.members, self._now
        match record.kind:
            case "head":
                media = members.get("content_type", "text/event-stream")
                return events.UpstreamOpened(members.get("status", 200), media, now)
            case "event" | "bytes":
                return events.UpstreamChunk(record.data(), now)
            case "end":
                return events.UpstreamEnded(now)
            case "failure":
                name = members.get("error", "reset")
                if name not in _FAILURES:
                    raise FixtureError(f"a failure is one of {', '.join(_FAILURES)}, not {name!r}")
                return events.UpstreamFailed(_FAILURES[name], now)
            case "tool":
                return events.ToolFinished(
                    str(members.get("call_id")), str(members.get("text", "")), now
                )
            case "keepalive":
                return events.KeepAliveDue()
            case kind:
                raise FixtureError(f"{kind} can't be played")

    def _records(self, commands: list[c.Command]) -> Iterator[Record]:
        for command in commands:
            match command:
                case c.OpenUpstream():
                    text = content(self._put(command), "body")
                    yield Record("out", "upstream", {"hop": command.hop, **text})
                case c.Send():
                    yield from self._sent(command)
                case c.Refuse():
                    yield _error(command.error)
                case c.Relay():
                    yield Record("out", "relay", {})
                case c.RunTool():
                    call = {"call_id": command.call_id, "name": command.name}
                    yield Record("out", "tool", {**call, "arguments": command.arguments})
                case c.SaveJoin():
                    if command.group is not None:
                        self._groups.append(command.group)
                    ids = {"response_id": command.response_id, "hop_ids": list(command.hop_ids)}
                    yield Record("out", "save", ids)
                case c.ReportEmpty():
                    yield Record("out", "empty", {"recall_depth": command.recall_depth})
                case c.Finish():
                    yield Record("out", "outcome", _outcome(command.outcome))
                case c.CloseUpstream() | c.CancelTools():
                    pass
                case _:
                    assert_never(command)

    def _put(self, command: c.OpenUpstream) -> bytes:
        """Return a request as its upstream gets it."""
        if self._native is None:
            return command.request.text
        provider, mode = ChatProvider(_CHAT_URL), command.mode
        encode = encoding(lambda request: provider.encode(request, mode).body)
        return self._native.put(command.request, encode)

    def _sent(self, command: c.Send) -> Iterator[Record]:
        if self._streamed:
            yield from stream_records("out", command.data)
        elif command.data:
            yield Record("out", "bytes", content(command.data, "body"))
        if command.last:
            yield Record("out", "end", {})


def _error(error: SottovoceError) -> Record:
    return Record("out", "error", {"status": error.status, "body": error.body()})


def _outcome(outcome: TurnOutcome) -> dict[str, Any]:
    """Return what an outcome says beyond its defaults, as JSON.

    How often which rule was bent is left out: the lifecycle's own tests say that.
    """
    named = {
        field.name: getattr(outcome, field.name)
        for field in fields(outcome)
        if field.name != "findings" and getattr(outcome, field.name) != field.default
    }
    plain: dict[str, Any] = jsontext.loads(jsontext.dumps(named))
    return plain


def _wants_json(body: dict[str, Any]) -> bool:
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    return isinstance(form, dict) and form.get("type") in {"json_schema", "json_object"}
