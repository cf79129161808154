"""Streams through targets: rounds in which the targets take turns, one record for each run."""

from __future__ import annotations

import http.client
import json
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench import client, meter, script
from bench.targets import Bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.targets import Target

_WARM_UP: Final = 48
"""At least so many streams, and one on each connection, are run first, unmeasured, to learn the
speed."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        scenarios: ``PACE:STREAMS``, in order.
        targets: By name, in the order in which they take turns.
        rounds: How often.
        seconds: How long one run takes, about; a paced one takes as long as its stream.
        cores: The proxy's, and everybody else's.
        programs: Where compiled programs stay.
    """

    scenarios: tuple[str, ...]
    targets: tuple[str, ...]
    rounds: int
    seconds: float
    cores: tuple[int, int]
    programs: Path


def run(plan: Plan) -> Iterator[Record]:
    """Run a plan; all its targets are up for the whole of it.

    Raises:
        LoadError: A target changed or cut a stream.
    """
    with ExitStack() as stack:
        bench = Bench(stack, plan.programs, *plan.cores)
        provider = bench.provider()
        started = [bench.start(name, provider) for name in plan.targets]
        targets = [target for target in started if target is not None]
        for scenario in plan.scenarios:
            yield from _scenario(plan, bench, provider, targets, scenario)


def _scenario(
    plan: Plan, bench: Bench, provider: Target, targets: list[Target], scenario: str
) -> Iterator[Record]:
    pace, _, text = scenario.partition(":")
    at_once = int(text)
    if not script.PACES[pace].proxied:
        targets = [target for target in targets if target.name == "sottovoce"]
    runs = [_Runs(bench, target, provider, pace, at_once) for target in targets]
    counts = [each.streams(plan.seconds) for each in runs]
    for number in range(1, plan.rounds + 1):
        direct: Record = {}
        for each, streams in zip(runs, counts, strict=True):
            record = each.measure(streams)
            record = {"part": "streams", "scenario": scenario, "round": number, **record}
            if record["target"] == "direct":
                direct = record
            yield record | _added(record, direct)


def _added(record: Record, direct: Record) -> Record:
    """Return what a target adds to the times of the provider alone, in the same round."""
    return {
        f"added_{key}": record[key] - direct[key]
        for key in record
        if key.endswith("_ms") and key in direct
    }


class _Runs:
    """The runs of one target in one scenario."""

    def __init__(  # what a run is
        self, bench: Bench, target: Target, provider: Target, pace: str, at_once: int
    ) -> None:
        self._bench = bench
        self._target = target
        self._provider = provider
        self._pace = pace
        self._at_once = at_once

    def _drive(self, streams: int, watch: Callable[[], None] | None = None) -> client.Tally:
        program, port = self._bench.client, self._target.port
        return client.drive(program, port, self._pace, streams, self._at_once, watch=watch)

    def streams(self, seconds: float) -> int:
        """Warm the target up; return how many streams it does in about so many seconds."""
        if script.PACES[self._pace].interval_us:
            return self._at_once
        tally = self._drive(max(_WARM_UP, self._at_once))
        return max(self._at_once, int(tally.streams / tally.wall_s * seconds))

    def measure(self, streams: int) -> Record:
        """Run so many streams and return the record of the run."""
        target, provider = self._target.pid, self._provider.pid
        memory = [meter.memory_bytes(target)]
        before = meter.cpu_seconds(target), meter.cpu_seconds(provider)
        tally = self._drive(streams, lambda: memory.append(meter.memory_bytes(target)))
        cpu = meter.cpu_seconds(target) - before[0]
        serving = meter.cpu_seconds(provider) - before[1]
        events = streams * script.PACES[self._pace].events
        return {
            "target": self._target.name,
            "streams": streams,
            "wall_s": tally.wall_s,
            "cpu_us_per_stream": cpu / streams * 1e6,
            "cpu_us_per_event": cpu / events * 1e6,
            "streams_per_s": streams / tally.wall_s,
            "events_per_s": events / tally.wall_s,
            "events_per_core_s": events / cpu,
            "core_busy": cpu / tally.wall_s,
            "bench_busy": (serving + tally.cpu_s) / tally.wall_s,
            "memory_growth_mib": (max(memory) - memory[0]) / (1 << 20),
            **_times("first_event", tally.first_s),
            **_times("latency", tally.latency_s),
        }


def _times(name: str, seconds: list[float]) -> Record:
    """Return the median and the 99th percentile in milliseconds."""
    if not seconds:
        return {}
    cuts = statistics.quantiles(seconds, n=100) if len(seconds) > 1 else seconds * 99
    return {f"{name}_p50_ms": cuts[49] * 1e3, f"{name}_p99_ms": cuts[98] * 1e3}


def provider_stats(provider: Target) -> Record:
    """Return what a provider tells of follow-ups since the last time: see ``provider.c``."""
    connection = http.client.HTTPConnection("127.0.0.1", provider.port, timeout=10)
    try:
        connection.request("GET", "/stats")
        stats: Record = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return stats
