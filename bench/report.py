"""Records of runs to text: one line while it runs, a Markdown table of medians at the end."""

from __future__ import annotations

import statistics
from typing import Any, Final

_COLUMNS: Final = (
    ("cpu_us_per_stream", "CPU µs a stream", "{:,.0f}"),
    ("events_per_s", "events/s", "{:,.0f}"),
    ("events_per_core_s", "events per core second", "{:,.0f}"),
    ("core_busy", "core busy", "{:.2f}"),
    ("bench_core_busy", "bench core busy", "{:.2f}"),
    ("first_event_ms", "first event ms", "{:.2f}"),
    ("latency_p50_ms", "latency p50 ms", "{:.2f}"),
    ("latency_p99_ms", "latency p99 ms", "{:.2f}"),
    ("memory_growth_mib", "memory growth MiB", "{:.1f}"),
)
_REFERENCE: Final = "baseline"


def line(record: dict[str, Any]) -> str:
    """Return one run in one line."""
    return (
        f"{record['scenario']} round {record['round']} {record['target']}: "
        f"{record['streams']} streams, {record['cpu_us_per_stream']:,.0f} µs CPU each, "
        f"{record['events_per_s']:,.0f} events/s"
    )


def table(records: list[dict[str, Any]]) -> str:
    """Return per scenario a table: medians over the rounds, and baseline ÷ target as CPU ratio."""
    parts = []
    for scenario in dict.fromkeys(record["scenario"] for record in records):
        runs = [record for record in records if record["scenario"] == scenario]
        shown = [column for column in _COLUMNS if column[0] in runs[0]]
        rows = [["target", *(title for _, title, _ in shown), f"{_REFERENCE} ÷ target"]]
        rows.append(["---", *("--:" for _ in shown), "--:"])
        for target in dict.fromkeys(record["target"] for record in runs):
            cells = [form.format(_median(runs, target, key)) for key, _, form in shown]
            rows.append([target, *cells, _ratio(runs, target)])
        lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        parts.append(f"### {scenario}\n\n{lines}")
    return "\n".join(parts)


def _median(runs: list[dict[str, Any]], target: str, key: str) -> float:
    values: list[float] = [run[key] for run in runs if run["target"] == target]
    return statistics.median(values)


def _ratio(runs: list[dict[str, Any]], target: str) -> str:
    """Return the median over the rounds of baseline CPU ÷ this target's in the same round."""
    by_round = {(run["round"], run["target"]): run["cpu_us_per_stream"] for run in runs}
    rounds = sorted({run["round"] for run in runs})
    if target == "direct" or (rounds[0], _REFERENCE) not in by_round:
        return "-"
    ratios = [by_round[n, _REFERENCE] / by_round[n, target] for n in rounds]
    return f"{statistics.median(ratios):.2f}"
