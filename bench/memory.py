"""How long a hidden call takes: from the upstream's terminal to the request of the continuation.

Measured at the provider, so that everything is in it: the search, the ledger, the follow-up, and
the connection that it comes on.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from bench import client, runs
from bench.targets import Bench, Target, free_port, process, sottovoce
from recall import entries
from recall.entries import Draft, Scope
from recall.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BATCH: Final = 5_000
_SESSION: Final = 100
"""Entries of one conversation."""
_STREAMS: Final = 200
_WORDS: Final = 30_000
_LENGTH: Final = 24
_COMMON: Final = ("what", "we", "decision", "week", "last", "staging", "deploy", "database")


def records(plan: runs.Plan, sizes: tuple[int, ...], folder: Path) -> Iterator[dict[str, Any]]:
    """Measure with memories of so many entries; they are made once and kept in ``folder``."""
    for size in sizes:
        state = folder / f"memory-{size}"
        if not (state / "complete").exists():
            _fill(state, size)
        with ExitStack() as stack:
            bench = Bench(stack, plan.programs, *plan.cores)
            provider = bench.provider()
            port = free_port()
            command = sottovoce(port, provider, state)
            pid = stack.enter_context(process(command, port, bench.core))
            yield {"part": "memory", **_measure(bench, provider, Target("", port, pid), size)}


def _measure(bench: Bench, provider: Target, target: Target, size: int) -> dict[str, Any]:
    client.drive(bench.client, target.port, "recall", 10, 1)  # opens connections, warms caches
    runs.provider_stats(provider)
    client.drive(bench.client, target.port, "recall", _STREAMS, 1)
    stats = runs.provider_stats(provider)
    gaps = sorted(gap / 1e3 for gap in stats["gaps_us"])
    reused = len(gaps) / (len(gaps) + stats["elsewhere"])
    return {
        "scenario": f"{size:,} entries",
        "entries": size,
        "continuation_p50_ms": statistics.median(gaps),
        "continuation_p95_ms": statistics.quantiles(gaps, n=20)[18],
        "reused_connections": reused,
    }


def _fill(state: Path, size: int) -> None:
    """Make a memory of so many entries: words as often as in a language, always the same."""
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)
    (state / "memory.db").unlink(missing_ok=True)
    dice = random.Random(7)
    words = [*_COMMON, *(f"word{number}" for number in range(_WORDS))]
    weights = [*accumulate(1 / (rank + 10) for rank in range(len(words)))]
    with Store.open(state / "memory.db") as store:
        for first in range(0, size, _BATCH):
            said = dice.choices(words, cum_weights=weights, k=_BATCH * _LENGTH)
            store.database.write(partial(_add, first=first, said=said))
    (state / "complete").write_text(f"{time.time():.0f}\n")


def _add(connection: Any, *, first: int, said: list[str]) -> None:
    texts = [" ".join(said[at : at + _LENGTH]) for at in range(0, len(said), _LENGTH)]
    rows: list[entries.Row] = []
    for start in range(0, len(texts), _SESSION):
        scope = Scope("local", "default", f"session-{first + start}")
        drafts = [Draft(text, "user") for text in texts[start : start + _SESSION]]
        rows += entries.insert(connection, scope, drafts, 1.79e9)
    entries.index(connection, rows)
