"""Start and size: how soon the proxy is ready, what it takes of memory and of the disk."""

from __future__ import annotations

import importlib.metadata
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import client, meter, stream
from bench.targets import Bench, free_port, process, sottovoce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.runs import Plan
    from bench.targets import Target

_STARTS: Final = 5
_OPEN: Final = (50, 100, 200)
_MIB: Final = 1 << 20


def records(plan: Plan) -> Iterator[dict[str, Any]]:
    """Measure starts, resident memory idle and with 200 open streams, and the installed size."""
    with ExitStack() as stack:
        bench = Bench(stack, plan.programs, *plan.cores)
        provider = bench.provider()
        ready = [_ready(bench, provider) for _ in range(_STARTS)]
        yield _record("ready", seconds=statistics.median(ready))
        yield _record("help", seconds=statistics.median(_help() for _ in range(_STARTS)))
        for count in _OPEN:
            yield from _open_streams(bench, provider, count)
    yield _record("installed, without dependencies", mib=_installed(("sottovoce",)) / _MIB)
    yield _record("installed, with dependencies", mib=_installed(_needed("sottovoce")) / _MIB)


def _open_streams(bench: Bench, provider: Target, count: int) -> Iterator[dict[str, Any]]:
    """Measure a fresh process with so many open streams."""
    port = free_port()
    with process(sottovoce(port, provider, bench.folder()), port, bench.core) as pid:
        idle = meter.memory_bytes(pid)
        client.drive(bench.client, port, "fast", 100, 1)  # what the first turns load stays
        warm, seen = meter.memory_bytes(pid), [0]
        before = meter.cpu_seconds(pid)

        def watch() -> None:
            seen.append(meter.memory_bytes(pid))

        client.drive(bench.client, port, "paced", count, count, watch=watch)
        cpu = meter.cpu_seconds(pid) - before
    growth = max(seen) - warm
    if count == max(_OPEN):
        yield _record("idle", mib=idle / _MIB)
        yield _record("after the first turns", mib=warm / _MIB)
        yield _record(f"{count} open streams", mib=max(seen) / _MIB)
        yield _record("growth", mib=growth / _MIB)
    yield {
        "part": "open streams",
        "scenario": f"{count} streams, 50 events a second each",
        "cpu_us_per_event": cpu / (count * stream.EVENTS) * 1e6,
        "growth_kib_per_stream": growth / count / 1024,
    }


def _record(name: str, **figure: float) -> dict[str, Any]:
    return {"part": "footprint", "scenario": name, **figure}


def _ready(bench: Bench, provider: Target) -> float:
    port, started = free_port(), time.monotonic()
    with process(sottovoce(port, provider, bench.folder()), port, bench.core):
        return time.monotonic() - started


def _help() -> float:
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "proxy.cli", "--help"], check=True, stdout=subprocess.DEVNULL
    )
    return time.monotonic() - started


def _needed(name: str) -> tuple[str, ...]:
    """Return a distribution with all that it needs here, extras aside."""
    found = [name]
    for each in found:
        for requirement in importlib.metadata.requires(each) or ():
            wanted, _, marker = requirement.partition(";")
            bare = wanted.strip().split("[")[0]
            bare = "".join(bare[: next((i for i, c in enumerate(bare) if c in " <>=!~("), None)])
            known = {one.lower().replace("_", "-") for one in found}
            if "extra" in marker or bare.lower().replace("_", "-") in known:
                continue
            try:
                importlib.metadata.version(bare)
            except importlib.metadata.PackageNotFoundError:
                continue  # another platform's
            found.append(bare)
    return tuple(found)


def _installed(names: tuple[str, ...]) -> int:
    """Return the bytes of the files of these distributions; of our own, those of its packages."""
    total = 0
    for name in names:
        if name == "sottovoce":
            root = Path(__file__).parent.parent
            packages = [root / each for each in ("proxy", "pipeline", "recall", "telemetry")]
            total += sum(f.stat().st_size for p in packages for f in p.rglob("*.py"))
            continue
        files = importlib.metadata.files(name) or ()
        paths = (Path(str(file.locate())) for file in files)
        total += sum(path.stat().st_size for path in paths if path.is_file())
    return total
