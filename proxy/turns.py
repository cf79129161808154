"""Runs one turn of one request: wires a driver to its surroundings, and settles its effects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from pipeline.lifecycle import Dialect
from pipeline.options import TurnOptions
from pipeline.outcome import Ending
from pipeline.reader import StreamMode
from pipeline.request import Request, has_trigger
from pipeline.turn import Turn
from proxy import headers as h
from proxy.driver import Driver, Wiring
from proxy.plugin_run import PluginRun
from proxy.summaries import make_speech, make_way
from recall.entries import Scope
from recall.ingest import Told
from recall.joins import Join
from recall.ledger import ResponseIds
from recall.search import run_recall
from telemetry.capture import TurnRecord, capture_empty_completion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.commands import ReportEmpty, SaveJoin
    from pipeline.errors import SottovoceError
    from pipeline.options import ClientForm
    from pipeline.outcome import TurnOutcome
    from proxy.chat.native import NativeRequest
    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.homes import Errand
    from proxy.prepare import Prepared
    from proxy.retries import Attempt
    from proxy.services import Services
    from proxy.sessions import Identity
    from proxy.upstreams import Endpoint
    from recall.tool import RecallResult

log = structlog.get_logger("sottovoce.turn")

LEADING: Final = 4
"""From so many turns at once on, an event waits longer for the other turns than for the rest of its
own burst: the work of sending that apart is better spent on them."""
_DONE: Final = (Ending.COMPLETED, Ending.INCOMPLETE)
_SETTLE_SECONDS: Final = 1.0
"""How long a recall waits for earlier turns that are on their way into the memory."""


class Exchange(NamedTuple):
    """One request of a client, read and understood.

    Attributes:
        turn_id: What the client is told in ``x-sottovoce-turn``.
        started: Unix time.
        headers: The client's, without what was presented to us.
        raw_path: The path as it came.
        query: The query as it came.
        request: The request as it came.
        identity: Whose it is.
        endpoint: The provider that it is meant for; another one may have to take it.
        errand: The same for the router.
        protocol: How the client speaks: ``responses``, ``codex`` or ``chat``.
        form: The same for the turn; None for Responses.
        native: A chat client's own request, for upstreams that speak chat themselves.
    """

    turn_id: str
    started: float
    headers: Headers
    raw_path: bytes
    query: bytes
    request: Request
    identity: Identity
    endpoint: Endpoint
    errand: Errand
    protocol: str
    form: ClientForm | None = None
    native: NativeRequest | None = None

    @property
    def streamed(self) -> bool:
        """Whether the client asked for a stream."""
        return self.request.body.get("stream") is True


class TurnRun:
    """One turn on its way.

    Args:
        services: What the process owns.
        exchange: The client's request.
        prepared: The same, ready for its upstream.
    """

    def __init__(self, services: Services, exchange: Exchange, prepared: Prepared) -> None:
        self._services = services
        self._exchange = exchange
        self._prepared = prepared
        self._plugins = PluginRun(
            services.plugins, services.background, services.metrics.hook_failed
        )
        identity = exchange.identity
        self._activity = services.activity.begin(exchange.turn_id, identity.tenant)
        self._attempt: Attempt | None = None
        self._scope = Scope(identity.tenant, identity.project, identity.session)
        self._speech = make_speech(services, exchange)
        self._route = services.router.route(exchange.errand, self._speech)
        self._way = make_way(services, exchange, self._route, self._speech)

    async def __call__(self, channel: Channel) -> None:
        """Drive the turn to its end, and settle what it leaves in every case."""
        exchange = self._exchange
        asked = exchange.request.body.get("input")
        with self._services.retries.attempt(exchange.identity, exchange.headers, asked) as attempt:
            self._attempt = attempt
            await self._drive(channel)

    async def _drive(self, channel: Channel) -> None:
        services = self._services
        turn = Turn(self._prepared.request, self._options())
        driver = Driver(turn, self._wiring(), channel)
        services.drain.turns.add(driver)
        services.metrics.turn_started()
        clock = time.monotonic()
        self._plugins.start(self._exchange.request.body)
        services.transcripts.begin(self._exchange)
        try:
            await driver.run()
        finally:
            services.drain.turns.discard(driver)
            services.metrics.turn_ended()
            self._settle(driver, channel, time.monotonic() - clock)

    def _options(self) -> TurnOptions:
        services, exchange, prepared = self._services, self._exchange, self._prepared
        report = services.config.recall.report_usage
        if report == "auto":
            report = "last" if exchange.identity.codex else "sum"
        codex = exchange.endpoint.config.kind == "codex"
        return TurnOptions(
            limits=services.limits,
            budgets=services.budgets,
            dialect=Dialect.CODEX if codex else Dialect.PUBLIC,
            mode=prepared.mode,
            streamed=exchange.streamed,
            tools=prepared.tools,
            withhold_ciphertext=prepared.withhold_ciphertext,
            hold_text=bool(prepared.tools) and _wants_schema(exchange.request.body),
            report=report,
            id_key=services.id_key,
            turn_id=exchange.turn_id,
            created_at=int(exchange.started),
            redact=services.secrets.redact,
            cleanse=services.secrets.cleanse,
            reader=self._speech.reader_of(self._route),
            form=exchange.form,
            restored=prepared.restored,
        )

    def _wiring(self) -> Wiring:
        services, config = self._services, self._exchange.endpoint.config
        names = [tool.name for tool in self._prepared.tools]
        return Wiring(
            open=self._way.open,
            spent=self._way.spent,
            tools=self._activity.runners(self._plugins.runners(names, self._recall)),
            save=self._save,
            report_empty=self._report_empty,
            save_missed=services.metrics.join_write_missed,
            head=self._head,
            refusal_head=self._refusal_head,
            idle_seconds=config.idle_timeout_ms / 1000,
            keepalive_seconds=services.config.server.keepalive_seconds,
            lead=len(services.drain.turns) < LEADING,
            spawn=services.background.spawn,
        )

    # --- What the driver asks for ----------------------------------------------------------

    async def _recall(self, arguments: str) -> RecallResult:
        services = self._services
        await services.ingests.settle(_SETTLE_SECONDS)
        anchor = services.config.recall.anchor
        return await run_recall(
            services.store, self._scope, arguments, now=time.time(), anchor=anchor
        )

    async def _save(self, join: SaveJoin) -> None:
        identity = self._exchange.identity
        if self._is_superseded():  # nothing of it will ever be in a history
            return
        await self._services.joins.save(
            Join(
                identity.tenant,
                identity.session,
                join.group,
                join.response_id,
                ResponseIds(join.hop_ids, join.outputs) if join.hop_ids else None,
                time.time(),
                lasting=not identity.no_store,
            )
        )

    def _report_empty(self, report: ReportEmpty) -> None:
        capture_empty_completion(
            self._services.door,
            protocol=self._exchange.protocol,
            model=report.model,
            session=self._exchange.identity.session,
            stop_reason=report.stop_reason,
            output_tokens=report.output_tokens,
            recall_depth=report.recall_depth,
        )

    def _head(self, upstream: Headers) -> Headers:
        """Return the headers of the client's answer."""
        exchange, prepared = self._exchange, self._prepared
        translated = not self._speech.same_dialect(self._route.endpoint)
        ours = bool(prepared.tools) or translated
        headers = h.of_turn(upstream, declared=ours)
        dropped = set()
        form = StreamMode.SSE if exchange.streamed else StreamMode.JSON
        if prepared.mode is not form or translated:  # the upstream's form is not the client's
            dropped.add(b"content-type")
        if self._speech.renames(self._route.endpoint):
            dropped.add(b"openai-model")  # clients take another model than theirs for an alarm
        if dropped:
            headers = [one for one in headers if one[0].lower() not in dropped]
        if h.find(headers, b"content-type") is None:
            headers.append((b"content-type", form.accept.encode()))
        headers.append((b"x-sottovoce-turn", exchange.turn_id.encode()))
        if self._services.drain.draining:
            headers.append((b"connection", b"close"))
        return headers

    def _refusal_head(self, error: SottovoceError | None) -> Headers:
        """Return headers of an answer that is no 2xx.

        What could be tried again has been tried here: the client need not. Unless it came at a bad
        moment, or the provider told it when to come again.

        Args:
            error: What it is answered with; None for the provider's own answer.
        """
        headers = [(b"x-sottovoce-turn", self._exchange.turn_id.encode())]
        leaving = error is not None and error.status == 503
        if not (leaving or self._route.worth_waiting):
            headers.append((b"x-should-retry", b"false"))
        return headers

    # --- After the turn --------------------------------------------------------------------

    def _settle(self, driver: Driver, channel: Channel, seconds: float) -> None:
        """Commit or roll back, remember, and tell. Nothing here can fail or delay the turn."""
        services, identity = self._services, self._exchange.identity
        turn = driver.turn
        outcome = turn.outcome or turn.abort()
        if driver.results:
            self._run_hooks(driver, delivered=channel.delivered)
        self._plugins.end(turn)
        self._activity.end()
        self._way.settle(outcome.ending)
        services.transcripts.end(self._exchange, turn)
        if outcome.response_id is not None:
            self._route.remember_response(outcome.response_id)
        done = outcome.ending in _DONE
        if done and self._route.endpoint.provider.translates:
            self._remember(turn)
        services.usage.add(identity.tenant, outcome, turn.view.quota.newest())
        services.door.post(self._record(driver, outcome, channel.status, seconds))
        kept = not identity.no_store and not self._is_superseded()
        if channel.delivered and done and kept:
            asked = self._exchange.request
            services.ingests.put(
                Told(self._scope, asked.body, turn.view.output, time.time(), len(asked.text))
            )

    def _is_superseded(self) -> bool:
        return self._attempt is not None and self._attempt.superseded

    def _remember(self, turn: Turn) -> None:
        """Keep a response that its upstream does not keep, for who continues it by its id."""
        exchange, asked = self._exchange, self._prepared.asked
        kept = asked.body.get("store") is not False
        if has_trigger(asked.body):  # what goes on goes on from the compaction alone
            asked = Request(b'{"input":[]}', {"input": []})
        if kept and exchange.form is None:
            response_id = str(turn.view.response.get("id"))
            self._services.remembered.put(
                exchange.identity.tenant, response_id, asked, turn.view.output
            )

    def _run_hooks(self, driver: Driver, *, delivered: bool) -> None:
        """Run the transaction hooks of the hidden calls: in order, or undone in reverse.

        A result that went into no output is undone too: its response didn't complete.
        """
        used = driver.turn.rounds.used if delivered else set()
        kept = [one for call, one in driver.results if (call.name, call.arguments) in used]
        thrown = [one for call, one in driver.results if (call.name, call.arguments) not in used]
        self._run_each("rollback", [result.rollback for result in reversed(thrown)])
        self._run_each("commit", [result.commit for result in kept])

    def _run_each(self, name: str, hooks: Iterable[Callable[[], None] | None]) -> None:
        for hook in filter(None, hooks):
            try:
                hook()
            except Exception as error:  # noqa: BLE001 - what was delivered can't be undone
                self._services.metrics.hook_failed(name)
                log.warning("hook failed", hook=name, error=type(error).__name__)

    def _record(
        self, driver: Driver, outcome: TurnOutcome, status: int | None, seconds: float
    ) -> TurnRecord:
        exchange = self._exchange
        repairs: dict[str, int] = {}
        for (rule, _), count in outcome.findings.items():
            repairs[rule] = repairs.get(rule, 0) + count
        return TurnRecord(
            turn=exchange.turn_id,
            outcome=str(outcome.ending),
            category=outcome.category,
            protocol=exchange.protocol,
            upstream=self._route.endpoint.name,
            model=outcome.model,
            session=exchange.identity.session,
            streamed=exchange.streamed,
            status=status,
            stop_reason=outcome.stop_reason,
            hops=outcome.hops,
            attempts=self._route.attempts,
            recalls=outcome.recalls,
            recall_hits=sum(1 for _, result in driver.results if result.coverage),
            hidden_bytes=outcome.hidden_bytes,
            limit=outcome.limit,
            truncated=outcome.truncated_by,
            undeclared=self._prepared.undeclared,
            usage=outcome.spent,
            repairs=repairs,
            seconds=seconds,
            first_byte_seconds=driver.first_byte_after,
            head_seconds=tuple(driver.head_times),
            recall_seconds=tuple(driver.recall_times),
        )


def _wants_schema(body: dict[str, Any]) -> bool:
    """Say whether the final text must parse as JSON."""
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    return isinstance(form, dict) and form.get("type") in ("json_schema", "json_object")
