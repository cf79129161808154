"""``POST /v1/responses`` and its twins: one turn, streamed or as JSON."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from pipeline.errors import SottovoceError
from pipeline.lifecycle import Dialect
from pipeline.options import TurnOptions
from pipeline.outcome import Ending, TurnOutcome
from pipeline.reader import StreamMode
from pipeline.request import read_request
from pipeline.turn import Turn
from proxy import headers as h
from proxy.downstream import TurnResponse, read_request_body, send_error
from proxy.driver import Driver, Wiring
from proxy.guard import check_loop
from proxy.prepare import prepare
from proxy.sessions import identify
from proxy.upstream import UpstreamRequest
from proxy.upstreams import is_codex_path
from recall.entries import Scope
from recall.ingest import ingest_turn
from recall.ledger import save_group, save_response_id
from recall.search import run_recall
from telemetry.capture import TurnRecord, capture_empty_completion
from telemetry.redact import redact

if TYPE_CHECKING:
    from starlette.types import Receive, Send
    from starlette.types import Scope as ASGIScope

    from pipeline.commands import ReportEmpty, SaveJoin
    from pipeline.request import Request
    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.prepare import Prepared
    from proxy.services import Services
    from proxy.sessions import Identity
    from proxy.upstream import UpstreamResponse
    from proxy.upstreams import Endpoint
    from recall.tool import RecallResult

log = structlog.get_logger("sottovoce.turn")


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request of a client, read and understood."""

    turn_id: str
    started: float
    headers: Headers
    raw_path: bytes
    query: bytes
    request: Request
    identity: Identity
    endpoint: Endpoint
    protocol: str

    @property
    def streamed(self) -> bool:
        """Whether the client asked for a stream."""
        return self.request.body.get("stream") is True

    @property
    def scope(self) -> Scope:
        """Whose memory is searched."""
        identity = self.identity
        return Scope(identity.tenant, identity.project, identity.session)


class ResponsesEndpoint:
    """The ASGI endpoint of a Responses turn.

    Args:
        services: What the process owns.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Read the request, prepare it, and run its turn."""
        try:
            exchange = await self._read(scope, receive)
            prepared = await prepare(
                self._services, exchange.request, exchange.identity, exchange.endpoint
            )
        except SottovoceError as error:
            await send_error(send, error)
            return

        async def run(channel: Channel) -> None:
            await _run(self._services, exchange, prepared, channel)

        await TurnResponse(run)(scope, receive, send)

    async def _read(self, scope: ASGIScope, receive: Receive) -> _Exchange:
        services = self._services
        headers: Headers = scope["headers"]
        raw_path: bytes = scope["raw_path"]
        check_loop(headers, services.via)
        tenant, headers = services.tenants.admit(headers)
        data = await read_request_body(
            receive, headers, limit=services.config.server.max_request_bytes
        )
        request = read_request(data)
        codex_path = is_codex_path(raw_path)
        codex = codex_path or h.find(headers, b"chatgpt-account-id") is not None
        return _Exchange(
            turn_id=f"turn_{secrets.token_hex(12)}",
            started=time.time(),
            headers=headers,
            raw_path=raw_path,
            query=scope["query_string"],
            request=request,
            identity=identify(headers, request.body, tenant, codex_path=codex_path),
            endpoint=services.upstreams.choose(codex=codex),
            protocol="codex" if codex else "responses",
        )


async def _run(
    services: Services, exchange: _Exchange, prepared: Prepared, channel: Channel
) -> None:
    turn = Turn(prepared.request, _options(services, exchange, prepared))
    driver = Driver(turn, _wiring(services, exchange, prepared), channel)
    services.drain.turns.add(driver)
    services.metrics.turn_started()
    clock = time.monotonic()
    try:
        await driver.run()
    finally:
        services.drain.turns.discard(driver)
        services.metrics.turn_ended()
        _after(services, exchange, prepared, driver, channel, time.monotonic() - clock)


def _options(services: Services, exchange: _Exchange, prepared: Prepared) -> TurnOptions:
    report = services.config.recall.report_usage
    body = exchange.request.body
    if report == "auto":
        report = "last" if exchange.identity.codex else "sum"
    return TurnOptions(
        limits=services.limits,
        budgets=services.budgets,
        dialect=Dialect.CODEX if exchange.endpoint.config.kind == "codex" else Dialect.PUBLIC,
        mode=prepared.mode,
        streamed=exchange.streamed,
        tool=prepared.tool,
        withhold_ciphertext=prepared.withhold_ciphertext,
        hold_text=prepared.tool is not None and _wants_schema(body),
        report=report,
        id_key=services.id_key,
        turn_id=exchange.turn_id,
        created_at=int(exchange.started),
        redact=redact,
    )


def _wants_schema(body: dict[str, Any]) -> bool:
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    return isinstance(form, dict) and form.get("type") in ("json_schema", "json_object")


