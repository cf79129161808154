"""Which upstreams a turn may go to, and what their routes have in common: circuits and homes.

A *route* is one turn's (``route``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pipeline.circuit import Circuits
from proxy.homes import Homes
from proxy.route import Route
from telemetry.known import KnownSecrets

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from pipeline.circuit import CircuitState
    from pipeline.limits import Limits
    from proxy.homes import Errand
    from proxy.speech import Speech
    from proxy.upstreams import Endpoint, Upstreams
    from telemetry.metrics import Metrics

PEEK_SECONDS: Final = 2.0
"""How long an answer is held back at most while another upstream could take over."""


class Router:
    """Makes routes, and knows what they have in common.

    Args:
        upstreams: The providers.
        metrics: What is counted.
        limits: Bounds what is read of an error, and ahead of a turn.
        peek_seconds: For how long an answer is held back at most.
        clock: Seconds, only forward.
        secrets: What no provider's words may carry to a client.

    Attributes:
        circuits: Who is not asked for a while.
        homes: Where conversations live.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        metrics: Metrics,
        *,
        limits: Limits,
        peek_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        secrets: KnownSecrets | None = None,
    ) -> None:
        self.secrets = secrets or KnownSecrets(())
        self.circuits = Circuits()
        self.homes = Homes()
        self.upstreams = upstreams
        self.metrics = metrics
        self.limits = limits
        self.peek_seconds = min(peek_seconds, PEEK_SECONDS)
        self.clock = clock

    def __repr__(self) -> str:
        return f"<Router of {self.upstreams!r}, {self.circuits!r}>"

    def circuit_states(self) -> dict[str, CircuitState]:
        """Return the state of each upstream's circuit by its name."""
        now = self.clock()
        return {name: self.circuits.state(name, now) for name in self.upstreams.names}

    def route(self, errand: Errand, speech: Speech) -> Route:
        """Return the way of a turn's requests.

        Args:
            errand: Whose they are.
            speech: How they are put.
        """
        return Route(self, self.line(errand), errand, speech)

    def line(self, errand: Errand) -> tuple[Endpoint, ...]:
        """Return the upstreams that may take a turn, in the order in which they are asked.

        The client's credential was presented for the first one that is configured for such
        requests. The others must have a key of their own, or need none. Where the conversation
        has a home among them, that is asked first.
        """
        group = self.upstreams.group(codex=errand.codex)
        if len(group) == 1 and not errand.translated:
            return group
        first, *others = group
        line = [first, *(one for one in others if one.may_take_over)]
        if errand.translated:
            line = [one for one in line if one.provider.translates]
        home = self.homes.find(errand.keys)
        line.sort(key=lambda one: one.name != home)  # stable: the order is kept behind the home
        return tuple(line[:1] if errand.bound else line)

    def home(self, keys: Iterable[Hashable], *, codex: bool) -> Endpoint:
        """Return the upstream of a request that is only passed on.

        Args:
            keys: What names the conversation or response that it is about.
            codex: As for an errand.
        """
        group = self.upstreams.group(codex=codex)
        name = self.homes.find(keys)
        return next((one for one in group if one.name == name), group[0])

    def remember(self, key: Hashable, endpoint: Endpoint, *, codex: bool) -> None:
        """Remember where something lives, where there is a choice at all."""
        if len(self.upstreams.group(codex=codex)) > 1:
            self.homes.put(key, endpoint.name)
