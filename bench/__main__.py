"""``python -m bench``: run scenarios against targets, in rounds that take turns.

A scenario is ``PACE:STREAMS`` at once: ``fast:32`` is the figure to compare, ``each:32`` makes
one write of every event, ``paced:200`` tells latency and memory, ``fast:1`` the first event's way.
A target is ``baseline`` (the plain pass-through), ``sottovoce`` (this project, started as its users
start it), ``direct`` (no proxy: what the bench itself can do), or ``NAME=URL@PID`` for a proxy that
runs already and whose upstream is the provider at ``--provider-port``. The target has one core
for itself; provider and client share the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from bench import load, meter, report, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCENARIOS: Final = ("fast:32", "each:32", "paced:200", "fast:1")
_START_SECONDS: Final = 20
_WARM_UP: Final = 3
"""Times the concurrency: so many streams are run first, unmeasured, to learn the speed."""


@dataclass(frozen=True, slots=True)
class Target:
    """A running proxy (or none: then ``pid`` is the provider's)."""

    name: str
    url: str
    pid: int


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    """Whether something that speaks HTTP listens there."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            return probe.recv(5) == b"HTTP/"
    except OSError:
        return False


@contextmanager
def _process(arguments: list[str], port: int, core: int) -> Iterator[int]:
    """Start ``python ARGUMENTS`` on one core, wait until it answers, stop it at the end."""
    child = subprocess.Popen(  # noqa: S603  # arguments are ours
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    try:
        os.sched_setaffinity(child.pid, {core})
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"python {' '.join(arguments)} did not start")
            time.sleep(0.02)
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _start(name: str, provider: Target, core: int, stack: ExitStack) -> Target:
    """Start (or find) the target called ``name`` in front of ``provider``."""
    label, given, address = name.partition("=")
    if given:
        url, _, process = address.rpartition("@")
        return Target(label, url, int(process))
    if name == "direct":
        return Target(name, provider.url, provider.pid)
    port = _free_port()
    if name == "baseline":
        arguments = ["-m", "bench.baseline", str(port), provider.url]
    elif name == "sottovoce":
        state = stack.enter_context(tempfile.TemporaryDirectory(prefix="sottovoce-bench-"))
        arguments = ["-m", "proxy.cli", "serve", "--port", str(port), "--upstream", provider.url]
        arguments += ["--state-dir", state]
    else:
        raise SystemExit(f"unknown target {name}")
    pid = stack.enter_context(_process(arguments, port, core))
    return Target(name, f"http://127.0.0.1:{port}/v1", pid)


async def _measure(target: Target, scenario: str, streams: int, provider: int) -> dict[str, Any]:
    """Run ``streams`` streams and return the record of the run."""
    pace, _, at_once = scenario.partition(":")
    memory = meter.memory_bytes(target.pid)
    before = _clocks(target.pid, provider)
    running = asyncio.create_task(
        load.drive(target.url, streams=streams, at_once=int(at_once), stamped=pace == "paced")
    )
    peak = memory
    while not (await asyncio.wait({running}, timeout=0.25))[0]:
        peak = max(peak, meter.memory_bytes(target.pid))
    tally = running.result()
    after = _clocks(target.pid, provider)
    cpu, *bench = (end - begin for begin, end in zip(before, after, strict=True))
    record = {
        "scenario": scenario,
        "target": target.name,
        "streams": tally.streams,
        "wall_s": tally.wall_s,
        "cpu_us_per_stream": cpu / tally.streams * 1e6,
        "events_per_s": tally.streams * stream.EVENTS / tally.wall_s,
        "events_per_core_s": tally.streams * stream.EVENTS / cpu,
        "core_busy": cpu / tally.wall_s,
        "bench_core_busy": sum(bench) / tally.wall_s,
        "first_event_ms": statistics.median(tally.first_byte_s) * 1e3,
        "memory_growth_mib": (peak - memory) / (1 << 20),
    }
    if tally.latency_s:
        cuts = statistics.quantiles(tally.latency_s, n=100)
        record |= {"latency_p50_ms": cuts[49] * 1e3, "latency_p99_ms": cuts[98] * 1e3}
    return record


def _clocks(target: int, provider: int) -> tuple[float, float, float]:
    """Return CPU seconds of the target, of the provider, and of the client (this process)."""
    return meter.cpu_seconds(target), meter.cpu_seconds(provider), time.process_time()


async def _streams_for(target: Target, scenario: str, seconds: float) -> int:
    """Warm a target up; return how many streams it does in about ``seconds``."""
    pace, _, text = scenario.partition(":")
    at_once = int(text)
    if pace == "paced":
        return at_once
    tally = await load.drive(target.url, streams=_WARM_UP * at_once, at_once=at_once)
    return max(at_once, int(tally.streams / tally.wall_s * seconds))


def _run(scenario: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run all rounds of a scenario; targets take turns in every round."""
    pace, _, _ = scenario.partition(":")
    core, others = options.cores
    port = options.provider_port or _free_port()
    with ExitStack() as stack:
        served = ["-m", "bench.provider", str(port), pace]
        pid = stack.enter_context(_process(served, port, others))
        provider = Target("provider", f"http://127.0.0.1:{port}/v1", pid)
        targets = [_start(name, provider, core, stack) for name in options.target]
        counts = [uvloop.run(_streams_for(t, scenario, options.seconds)) for t in targets]
        for number in range(1, options.rounds + 1):
            for target, streams in zip(targets, counts, strict=True):
                measured = uvloop.run(_measure(target, scenario, streams, provider.pid))
                yield {"round": number, **measured}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--scenario", action="append", metavar="PACE:STREAMS")
    parser.add_argument("--target", action="append", metavar="NAME[=URL@PID]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="length of one run, about")
    parser.add_argument("--provider-port", type=int, help="of the provider, for given targets")
    parser.add_argument("--cores", default="", help="TARGET,REST; default: the first, the last")
    parser.add_argument("--out", type=Path, default=Path("build/bench.jsonl"))
    options = parser.parse_args()
    options.scenario = options.scenario or list(_SCENARIOS)
    options.target = options.target or ["direct", "baseline", "sottovoce"]
    cores = sorted(os.sched_getaffinity(0))
    given = [int(core) for core in options.cores.split(",") if core] or [cores[0], cores[-1]]
    options.cores = (given[0], given[-1])
    return options


def main() -> None:
    """Run what the command line asks for: records to a file of JSON lines, a table to stdout."""
    options = _options()
    os.sched_setaffinity(0, {options.cores[1]})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    with options.out.open("w") as out:
        for scenario in options.scenario:
            for record in _run(scenario, options):
                records.append(record)
                out.write(json.dumps(record) + "\n")
                out.flush()
                sys.stderr.write(report.line(record) + "\n")
    sys.stdout.write(report.table(records))


if __name__ == "__main__":
    main()
