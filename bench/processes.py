"""Two processes on one state directory behind one port, against one: what a second core brings."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from bench import client
from bench.targets import Bench, free_port, process, sottovoce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.runs import Plan

_AT_ONCE: Final = 64
"""Connections: the system deals them out to the processes by a hash, so a few would not do."""


def records(plan: Plan) -> Iterator[dict[str, Any]]:
    """Measure the throughput of one and of two processes, in rounds by turns."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(plan.rounds):
        for count, rates in found.items():
            rates.append(_rate(plan, count))
    one = statistics.median(found[1])
    for count, rates in found.items():
        pairs = zip(rates, found[1], strict=True)
        yield {
            "part": "processes",
            "scenario": f"fast:{_AT_ONCE}",
            "processes": count,
            "streams_per_s": statistics.median(rates) if count > 1 else one,
            "ratio": statistics.median(rate / alone for rate, alone in pairs),
        }


def _rate(plan: Plan, count: int) -> float:
    """Return streams a second of so many processes; the second shares its core with the bench."""
    with ExitStack() as stack:
        bench = Bench(stack, plan.programs, *plan.cores)
        provider, port, state = bench.provider(), free_port(), bench.folder()
        for core in plan.cores[:count]:
            command = [*sottovoce(port, provider, state), "--reuse-port"]
            stack.enter_context(process(command, port, core))
        client.drive(bench.client, port, "fast", 4 * _AT_ONCE, _AT_ONCE)
        streams = max(4, round(plan.seconds * 4)) * _AT_ONCE
        tally = client.drive(bench.client, port, "fast", streams, _AT_ONCE)
        return tally.streams / tally.wall_s
