"""A chat request that passes as it came, and its answer: watched, remembered and counted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from pipeline.outcome import Ending
from proxy import headers as h
from proxy.chat.observe import ChatObserver
from proxy.prepare import set_member
from proxy.upstream import UpstreamRequest
from recall.entries import Scope
from recall.ingest import ingest_turn
from telemetry.capture import TurnRecord, capture_empty_completion

if TYPE_CHECKING:
    from typing import Any

    from pipeline.outcome import TurnOutcome
    from pipeline.request import Request
    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.services import Services
    from proxy.sessions import Identity
    from proxy.upstream import UpstreamResponse
    from proxy.upstreams import Endpoint

log = structlog.get_logger("sottovoce.turn")


@dataclass(frozen=True, slots=True)
class Passing:
    """One chat request to pass on.

    Attributes:
        turn_id: What the client is told in ``x-sottovoce-turn``.
        headers: The client's, without what was presented to us.
        raw_path: The path as it came.
        query: The query as it came.
        chat: The request as it came.
        understood: The same as a Responses request; None where it can't be expressed as one.
        identity: Whose it is.
        endpoint: The provider that it goes to.
        undeclared: Why the tool was not declared.
    """

    turn_id: str
    headers: Headers
    raw_path: bytes
    query: bytes
    chat: Request
    understood: dict[str, Any] | None
    identity: Identity
    endpoint: Endpoint
    undeclared: str | None


async def pass_on(services: Services, passing: Passing, channel: Channel) -> None:
    """Pass a request on, and its answer back as it comes.

    Raises:
        UpstreamError: The upstream was not there, or left in the middle.
    """
    streamed = passing.chat.body.get("stream") is True
    observer = ChatObserver(streamed=streamed, limits=services.limits)
    clock = time.monotonic()
    services.metrics.turn_started()
    status: int | None = None
    try:
        response = await passing.endpoint.open(_request(services, passing))
        status = response.status
        try:
            await _relay(passing, response, channel, observer)
        finally:
            await response.close()
    finally:
        services.metrics.turn_ended()
        outcome = observer.outcome(status, delivered=channel.delivered)
        _settle(services, passing, observer, outcome)
        services.door.post(_record(passing, outcome, status, time.monotonic() - clock))


def _request(services: Services, passing: Passing) -> UpstreamRequest:
    endpoint, chat = passing.endpoint, passing.chat
    model = endpoint.config.model
    if model is not None and model != chat.body.get("model"):
        chat = set_member(chat, "model", model)
    headers = h.to_upstream(passing.headers, body_decoded=True, via=services.via)
    url = endpoint.url(passing.raw_path, passing.query)
    return UpstreamRequest("POST", url, endpoint.authorize(headers), chat.text)


async def _relay(
    passing: Passing, response: UpstreamResponse, channel: Channel, observer: ChatObserver
) -> None:
    plain = h.find(response.headers, b"content-encoding") in (None, b"identity")
    seen = plain and 200 <= response.status < 300
    headers = h.to_client(response.headers)
    await channel.start(
        response.status, [*headers, (b"x-sottovoce-turn", passing.turn_id.encode())]
    )
    while (data := await response.read()) is not None:
        await channel.send(data, more=True)
        if seen:
            observer.feed(data)
    if seen:
        observer.finish()
    await channel.send(b"", more=False)


def _settle(
    services: Services, passing: Passing, observer: ChatObserver, outcome: TurnOutcome
) -> None:
    """Remember, and count. Nothing here can fail or delay the turn."""
    identity = passing.identity
    services.usage.add(identity.tenant, outcome, {})
    if outcome.empty:
        capture_empty_completion(
            services.door,
            protocol="chat",
            model=outcome.model,
            session=identity.session,
            stop_reason=outcome.stop_reason,
            output_tokens=(outcome.spent or {}).get("output_tokens"),
            recall_depth=0,
        )
    done = outcome.ending in (Ending.COMPLETED, Ending.INCOMPLETE)
    if done and passing.understood is not None and not identity.no_store:
        services.background.spawn(_ingest(services, passing, passing.understood, observer.output()))


async def _ingest(
    services: Services, passing: Passing, body: dict[str, Any], output: list[dict[str, Any]]
) -> None:
    identity = passing.identity
    scope = Scope(identity.tenant, identity.project, identity.session)
    try:
        stored = await ingest_turn(services.store, scope, body, output, now=time.time())
    except Exception as error:  # noqa: BLE001 - memory is best effort once the turn is over
        services.metrics.ingest_failed()
        log.warning("memory not written", error=type(error).__name__)
    else:
        services.metrics.ingested(stored)


def _record(
    passing: Passing, outcome: TurnOutcome, status: int | None, seconds: float
) -> TurnRecord:
    return TurnRecord(
        turn=passing.turn_id,
        outcome=outcome.ending,
        protocol="chat",
        upstream=passing.endpoint.name,
        model=outcome.model,
        session=passing.identity.session,
        streamed=passing.chat.body.get("stream") is True,
        status=status,
        stop_reason=outcome.stop_reason,
        hops=outcome.hops,
        truncated=outcome.truncated_by,
        undeclared=passing.undeclared,
        usage=outcome.spent,
        seconds=seconds,
    )
