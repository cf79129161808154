"""Who is not asked for a while: an upstream that failed five times in a row.

A *circuit* counts failures in a row of the kinds ``network``, ``rate_limit`` and ``auth``; whatever
else an upstream says ends the row, because it said something. Five open the circuit: the upstream
is skipped for 30 seconds, then one request tries it, and its first attempt decides.

::

    CLOSED ──five failures──▶ OPEN ──30 s──▶ TRIAL, one request ──answer──▶ CLOSED
                               ▲                      │
                               └───────failure────────┘

Some failures may be the fault of whose credential was used: a wrong key, an exhausted account.
Where clients bring their own, one client's failures must not close the way for the others, so
there is one circuit for the upstream, which such failures leave alone, and one for each caller,
which all of that caller's failures count for. A request is let through if both let it through.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pipeline.taxonomy import ErrorKind

if TYPE_CHECKING:
    from pipeline.taxonomy import Failure

FAILURES: Final = 5
"""Failures in a row that open a circuit."""
OPEN_SECONDS: Final = 30.0
"""For how long it then is skipped."""
CALLERS: Final = 4096
"""Circuits of callers that are kept; the one that was longest untouched goes first."""
_COUNTED: Final = frozenset({ErrorKind.NETWORK, ErrorKind.RATE_LIMIT, ErrorKind.AUTH})


class CircuitState(StrEnum):
    """Whether requests get through, in the order of how bad it is."""

    CLOSED = "closed"
    TRIAL = "trial"
    OPEN = "open"


@dataclass(slots=True)
class _Circuit:
    """The failures in a row of one upstream, or of one caller there."""

    failures: int = 0
    opened_at: float | None = None
    trying: bool = False

    def state(self, now: float) -> CircuitState:
        if self.opened_at is None:
            return CircuitState.CLOSED
        return CircuitState.TRIAL if now >= self.opened_at + OPEN_SECONDS else CircuitState.OPEN

    def passes(self, now: float) -> bool:
        match self.state(now):
            case CircuitState.CLOSED:
                return True
            case CircuitState.TRIAL:
                return not self.trying
            case CircuitState.OPEN:
                return False

    def fail(self, now: float, *, trial: bool) -> None:
        self.failures += 1
        # A trial that somebody else's success has overtaken counts like any other attempt.
        if (trial and self.trying) or (self.opened_at is None and self.failures >= FAILURES):
            self.opened_at, self.trying = now, False


_Key = tuple[str, str | None]
"""An upstream, and a caller or None for the upstream itself."""


class Visit:
    """One request's stay at an upstream. Tell it what became of each attempt, or that it left.

    Attributes:
        trial: The upstream is to be tried once, to find out whether it is well again.
    """

    def __init__(self, circuits: Circuits, keys: tuple[_Key, ...], trials: frozenset[_Key]) -> None:
        self.trial = bool(trials)
        self._circuits = circuits
        self._keys = keys
        self._trials = trials

    def answered(self) -> None:
        """The upstream answered well."""
        self._trials = frozenset()
        self._circuits.close(self._keys)

    def failed(self, failure: Failure, now: float) -> None:
        """An attempt failed.

        Args:
            failure: How.
            now: When, on any clock that only goes forward, in seconds.
        """
        if failure.kind not in _COUNTED:
            self.answered()
            return
        trials, self._trials = self._trials, frozenset()
        for key in self._keys:
            if key[1] is not None or not failure.personal or len(self._keys) == 1:
                self._circuits.fail(key, now, trial=key in trials)
            elif key in trials:
                self._circuits.release(key)

    def left(self) -> None:
        """The request is gone before it was known how the attempt would end."""
        trials, self._trials = self._trials, frozenset()
        for key in trials:
            self._circuits.release(key)


class Circuits:
    """The circuits of all upstreams. One that is closed and without failures takes no memory."""

    def __init__(self) -> None:
        self._upstreams: dict[_Key, _Circuit] = {}
        self._callers: OrderedDict[_Key, _Circuit] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Circuits {self._upstreams} and {len(self._callers)} of callers>"

    def passes(self, upstream: str, caller: str | None, now: float) -> bool:
        """Say whether an upstream would take a request now.

        Args:
            upstream: Its name.
            caller: Whose credential is used; None for the upstream's own key.
            now: As for ``Visit.failed``.
        """
        return all(
            circuit is None or circuit.passes(now)
            for circuit in map(self._find, _keys(upstream, caller))
        )

    def enter(
        self, upstream: str, caller: str | None, now: float, *, forced: bool = False
    ) -> Visit | None:
        """Let a request through to an upstream; None if it is to be skipped.

        Args:
            upstream: As for ``passes``.
            caller: As for ``passes``.
            now: As for ``passes``.
            forced: There is no other upstream: it is never skipped.
        """
        if not (forced or self.passes(upstream, caller, now)):
            return None
        keys = _keys(upstream, caller)
        trials = set()
        for key in keys:
            circuit = self._find(key)
            if circuit is None or circuit.trying or circuit.state(now) is not CircuitState.TRIAL:
                continue
            circuit.trying = True
            trials.add(key)
        return Visit(self, keys, frozenset(trials))

    def state(self, upstream: str, now: float) -> CircuitState:
        """Return the worst state of an upstream's circuits, its callers' included."""
        states = [one.state(now) for key, one in self._upstreams.items() if key[0] == upstream]
        states += [one.state(now) for key, one in self._callers.items() if key[0] == upstream]
        order = list(CircuitState)
        return max(states, key=order.index, default=CircuitState.CLOSED)

    def close(self, keys: tuple[_Key, ...]) -> None:
        """End a row of failures."""
        for key in keys:
            self._table(key).pop(key, None)

    def fail(self, key: _Key, now: float, *, trial: bool) -> None:
        """Add a failure to a row."""
        table = self._table(key)
        circuit = table.setdefault(key, _Circuit())
        circuit.fail(now, trial=trial)
        if key[1] is not None:
            self._callers.move_to_end(key)
            while len(self._callers) > CALLERS:
                self._callers.popitem(last=False)

    def release(self, key: _Key) -> None:
        """Give a trial back that came to no end: another request may try."""
        circuit = self._find(key)
        if circuit is not None:
            circuit.trying = False

    def _find(self, key: _Key) -> _Circuit | None:
        return self._table(key).get(key)

    def _table(self, key: _Key) -> dict[_Key, _Circuit]:
        return self._upstreams if key[1] is None else self._callers


def _keys(upstream: str, caller: str | None) -> tuple[_Key, ...]:
    own: _Key = (upstream, None)
    return (own,) if caller is None else (own, (upstream, caller))
