"""Records of a run to text: a line while it runs, Markdown at its end.

A record is one JSON object; its ``part`` says what it is about. ``Figures`` finds medians over the
rounds, and ratios as medians of the ratios within each round.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Record = dict[str, Any]

_STREAMS: Final = (
    ("cpu_us_per_stream", "CPU µs a stream", "{:,.0f}"),
    ("cpu_us_per_event", "CPU µs an event", "{:,.2f}"),
    ("events_per_s", "events/s", "{:,.0f}"),
    ("events_per_core_s", "events per core second", "{:,.0f}"),
    ("core_busy", "core busy", "{:.2f}"),
    ("bench_busy", "bench core busy", "{:.2f}"),
    ("added_first_event_p50_ms", "added first event p50 ms", "{:.2f}"),
    ("added_first_event_p99_ms", "p99", "{:.2f}"),
    ("added_latency_p50_ms", "added event latency p50 ms", "{:.2f}"),
    ("added_latency_p99_ms", "p99", "{:.2f}"),
)
_BEGIN: Final = "<!-- figures -->"
_END: Final = "<!-- end of figures -->"
_RATIOS: Final = (
    ("nginx-default", "÷ nginx-default"),
    ("nginx", "÷ nginx"),
    ("baseline", "÷ baseline"),
)


class Figures:
    """What a run found.

    Args:
        records: Its records, in any order.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self.runs = [record for record in self.records if record["part"] == "streams"]

    def median(self, scenario: str, target: str, key: str) -> float | None:
        """Return a figure of a stream scenario; None where it was not measured."""
        values: list[float] = [
            run[key]
            for run in self.runs
            if (run["scenario"], run["target"]) == (scenario, target) and key in run
        ]
        return statistics.median(values) if values else None

    def ratio(
        self,
        one: tuple[str, str],
        other: tuple[str, str],
        key: str = "cpu_us_per_stream",
    ) -> float | None:
        """Return the median of one ÷ other within each round; each is a scenario and a target."""
        by_round = {(r["round"], r["scenario"], r["target"]): r[key] for r in self.runs}
        ratios = [
            value / by_round[number, *other]
            for (number, *place), value in by_round.items()
            if tuple(place) == one and (number, *other) in by_round
        ]
        return statistics.median(ratios) if ratios else None

    def of(self, part: str) -> list[Record]:
        """Return the records of a part."""
        return [record for record in self.records if record["part"] == part]

    def figure(self, part: str, scenario: str, key: str) -> float | None:
        """Return a figure that is measured once."""
        for record in self.of(part):
            if record["scenario"] == scenario:
                found: float = record[key]
                return found
        return None


def line(record: Record) -> str:
    """Return one record in one line."""
    if record["part"] == "streams":
        return (
            f"{record['scenario']} round {record['round']} {record['target']}: "
            f"{record['streams']} streams, {record['cpu_us_per_stream']:,.0f} µs CPU each, "
            f"{record['events_per_s']:,.0f} events/s"
        )
    named = (f"{k} {v:,.4g}" for k, v in record.items() if isinstance(v, int | float))
    return f"{record['part']} {record.get('scenario', '')}: {', '.join(named)}"


def markdown(records: Sequence[Record]) -> str:
    """Return the whole report of a run."""
    figures = Figures(records)
    parts = [_header(figures), "### Bars\n\n" + bars(figures), *_scenarios(figures)]
    parts += [_others(figures, part) for part in _PARTS if figures.of(part)]
    return "\n".join(part for part in parts if part)


def page(text: str, records: Sequence[Record]) -> str:
    """Return a page with the figures of a run between its two markers.

    Raises:
        ValueError: It lacks them.
    """
    figures = Figures(records)
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"the page lacks {_BEGIN} or {_END}")
    return f"{before}{begin}\n{_header(figures)}\n{bars(figures)}\n{end}{after}"


def _header(figures: Figures) -> str:
    lines = [f"- {k}: {v}" for run in figures.of("run") for k, v in run.items() if k != "part"]
    return "\n".join(lines) + "\n" if lines else ""


def _scenarios(figures: Figures) -> list[str]:
    """Return a table for each stream scenario."""
    parts = []
    for scenario in dict.fromkeys(run["scenario"] for run in figures.runs):
        runs = [run for run in figures.runs if run["scenario"] == scenario]
        shown = [column for column in _STREAMS if any(column[0] in run for run in runs)]
        head = ["target", *(title for _, title, _ in shown), *(title for _, title in _RATIOS)]
        rows = []
        for target in dict.fromkeys(run["target"] for run in runs):
            cells = [_cell(figures.median(scenario, target, key), form) for key, _, form in shown]
            ratios = [
                "-" if target == "direct" else figures.ratio((scenario, target), (scenario, other))
                for other, _ in _RATIOS
            ]
            cells += [each if isinstance(each, str) else _cell(each, "{:.2f}") for each in ratios]
            rows.append([target, *cells])
        parts.append(f"### {scenario}\n\n{table(head, rows)}")
    return parts


