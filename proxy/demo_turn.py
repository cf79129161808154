"""The demonstration itself: a fixture as the provider, the real proxy before it, one real turn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import httpx
import uvicorn

from pipeline import jsontext
from pipeline.sse import SSEDecoder
from proxy.app import create_app
from proxy.config import load_config
from proxy.fixture import read_fixture
from proxy.fixture_provider import FixtureProvider, answers
from recall.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from proxy.config import Config
    from proxy.config_toml import KeyPath

Event = dict[str, Any]
Lifespan = Literal["auto", "on", "off"]

FIXTURE: Final = Path(__file__).with_name("demo.jsonl")
_TENANT: Final = "local"
_NO_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the events of its answer."""

    request: dict[str, Any]
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What happened: between client and proxy, and between proxy and provider."""

    client: Exchange
    wire: list[Exchange]
    memory: tuple[str, ...]
    """What the memory held before."""


async def demonstrate(folder: Path) -> Demonstration:
    """Run the demonstration's turn over loopback sockets.

    Args:
        folder: Empty; for the state of the proxy.
    """
    fixture = read_fixture(FIXTURE)
    request = next(one.members["body"] for one in fixture.records if one.kind == "request")
    provider = FixtureProvider(fixture)
    with _listener() as upstream, _listener() as downstream:
        config = _config(folder, _port(upstream), _port(downstream))
        _remember(config.server.state_dir, fixture.header.memory)
        async with (
            _served(provider, upstream, lifespan="off"),
            _served(create_app(config), downstream, lifespan="on"),
        ):
            events = await _stream(_port(downstream), request)
    wire = [
        Exchange(jsontext.loads(body), _events(record.data() for record in answer.body))
        for body, answer in zip(provider.requests, answers(fixture), strict=False)
    ]
    return Demonstration(Exchange(request, events), wire, fixture.header.memory)


def marks(demonstration: Demonstration) -> list[list[str]]:
    """Say of every event on the wire what became of it: ``hidden``, ``edited`` or nothing.

    Numbers change on the way, so an event is looked for, in order, by its type and by the words
    that it carries; the terminal of the last hop stands for the turn's.
    """
    left = list(demonstration.client.events)
    found: list[list[str]] = []
    for exchange in demonstration.wire:
        last = exchange is demonstration.wire[-1]
        found.append([])
        for event in exchange.events:
            ends = event["type"] == "response.completed"
            same = [_likeness(event) == _likeness(one) for one in left]
            if (ends and not last) or True not in same:
                found[-1].append("hidden")
                continue
            place = same.index(True)
            found[-1].append("" if _unnumbered(event) == _unnumbered(left[place]) else "edited")
            del left[: place + 1]
    return found


def _likeness(event: Event) -> tuple[Any, ...]:
    item = event.get("item") or {}
    words = (event.get("delta"), event.get("text"), event.get("arguments"))
    return (event["type"], item.get("type"), item.get("call_id"), *words)


def _unnumbered(event: Event) -> Event:
    return {k: v for k, v in event.items() if k not in {"sequence_number", "output_index"}}


def _config(folder: Path, upstream_port: int, port: int) -> Config:
    """Load a configuration that is nobody's but the demonstration's."""
    empty = folder / "sottovoce.toml"
    empty.touch()
    flags: dict[KeyPath, object] = {
        ("server", "state_dir"): str(folder / "state"),
        ("server", "port"): port,
        ("upstream",): f"http://127.0.0.1:{upstream_port}/v1",
    }
    return load_config(config_file=empty, flags=flags, environ={}, directory=folder)


def _remember(state: Path, memory: Iterable[str]) -> None:
    state.mkdir(mode=0o700, parents=True)
    with Store.open(state / "memory.db") as store:
        for age, text in enumerate(memory, 1):
            store.add_text(_TENANT, "default", f"earlier-{age}", text, time.time() - age * 86_400)


async def _stream(port: int, request: dict[str, Any]) -> list[Event]:
    url = f"http://127.0.0.1:{port}/v1/responses"
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
        client.stream("POST", url, json=request) as response,
    ):
        return _events([data async for data in response.aiter_bytes()])


def _events(pieces: Iterable[bytes]) -> list[Event]:
    decoder = SSEDecoder(event_bytes=_NO_LIMIT, frames=_NO_LIMIT)
    frames = [*decoder.feed(b"".join(pieces)), *decoder.finish()]
    return [jsontext.loads(data) for frame in frames if (data := getattr(frame, "data", None))]


def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


class _Server(uvicorn.Server):
    """Leaves the signals to whoever runs the loop: Ctrl-C cancels us all."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:  # a generator, as in uvicorn
        yield


@contextlib.asynccontextmanager
async def _served(app: Any, listener: socket.socket, *, lifespan: Lifespan) -> AsyncIterator[None]:
    config = uvicorn.Config(app, lifespan=lifespan, log_config=None, ws="none")
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
