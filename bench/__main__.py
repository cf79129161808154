"""``python -m bench``: measure, and write what was found to ``bench/results``.

A scenario is ``PACE:STREAMS`` at once: ``fast:32`` is the figure to compare, ``each:32`` makes one
write of every event, ``paced:200`` tells latency, ``fast:1`` the way of the first event; ``json``,
``big`` (an argument of 1 MiB), ``code`` (full of quotes), ``recall`` (a hidden call in the middle)
and ``renumbered`` are other turns. Targets are ``direct`` (no proxy: what the bench itself can do),
where it is installed ``nginx-default`` (as it comes) and ``nginx`` (connections upstream stay open,
no access log), ``baseline`` (a plain pass-through) and ``sottovoce`` (this project, started as its
users start it, its pipeline compiled where ``make bench`` starts this command) with
``sottovoce-interpreted`` beside it; on request ``sottovoce-httpx``, the same with its other
transport. They take turns in every round. The proxy has one core for itself; provider and client
share the other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import footprint, growth, memory, native, plot, processes, report, requests, runs
from bench.targets import is_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_TARGETS: Final = (
    "direct",
    "nginx-default",
    "nginx",
    "baseline",
    "sottovoce-interpreted",
    "sottovoce",
)
_ON_REQUEST: Final = ("sottovoce-httpx",)
_PACES: Final = ("fast", "each", "json", "big", "recall", "paced")
_SCENARIOS: Final = (
    *(f"{pace}:{n}" for pace in _PACES for n in (1, 32, 200)),
    "code:32",
    "renumbered:32",
)
_QUICK: Final = ("fast:1", "fast:32", "renumbered:32", "each:32", "paced:200")
_BUILD: Final = Path("build/bench")
_PARTS: Final = ("streams", "requests", "growth", "memory", "processes", "footprint")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, the main scenarios")
    parser.add_argument("--full", action="store_true", help="also a memory of 1,000,000 entries")
    parser.add_argument("--part", action="append", choices=_PARTS)
    parser.add_argument("--scenario", action="append", metavar="PACE:STREAMS")
    parser.add_argument("--target", action="append", choices=(*_TARGETS, *_ON_REQUEST))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=0.8, help="length of one run, about")
    parser.add_argument("--cores", default="", help="PROXY,REST; default: the first, the last")
    parser.add_argument("--out", type=Path, help="where .jsonl, .md and .svg go, without suffix")
    parser.add_argument("--page", type=Path, help="a page to write the figures into as well")
    options = parser.parse_args()
    quick: bool = options.quick
    options.rounds = options.rounds or (1 if quick else 3)
    options.part = options.part or ([p for p in _PARTS if p != "memory"] if quick else _PARTS)
    options.out = options.out or Path("build/bench/quick" if quick else "bench/results/bench")
    cores = sorted(os.sched_getaffinity(0))
    given = [int(core) for core in options.cores.split(",") if core] or [cores[0], cores[-1]]
    options.cores = (given[0], given[-1])
    options.scenarios = tuple(options.scenario or (_QUICK if quick else _SCENARIOS))
    return options


def _about(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the figures depend on."""
    used = ("uvicorn", "uvloop", "httptools", "starlette", "httpx", "orjson")
    return {
        "part": "run",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.release()}",
        "python": " ".join(sys.version.split()),
        "pipeline": "compiled" if is_compiled() else "interpreted",
        "versions": ", ".join(f"{name} {version(name)}" for name in used),
        "nginx": _nginx(),
        "load at start": f"{os.getloadavg()[0]:.2f}",
        "rounds": options.rounds,
        "command": "python -m bench " + " ".join(sys.argv[1:]),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _nginx() -> str:
    try:
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
        told = subprocess.run(
            ["/usr/bin/env", f"PATH={path}", "nginx", "-v"],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "not installed"
    return told.stderr.strip().rpartition("/")[2]


def _measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    programs = _BUILD.absolute()
    plan = runs.Plan(
        scenarios=options.scenarios,
        targets=tuple(options.target or _TARGETS),
        rounds=options.rounds,
        seconds=options.seconds,
        cores=options.cores,
        programs=programs,
    )
    sizes = (100_000, 1_000_000) if options.full else (100_000,)
    parts: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "streams": lambda: runs.run(plan),
        "requests": requests.records,
        "growth": growth.records,
        "memory": lambda: memory.records(plan, sizes, programs),
        "processes": lambda: processes.records(plan),
        "footprint": lambda: footprint.records(plan),
    }
    yield _about(options)
    for part in options.part:
        yield from parts[part]()


def main() -> None:
    """Measure what the command line asks for: records, a report and a plot into files."""
    options = _options()
    if native.compiler() is None:
        raise SystemExit("the bench needs a C compiler for its provider and client: gcc")
    os.sched_setaffinity(0, {options.cores[1]})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    with options.out.with_suffix(".jsonl").open("w") as out:
        for record in _measure(options):
            records.append(record)
            out.write(json.dumps(record) + "\n")
            out.flush()
            sys.stderr.write(report.line(record) + "\n")
    text = report.markdown(records)
    options.out.with_suffix(".md").write_text(f"# Results\n\n{text}")
    options.out.with_suffix(".svg").write_text(plot.svg(records))
    if options.page is not None:
        options.page.write_text(report.page(options.page.read_text(), records))
    sys.stdout.write(report.bars(report.Figures(records)))


if __name__ == "__main__":
    main()