def _wiring(services: Services, exchange: _Exchange, prepared: Prepared) -> Wiring:
    endpoint, identity = exchange.endpoint, exchange.identity
    headers = endpoint.authorize(
        h.to_upstream(exchange.headers, body_decoded=True, via=services.via)
    )
    url = endpoint.url(exchange.raw_path, exchange.query)

    async def open_upstream(request: Request) -> UpstreamResponse:
        response = await endpoint.open(UpstreamRequest("POST", url, headers, request.text))
        if 200 <= response.status < 300:
            response.decode(limit=services.limits.stream_bytes)
        return response

    async def recall(arguments: str) -> RecallResult:
        return await run_recall(
            services.store,
            exchange.scope,
            arguments,
            now=time.time(),
            anchor=services.config.recall.anchor,
        )

    async def save(join: SaveJoin) -> None:
        now, lasting = time.time(), not identity.no_store
        if join.group is not None:
            await save_group(
                services.store,
                identity.tenant,
                join.group,
                now,
                session=identity.session,
                lasting=lasting,
            )
        if join.response_id and join.hop_ids:
            await save_response_id(
                services.store,
                identity.tenant,
                join.response_id,
                join.hop_ids[-1],
                join.hop_ids,
                now,
                lasting=lasting,
            )

    def report_empty(report: ReportEmpty) -> None:
        capture_empty_completion(
            services.door,
            protocol=exchange.protocol,
            model=report.model,
            session=identity.session,
            stop_reason=report.stop_reason,
            output_tokens=report.output_tokens,
            recall_depth=report.recall_depth,
        )

    expected = StreamMode.SSE if exchange.streamed else StreamMode.JSON

    def head(upstream: Headers) -> Headers:
        answered = h.of_turn(upstream, declared=prepared.tool is not None)
        if prepared.mode is not expected:  # the upstream was asked for the other form
            answered = [one for one in answered if one[0].lower() != b"content-type"]
        if endpoint.config.model is not None:
            answered = [one for one in answered if one[0].lower() != b"openai-model"]
        if h.find(answered, b"content-type") is None:
            answered.append((b"content-type", expected.accept.encode()))
        answered.append((b"x-sottovoce-turn", exchange.turn_id.encode()))
        if services.drain.draining:
            answered.append((b"connection", b"close"))
        return answered

    return Wiring(
        open=open_upstream,
        tools={prepared.tool.name: recall} if prepared.tool is not None else {},
        save=save,
        report_empty=report_empty,
        save_missed=services.metrics.join_write_missed,
        head=head,
        head_seconds=endpoint.config.timeout_ms / 1000,
        idle_seconds=endpoint.config.idle_timeout_ms / 1000,
        keepalive_seconds=services.config.server.keepalive_seconds,
        spawn=services.background.spawn,
    )


# --- After the turn ----------------------------------------------------------------------------


def _after(
    services: Services,
    exchange: _Exchange,
    prepared: Prepared,
    driver: Driver,
    channel: Channel,
    seconds: float,
) -> None:
    """Commit or roll back, remember, and tell. Nothing here can fail or delay the turn."""
    turn = driver.turn
    outcome = turn.outcome or turn.abort()
    _settle(services, driver, delivered=channel.delivered)
    services.usage.add(exchange.identity.tenant, outcome, turn.view.quota.newest())
    services.door.post(_record(exchange, prepared, driver, outcome, channel, seconds))
    remembered = outcome.ending in (Ending.COMPLETED, Ending.INCOMPLETE)
    if channel.delivered and remembered and not exchange.identity.no_store:
        services.background.spawn(_ingest(services, exchange, turn))


def _settle(services: Services, driver: Driver, *, delivered: bool) -> None:
    """Run the transaction hooks of the hidden calls: in order, or undone in reverse."""
    hooks = (
        [result.commit for result in driver.results]
        if delivered
        else [result.rollback for result in reversed(driver.results)]
    )
    for hook in hooks:
        if hook is None:
            continue
        try:
            hook()
        except Exception as error:  # noqa: BLE001 - a hook can't undo what was delivered
            name = "commit" if delivered else "rollback"
            services.metrics.hook_failed(name)
            log.warning("hook failed", hook=name, error=type(error).__name__)


async def _ingest(services: Services, exchange: _Exchange, turn: Turn) -> None:
    try:
        stored = await ingest_turn(
            services.store, exchange.scope, exchange.request.body, turn.view.output, now=time.time()
        )
    except Exception as error:  # noqa: BLE001 - memory is best effort once the turn is over
        services.metrics.ingest_failed()
        log.warning("memory not written", error=type(error).__name__)
    else:
        services.metrics.ingested(stored)


def _record(
    exchange: _Exchange,
    prepared: Prepared,
    driver: Driver,
    outcome: TurnOutcome,
    channel: Channel,
    seconds: float,
) -> TurnRecord:
    repairs: dict[str, int] = {}
    for (rule, _), count in outcome.findings.items():
        repairs[rule] = repairs.get(rule, 0) + count
    return TurnRecord(
        turn=exchange.turn_id,
        outcome=outcome.ending,
        category=outcome.category,
        protocol=exchange.protocol,
        upstream=exchange.endpoint.config.name,
        model=outcome.model,
        session=exchange.identity.session,
        streamed=exchange.streamed,
        status=channel.status,
        stop_reason=outcome.stop_reason,
        hops=outcome.hops,
        recalls=outcome.recalls,
        recall_hits=sum(1 for result in driver.results if result.coverage),
        hidden_bytes=outcome.hidden_bytes,
        limit=outcome.limit,
        undeclared=prepared.undeclared,
        usage=outcome.spent,
        repairs=repairs,
        seconds=seconds,
        first_byte_seconds=driver.first_byte_after,
        head_seconds=tuple(driver.head_times),
        recall_seconds=tuple(driver.recall_times),
    )
