"""``sottovoce demo``: the main job, shown without an account or a network."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proxy.demo_turn import Demonstration, Event, Exchange

_SHOWN: Final = 60
"""Characters of a text that fit beside an event's name."""
_STYLES: Final = {
    "": "",
    "title": "bold",
    "talk": "dim",
    "hidden": "magenta",
    "added": "cyan",
    "edited": "cyan",
}


class Line(NamedTuple):
    """A line of the report; ``kind`` is a key of ``_STYLES``."""

    kind: str
    text: str


@click.command("demo")
def command() -> None:
    """Show a hidden recall without any account.

    Starts a provider that replays a fixture, and the proxy before it, both on free loopback
    ports, with a memory of their own that is gone afterwards. One turn is streamed through them
    and shown twice: as the client saw it, and as it really went.
    """
    import asyncio
    import logging
    import tempfile
    from pathlib import Path

    from proxy.demo_turn import demonstrate
    from telemetry.logs import LogFormat, configure_logging

    log = configure_logging(log_format=LogFormat.AUTO, stream=sys.stderr, level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="sottovoce-demo-") as folder:
        shown = asyncio.run(demonstrate(Path(folder)))
    log.close(1)
    say = _printer()
    for line in report(shown):
        say(line)


def report(shown: Demonstration) -> Iterator[Line]:
    """Yield the lines that tell what happened."""
    from proxy.demo_turn import marks

    client, wire = shown.client, marks(shown)
    yield Line("title", "What the client saw")
    yield _asked(client, "")
    yield from _answered(client.events, [""] * len(client.events))
    yield Line("", "")
    yield Line("title", "What really went on the wire")
    for text in shown.memory:
        yield Line("talk", f"  memory   {text}")
    before: list[Any] = client.request["input"]
    for exchange, marked in zip(shown.wire, wire, strict=True):
        yield _asked(exchange, "edited")
        for item in exchange.request["input"][len(before) :]:
            yield _added(item)
        before = exchange.request["input"]
        yield from _answered(exchange.events, marked)
    count = sum(marked.count("hidden") for marked in wire)
    yield Line("", "")
    yield Line("talk", f"{count} events stayed between proxy and provider, unheard by the client.")


def _asked(exchange: Exchange, mark: str) -> Line:
    tools = ", ".join(str(tool.get("name")) for tool in exchange.request.get("tools", ()))
    return _row(mark, "→", "POST /v1/responses", f"tools: {tools}")


def _added(item: dict[str, Any]) -> Line:
    words = item.get("output") or item.get("arguments")
    return _row("added", "+", str(item["type"]), _quoted(str(words)) if words else "")


def _answered(events: list[Event], marked: list[str]) -> Iterator[Line]:
    """Yield a line for each event, deltas in a row together."""
    pairs = zip(events, marked, strict=True)
    for (type_, mark), run in groupby(pairs, lambda pair: (pair[0]["type"], pair[1])):
        group = [event for event, _ in run]
        name = f"{type_} x{len(group)}" if len(group) > 1 else type_
        yield _row(mark, "←", name, _detail(group))


def _detail(group: list[Event]) -> str:
    event = group[0]
    if "delta" in event:
        return _quoted("".join(str(one["delta"]) for one in group))
    if "item" in event:
        item = event["item"]
        return " ".join(str(item[key]) for key in ("type", "name") if key in item)
    usage = event.get("response", {}).get("usage")
    if usage:
        return f"{usage['input_tokens']} tokens in, {usage['output_tokens']} out"
    return ""


def _row(mark: str, arrow: str, name: str, detail: str) -> Line:
    return Line(mark, f"{mark:>8} {arrow} {name:<42} {detail}".rstrip())


def _quoted(text: str) -> str:
    flat = " ".join(text.split())
    return f"“{flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + '…'}”"


def _printer() -> Callable[[Line], None]:
    """Return what prints a line: in colours on a terminal, plain into anything else."""
    if not sys.stdout.isatty():
        return lambda line: click.echo(line.text)

    from rich.console import Console
    from rich.text import Text

    console = Console()
    return lambda line: console.print(
        Text(line.text, style=_STYLES[line.kind]), no_wrap=True, overflow="ellipsis", crop=True
    )
