"""The small endpoints: liveness, readiness, metrics, usage, and the upgrade that is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from starlette.responses import JSONResponse, Response

from pipeline.errors import RequestError, SottovoceError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope, Send

    from proxy.services import Services


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def health(_: Request) -> Response:
    """Say that the process lives."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Say whether requests are welcome: the store is open and nothing drains."""
    services = _services(request)
    if services.drain.draining:
        return JSONResponse(
            {"status": "draining"}, status_code=503, headers={"connection": "close"}
        )
    circuits = services.router.circuit_states()
    return JSONResponse(
        {
            "status": "ready",
            "turns_in_flight": len(services.drain.turns),
            "upstreams": [
                {"name": one.name, "kind": one.kind, "circuit": circuits[one.name]}
                for one in services.config.upstream
            ],
        }
    )


async def metrics(request: Request) -> Response:
    """Return what is counted, in Prometheus' text format."""
    services = _services(request)
    return Response(
        services.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


async def usage(request: Request) -> Response:
    """Return the newest quota windows and the usage of the caller's tenant."""
    services = _services(request)
    try:
        tenant, _ = services.tenants.admit(request.headers.raw)
    except SottovoceError as error:
        return JSONResponse(error.body(), status_code=error.status)
    return Response(orjson.dumps(services.usage.show(tenant)), media_type="application/json")


async def websocket_refusal(scope: Scope, send: Send, error: SottovoceError | None = None) -> None:
    """Refuse an upgrade to WebSocket.

    426 with ``Connection: close`` is the only refusal after which Codex goes on over HTTP at
    once. Which messages say so depends on whether the server speaks WebSocket itself.
    """
    if error is None:
        error = RequestError(
            "WebSocket is not served here; use HTTP", status=426, code="upgrade_required"
        )
    body = orjson.dumps(error.body())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if error.status == 426:
        headers.append((b"upgrade", b"HTTP/1.1"))
    prefix = "websocket.http" if scope["type"] == "websocket" else "http"
    await send({"type": f"{prefix}.response.start", "status": error.status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": body, "more_body": False})