_PARTS: Final = {
    "requests": ("Preparing a request, ÷ `orjson.loads` of it", ("bytes", "pairs", "ratio")),
    "growth": ("Growth: CPU at three sizes", ("size", "us", "us_per_unit")),
    "open streams": ("Growth: open streams", ("cpu_us_per_event", "growth_kib_per_stream")),
    "renumbered": ("Renumbered ÷ untouched", ("ratio",)),
    "memory": (
        "From the upstream's terminal to the continuation",
        ("entries", "continuation_p50_ms", "continuation_p95_ms", "reused_connections"),
    ),
    "processes": ("Two processes", ("processes", "streams_per_s", "ratio")),
    "footprint": ("Start and size", ("seconds", "mib", "kib")),
}


def _others(figures: Figures, part: str) -> str:
    title, keys = _PARTS[part]
    records = figures.of(part)
    shown = [key for key in keys if any(key in record for record in records)]
    rows = [
        [record["scenario"], *(_cell(record.get(key), "{:,.4g}") for key in shown)]
        for record in records
    ]
    return f"### {title}\n\n{table(['', *(key.replace('_', ' ') for key in shown)], rows)}"


def bars(figures: Figures) -> str:
    """Return the figures that this project holds itself to: measured, must, aim."""
    rows = []
    for name, form, must, aim, value, *rest in _bars(figures):
        more = value is not None and name.startswith("events per second")
        met = value is not None and (value >= must if more else value <= must)
        shown = _cell(value, form) + "".join(rest)
        verdict = "-" if value is None else "yes" if met else f"**no**, {_miss(value, must)}"
        rows.append([name, shown, form.format(must), form.format(aim), verdict])
    return table(["figure", "measured", "must", "aim", "must met"], rows)


def _miss(value: float, must: float) -> str:
    return f"{max(value / must, must / value):.3g} times off"


def _bars(figures: Figures) -> list[tuple[Any, ...]]:
    ours, fast, each = "sottovoce", "fast:32", "each:32"
    paced = "paced:200"

    def ratio(scenario: str) -> float | None:
        return figures.ratio((scenario, ours), (scenario, "nginx-default"))

    found = [
        ("CPU ÷ nginx as it comes, fast:32", "{:.2f}", 7, 3.5, ratio(fast)),
        ("CPU ÷ nginx as it comes, each:32", "{:.2f}", 1.8, 0.9, ratio(each)),
        (
            "events per second on one core, fast:32",
            "{:,.0f}",
            140_000,
            250_000,
            figures.median(fast, ours, "events_per_core_s"),
        ),
        ("paced:200, core busy", "{:.2f}", 0.75, 0.45, figures.median(paced, ours, "core_busy")),
    ]
    for cut, must, aim in (("p50", 2, 1), ("p99", 15, 6)):
        value = figures.median(paced, ours, f"added_latency_{cut}_ms")
        found.append((f"paced:200, added event latency {cut}, ms", "{:.2f}", must, aim, value))
    first = figures.median("fast:1", ours, "added_first_event_p50_ms")
    found.append(("added time to first event, one client, p50, ms", "{:.2f}", 2, 0.6, first))
    value = figures.ratio(("renumbered:32", ours), (fast, ours))
    found.append(("every event renumbered ÷ untouched, CPU a stream", "{:.2f}", 1.6, 1.3, value))
    value = figures.figure("renumbered", "in process", "ratio")
    found.append(("the same, the pipeline alone", "{:.2f}", 1.6, 1.3, value))
    for size in ("40 KB", "1 MB", "20 MB"):
        for which in ("next", "first"):
            for way in ("declare", "restore"):
                value = figures.figure("requests", f"{which}, {way} {size}", "ratio")
                name = (
                    f"preparing a conversation's {which} request, {size} ({way}), ÷ `orjson.loads`"
                )
                found.append((name, "{:.2f}", 2.5, 1.5, value))
    for entries, must, aim in ((100_000, 30, 10), (1_000_000, 120, 40)):
        value = figures.figure("memory", f"{entries:,} entries", "continuation_p95_ms")
        name = f"terminal → continuation requested, p95, {entries:,} entries, ms"
        found.append((name, "{:.1f}", must, aim, value))
    value = figures.figure("footprint", "growth", "mib")
    found.append(("memory growth, 200 open streams, MiB", "{:.1f}", 20, 8, value))
    value = figures.figure("footprint", "ready", "seconds")
    found.append(("ready after, s", "{:.2f}", 0.9, 0.9, value))
    value = figures.figure("footprint", "help", "seconds")
    found.append(("`--help` after, s", "{:.2f}", 0.1, 0.1, value))
    return found


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are numbers."""
    lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)
