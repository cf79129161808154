"""Labels of metrics: however many values come, few of them ever become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from prometheus_client.metrics import MetricWrapperBase

if TYPE_CHECKING:
    from prometheus_client import Counter

M = TypeVar("M", bound=MetricWrapperBase)
Bound: TypeAlias = Callable[[str | None], str]
"""Makes a label of a value."""

OTHER: Final = "other"
"""What a label says for every value beyond its bound."""
NONE: Final = "none"
"""What a label says where there is no value."""


class Bounded:
    """Lets the first ``most`` distinct values of an open label through, the rest are ``other``.

    Values that are longer than 80 characters or hold anything but printable ASCII are ``other``
    from the start: no provider can write a page into a label.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, value: str | None) -> str:
        """Return the label for a value."""
        if value is None or value == "":
            return NONE
        if value in self._seen:
            return value
        if len(self._seen) >= self._most or len(value) > 80 or not is_plain(value):
            return OTHER
        self._seen.add(value)
        return value


class Labelled(Generic[M]):
    """A metric with bounded labels, whose children are at hand by the values that they are for.

    Args:
        metric: The metric.
        bounds: Of its labels, in their order.
    """

    def __init__(self, metric: M, *bounds: Bound) -> None:
        self._metric = metric
        self._bounds = bounds
        self._children: dict[tuple[str | None, ...], M] = {}

    def __call__(self, *values: str | None) -> M:
        """Return the child for some values, each within its bound."""
        child = self._children.get(values)
        return self._find(values) if child is None else child

    def _find(self, values: tuple[str | None, ...]) -> M:
        labels = [bound(value) for bound, value in zip(self._bounds, values, strict=True)]
        child = self._metric.labels(*labels)
        if all(value in (None, label) for value, label in zip(values, labels, strict=True)):
            self._children[values] = child  # as few as there are labels: the others are "other"
        return child


class Summed:
    """A counter to which many records add: they are summed, and the sums added at once.

    Args:
        counters: The counter, of which children are asked for by their labels' values.
    """

    def __init__(self, counters: Callable[..., Counter]) -> None:
        self._counters = counters
        self._sums: dict[tuple[str | None, ...], float] = {}

    def add(self, amount: float, *values: str | None) -> None:
        """Keep what is to be added for some values.

        Raises:
            OverflowError: It is beyond every float; nothing of it is kept.
        """
        self._sums[values] = self._sums.get(values, 0.0) + amount

    def flush(self) -> None:
        """Add what is kept."""
        sums, self._sums = self._sums, {}
        for values, amount in sums.items():
            self._counters(*values).inc(amount)


def is_plain(value: str) -> bool:
    """Tell whether a text is one line of printable ASCII."""
    return value.isascii() and value.isprintable()
