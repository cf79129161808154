"""Puts the parts together: the ASGI application and what lives as long as it does."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from starlette.applications import Starlette
from starlette.routing import Route

from pipeline.errors import SottovoceError
from pipeline.prefixes import PrefixCache
from proxy.activity import Activity, follow_activity
from proxy.completions import ChatEndpoint
from proxy.downstream import send_error
from proxy.guard import Guard
from proxy.lanes import Lanes
from proxy.plugins import load_plugins
from proxy.relay import RelayEndpoint
from proxy.remembered import Remembered
from proxy.responses import ResponsesEndpoint
from proxy.retries import Retries
from proxy.router import Router
from proxy.scribe import Scribe
from proxy.services import RECALL, Background, Drain, Services, derive, read_secret
from proxy.sessions import Tenants
from proxy.system import (
    health,
    method_refusal,
    metrics,
    ready,
    usage,
    websocket_refusal,
    wrong_method,
    wrong_path,
)
from proxy.upstreams import Upstreams
from proxy.usage_board import UsageBoard
from proxy.version import VERSION
from recall.ingests import Ingests
from recall.joins import Joins
from recall.store import Store
from recall.trouble import trouble_of
from telemetry.capture import Door, Keeping
from telemetry.known import KnownSecrets
from telemetry.logs import log_record, write_records
from telemetry.metrics import Metrics
from telemetry.transcript import Transcripts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from pipeline.limits import Limits
    from proxy.config import Config
    from proxy.config_tables import ServerConfig
    from proxy.plugins import Plugins
    from recall.trouble import Trouble
    from telemetry.capture import Sink

log = structlog.get_logger("sottovoce.plugins")
memory_log = structlog.get_logger("sottovoce.memory")

RESPONSES_PATHS: Final = (
    "/v1/responses",
    "/responses",
    "/v1/codex/responses",
    "/backend-api/codex/responses",
)
CHAT_PATH: Final = "/v1/chat/completions"
_RELAYED: Final = (
    "/v1/{path:path}",
    "/responses/{path:path}",
    "/backend-api/codex/{path:path}",
)
_FINISH_SECONDS: Final = 5.0
_METRICS_SECONDS: Final = 0.1
"""How long figures wait for others: scrapes are seconds apart, and a thread is dear to wake."""


def create_app(config: Config) -> Starlette:
    """Return the application.

    Args:
        config: The effective configuration. State is opened when the server starts the
            application's lifespan, and closed when it ends.

    Raises:
        SottovoceError: The configuration asks for what is not served.
    """
    services = make_services(config)
    relay = RelayEndpoint(services)
    routes = [
        Route("/healthz", health, methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
        Route("/usage", usage, methods=["GET"]),
        Route("/api/turns/{turn}/activity", follow_activity, methods=["GET"]),
    ]
    if config.telemetry.metrics:
        routes.append(Route("/metrics", metrics, methods=["GET"]))
    routes += [Route(path, relay) for path in _RELAYED]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await _close(services)

    app = _App(services, routes=routes, lifespan=lifespan, exception_handlers={405: wrong_method})
    app.router.redirect_slashes = False
    app.router.default = wrong_path
    app.state.services = services
    app.state.drain = services.drain
    return app


def make_services(config: Config) -> Services:
    """Open what the process owns.

    Raises:
        SottovoceError: The configuration asks for what is not served.
        OSError: The state directory can't be used.
    """
    server = config.server
    server.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = read_secret(server.state_dir)
    figures = Metrics(version=VERSION)
    door = _door(config, figures)
    limits = config.limits.as_limits()
    router = _router(config, figures, limits)
    store = _store(config.memory_file)
    prefixes = PrefixCache()
    figures.watch_requests(lambda: {"known": prefixes.known, "parsed": prefixes.parsed})
    return Services(
        config=config,
        limits=limits,
        budgets=config.recall.budgets.as_budgets(),
        via=f"1.1 sottovoce-{secrets.token_hex(6)}".encode(),
        id_key=derive(secret, "ids"),
        seal_key=derive(secret, "compactions"),
        guard=_guard(server),
        tenants=Tenants(server.tenancy, config.access_tokens, derive(secret, "tenants")),
        router=router,
        plugins=_plugins(config),
        activity=Activity(),
        lanes=Lanes(switched_on=config.sessions.serialize),
        prefixes=prefixes,
        retries=Retries(),
        transcripts=Scribe(door, switched_on=config.telemetry.transcripts),
        store=store,
        joins=Joins(store, lost=figures.join_record_lost, unreadable=_memory_not_read),
        ingests=_ingests(store, figures),
        metrics=figures,
        door=door,
        usage=UsageBoard(),
        remembered=Remembered(),
        drain=Drain(),
        background=Background(),
    )


def _door(config: Config, figures: Metrics) -> Door:
    sinks: dict[str, Sink | Keeping] = {
        "log": Keeping(log_record, write_records),
        "metrics": Keeping(figures.observe, figures.flush, linger=_METRICS_SECONDS),
    }
    if config.telemetry.transcripts:
        sinks["transcripts"] = Transcripts(config.server.state_dir / "sessions")
    door = Door(sinks)
    figures.watch(door)
    return door


def _guard(server: ServerConfig) -> Guard:
    return Guard(
        server.host,
        server.port,
        allowed_hosts=server.allowed_hosts,
        allowed_origins=server.allowed_origins,
    )


def _router(config: Config, figures: Metrics, limits: Limits) -> Router:
    router = Router(
        Upstreams(config),
        figures,
        limits=limits,
        peek_seconds=config.server.keepalive_seconds,
        secrets=KnownSecrets(_secrets_of(config)),
    )
    figures.watch_circuits(router.circuit_states)
    return router


def _store(path: Path) -> Store:
    """Open the memory; each trouble with it is told once when it begins, and once at its end."""
    store = Store.open(path)

    def tell(trouble: Trouble | None, wrote: bool) -> None:  # noqa: FBT001 - Health's signature
        if trouble is None:
            memory_log.info("memory works again", file=str(path))
            return
        event = "memory not written" if wrote else "memory not read"
        memory_log.warning(event, cause=trouble.cause, hint=trouble.remedy, file=str(path))

    store.database.health.on_change = tell
    return store


def _ingests(store: Store, figures: Metrics) -> Ingests:
    """Return what writes turns into the memory: best effort, once a turn is over."""

    def failed(error: Exception | None) -> None:
        figures.ingest_failed()
        if error is not None and trouble_of(error) is None:
            # What is wrong with the file is told once, by its health.
            memory_log.warning(
                "memory not written",
                cause=f"unexpected {type(error).__name__}",
                hint="this is a defect of Sottovoce: please report it",
            )

    return Ingests(store, stored=figures.ingested, failed=failed)


def _secrets_of(config: Config) -> list[str]:
    """Return the keys of all upstreams and the access tokens."""
    keys = [one.credential for one in config.upstream]
    known = [*keys, *config.access_tokens.values()]
    return [one.get_secret_value() for one in known if one is not None]


def _plugins(config: Config) -> Plugins:
    """Load the plugins; each thing that is wrong with them is one line, and no more."""
    loaded = load_plugins(config.plugins, Path.cwd(), reserved={RECALL.name})
    for problem in loaded.problems:
        log.warning(
            "plugin left out", entry=problem.entry, code=problem.code.value, reason=problem.reason
        )
    return loaded


def _memory_not_read(error: Exception) -> None:
    structlog.get_logger("sottovoce.memory").warning("memory not read", error=type(error).__name__)


async def _close(services: Services) -> None:
    await services.background.finish(_FINISH_SECONDS)
    await services.ingests.close(_FINISH_SECONDS)
    await services.upstreams.close()
    await services.joins.close(_FINISH_SECONDS)
    await services.store.aclose()
    services.door.close(_FINISH_SECONDS)


class _App(Starlette):
    """What every request passes first: who may talk to us, and which way a request goes.

    A turn goes straight to who answers it. It makes an answer of whatever happens by itself, so
    nothing of the framework's stack is needed around it; everything else is routed by that.

    Args:
        services: What the process owns.
        framework: What Starlette takes.
    """

    def __init__(self, services: Services, **framework: Any) -> None:
        super().__init__(**framework)
        self._guard = services.guard
        responses = ResponsesEndpoint(services)
        self._turns: dict[str, ASGIApp] = dict.fromkeys(RESPONSES_PATHS, responses)
        self._turns[CHAT_PATH] = ChatEndpoint(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        try:
            self._guard.check(scope["headers"], scope["path"])
        except SottovoceError as error:
            if scope["type"] == "http":
                await send_error(send, error)
            else:
                await websocket_refusal(scope, send, error)
            return
        if scope["type"] == "websocket":
            await websocket_refusal(scope, send)
        elif (turn := self._turns.get(scope["path"])) is None:
            await super().__call__(scope, receive, send)
        elif scope["method"] == "POST":
            await turn(scope, receive, send)
        else:
            await _refuse_method(scope, send)


async def _refuse_method(scope: Scope, send: Send) -> None:
    """Answer what is no POST at the path of a turn."""
    upgrade = any(name == b"upgrade" for name, _ in scope["headers"])
    if upgrade and scope["path"] in RESPONSES_PATHS:
        await websocket_refusal(scope, send)
    else:
        refusal = method_refusal(scope["method"], scope["path"], ["POST"])
        await send_error(send, refusal, [(b"allow", b"POST")])
