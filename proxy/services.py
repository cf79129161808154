"""What the process owns: made once at start, shared by all turns, closed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.request import HiddenTool
from proxy.faults import report
from recall import tool
from recall.migrations import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pipeline.limits import Budgets, Limits
    from pipeline.prefixes import PrefixCache
    from proxy.activity import Activity
    from proxy.config import Config
    from proxy.driver import Driver
    from proxy.guard import Guard
    from proxy.lanes import Lanes
    from proxy.plugins import Plugins
    from proxy.remembered import Remembered
    from proxy.retries import Retries
    from proxy.router import Router
    from proxy.scribe import Scribe
    from proxy.sessions import Tenants
    from proxy.upstreams import Upstreams
    from proxy.usage_board import UsageBoard
    from recall.ingests import Ingests
    from recall.joins import Joins
    from recall.store import Store
    from telemetry.capture import Door
    from telemetry.known import KnownSecrets
    from telemetry.metrics import Metrics

RECALL: Final = HiddenTool(tool.NAME, tool.DECLARATION)
_SECRET_BYTES: Final = 32


class Background:
    """Tasks that outlive their turn. They are few, short, and finished before the process ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, awaitable: Awaitable[Any]) -> None:
        """Run something to its end."""
        task = asyncio.ensure_future(awaitable)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            report(error)

    async def finish(self, seconds: float) -> None:
        """Wait for all of them, then cancel what is left."""
        if self._tasks:
            _, pending = await asyncio.wait(set(self._tasks), timeout=seconds)
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)


@dataclass(eq=False)
class Drain:
    """How the process stops: announced, then open turns end, then they are ended.

    Attributes:
        draining: Whether new clients should go elsewhere.
        turns: The drivers of open turns.
    """

    draining: bool = False
    turns: set[Driver] = field(default_factory=set)

    def begin(self) -> None:
        """Say on ``/readyz`` and on every answer that this process is about to stop."""
        self.draining = True

    def deadline(self) -> None:
        """End what is still open, with a terminal each."""
        for driver in tuple(self.turns):
            driver.shut_down()


@dataclass(frozen=True, slots=True, eq=False)
class Services:
    """What a request handler can use.

    Attributes:
        config: The effective configuration.
        limits: Buffer limits of a turn.
        budgets: What hidden calls may cost a turn.
        via: Names this process in a Via header.
        id_key: Key of the ids that we mint, the same for every process on one state directory.
        seal_key: Key of the summaries that clients keep for us, the same everywhere as well.
        guard: Who may talk to us.
        tenants: Whose request it is.
        router: The providers, and the way to them.
        plugins: What the user's plugins bring.
        activity: What hidden tools the last turns ran.
        lanes: One turn at a time per conversation, where that is asked for.
        prefixes: The last request of each conversation, as it was read.
        retries: Which runs are of one and the same request.
        transcripts: What of a turn goes into its conversation's transcript.
        store: The memory.
        joins: What turns leave for later requests.
        ingests: What turns add to the memory.
        metrics: What is counted.
        door: Where records go.
        usage: Newest quota and usage of each tenant.
        remembered: Responses of upstreams that keep none.
        drain: How the process stops.
        background: Tasks that outlive their turn.
    """

    config: Config
    limits: Limits
    budgets: Budgets
    via: bytes
    id_key: bytes
    seal_key: bytes
    guard: Guard
    tenants: Tenants
    router: Router
    plugins: Plugins
    activity: Activity
    lanes: Lanes
    prefixes: PrefixCache
    retries: Retries
    transcripts: Scribe
    store: Store
    joins: Joins
    ingests: Ingests
    metrics: Metrics
    door: Door
    usage: UsageBoard
    remembered: Remembered
    drain: Drain
    background: Background

    @property
    def upstreams(self) -> Upstreams:
        """The providers."""
        return self.router.upstreams

    @property
    def secrets(self) -> KnownSecrets:
        """What no provider's words may carry to a client."""
        return self.router.secrets


def read_secret(state_dir: Path) -> bytes:
    """Return the state directory's secret, made on first use with mode 0600.

    Raises:
        OSError: The directory can't be used.
        StoreError: The secret is none.
    """
    path = state_dir / "secret"
    if not path.exists():
        descriptor, made = tempfile.mkstemp(prefix="secret.", dir=state_dir)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_SECRET_BYTES))
            # Whole or not at all: of processes that start together, the first one's stays.
            with contextlib.suppress(FileExistsError):
                os.link(made, path)
        finally:
            Path(made).unlink()
    secret = path.read_bytes()
    if len(secret) < _SECRET_BYTES:
        hint = "delete it and start again: ids from before mean nothing then"
        raise StoreError(f"{path} is damaged", hint=hint)
    return secret


def derive(secret: bytes, purpose: str) -> bytes:
    """Return a key for one purpose."""
    return hmac.new(secret, purpose.encode(), hashlib.sha256).digest()
