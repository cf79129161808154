"""``python -m bench.compare OLD NEW``: two result files side by side, as ratios new ÷ old.

What was measured beside a reference in its own run is compared by that: CPU of this project as its
ratio to nginx's (else to the plain pass-through's, else as it is), so that two runs on machines of
unequal speed, or beside unequal neighbours, still compare. Everything else as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.report import Figures, table

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS: Final = "sottovoce"
_REFERENCES: Final = ("nginx", "baseline")
_FIGURES: Final = (
    "ratio",
    "us_per_unit",
    "cpu_us_per_event",
    "growth_kib_per_stream",
    "continuation_p95_ms",
    "seconds",
    "mib",
    "instructions",
)


def load(path: Path) -> Figures:
    """Return what a file of JSON lines has."""
    return Figures(json.loads(text) for text in path.read_text().splitlines() if text)


def comparison(old: Figures, new: Figures) -> Iterator[tuple[str, float, float]]:
    """Yield name, old and new value of everything that both have; smaller is better in all."""
    for scenario in dict.fromkeys(run["scenario"] for run in old.runs):
        place = (scenario, _OURS)
        for reference in (*_REFERENCES, None):
            values = [_cpu(each, place, reference) for each in (old, new)]
            if None not in values:
                unit = f"÷ {reference}" if reference else "µs"
                yield (f"{scenario}, CPU a stream, {unit}", *values)  # type: ignore[misc]  # both
                break
    known = {key: value for record in new.records for key, value in _others(record)}
    for record in old.records:
        for key, value in _others(record):
            if key in known:
                yield " ".join(filter(None, key)), value, known[key]


def _cpu(figures: Figures, place: tuple[str, str], reference: str | None) -> float | None:
    if reference is None:
        return figures.median(*place, "cpu_us_per_stream")
    return figures.ratio(place, (place[0], reference))


def _others(record: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str, str], float]]:
    if record["part"] in ("streams", "run"):
        return
    size = str(record.get("size", ""))
    for key in _FIGURES:
        if record.get(key):
            yield (record["part"], record["scenario"], size, key), record[key]


def main() -> None:
    """Print the comparison of the files that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args()
    rows = [
        [name, f"{before:,.4g}", f"{after:,.4g}", f"{after / before:.2f}"]
        for name, before, after in comparison(load(options.old), load(options.new))
    ]
    sys.stdout.write(table(["figure", "old", "new", "new ÷ old"], rows))


if __name__ == "__main__":
    main()
