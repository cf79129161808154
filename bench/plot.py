"""The plot of a run: CPU of a stream by scenario and target, as an SVG without any dependency."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from bench.report import Figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.report import Record

_COLOURS: Final = {
    "nginx-default": "#8a8f98",
    "nginx": "#b9bdc4",
    "baseline": "#d9a441",
    "sottovoce": "#3b6fb6",
}
_SHOWN: Final = ("fast:32", "each:32", "paced:200", "json:32", "big:32", "recall:32")
_WIDTH, _HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 16, 64, 56
_GAP: Final = 14
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#333}.title{font-size:16px;font-weight:600}"
    ".small{font-size:11px}.end{text-anchor:end}.mid{text-anchor:middle}"
)


def svg(records: Sequence[Record]) -> str:
    """Return the plot; empty axes where nothing was measured."""
    figures = Figures(records)
    values = {
        (scenario, target): value
        for scenario in _SHOWN
        for target in _COLOURS
        if (value := figures.median(scenario, target, "cpu_us_per_stream")) is not None
    }
    scenarios = [s for s in _SHOWN if any(place[0] == s for place in values)]
    low = math.floor(math.log10(min(values.values(), default=100)))
    high = math.ceil(math.log10(max(values.values(), default=1_000)))
    scale = _Scale(low, max(high, low + 1))
    parts = [*_frame(scale), *_legend()]
    width = (_WIDTH - _LEFT - _RIGHT) / max(1, len(scenarios))
    for number, scenario in enumerate(scenarios):
        left = _LEFT + number * width
        here = {t: v for t in _COLOURS if (v := values.get((scenario, t))) is not None}
        parts += _group(scale, left, width, here)
        parts.append(_text(left + width / 2, _HEIGHT - _BOTTOM + 20, scenario, "mid"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}"><style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


class _Scale:
    """A logarithmic axis from one power of ten to another."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def y(self, value: float) -> float:
        """Return where a value stands."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _frame(scale: _Scale) -> list[str]:
    parts = [_text(_LEFT, 26, "CPU of a stream, µs, user + system (log scale)", "title")]
    for power in range(scale.low, scale.high + 1):
        y = scale.y(10**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{10**power:,}", "end"))
    note = "PACE:STREAMS at once; lower is better; recall: our own only, two upstream requests"
    parts.append(_text(_LEFT, _HEIGHT - 12, note, "small"))
    return parts


def _legend() -> list[str]:
    parts, x = [], float(_LEFT)
    for name, colour in _COLOURS.items():
        parts.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 18, 49, name, ""))
        x += 36 + 8 * len(name)
    return parts


def _group(scale: _Scale, left: float, width: float, values: dict[str, float]) -> list[str]:
    bar = min(38.0, (width - _GAP) / len(_COLOURS))
    x = left + (width - bar * len(values)) / 2
    parts = []
    for target, value in values.items():
        y = scale.y(value)
        height = _HEIGHT - _BOTTOM - y
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{bar - 2:.1f}" height="{height:.1f}" '
            f'fill="{_COLOURS[target]}"/>'
        )
        parts.append(_text(x + bar / 2, y - 4, _short(value), "mid small"))
        x += bar
    return parts


def _short(value: float) -> str:
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1_000:,.0f}k"


def _text(x: float, y: float, text: str, kind: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(text)}</text>'
