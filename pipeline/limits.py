"""What bounds one turn: buffer limits and the budgets of hidden calls.

Nothing here has a default: the defaults are configuration (``proxy/config.py``), and a reader
that had one could forget to be given the configured value.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes unless said otherwise. Reaching one raises its named error."""

    stream_bytes: int
    """All bytes read from the upstream over all hops of a turn."""
    retained_bytes: int
    """What the accumulated state of all hops may keep."""
    deferred_bytes: int
    """Events held back while the name of a call is unknown."""
    hidden_bytes: int
    """Events of hidden calls, over all hops of a turn."""
    event_bytes: int
    """One SSE event."""
    frames: int
    """SSE events of one hop (a count)."""
    items: int
    """The largest output index that is accepted."""
    error_bytes: int
    """How much of an upstream's error body is read; the rest is cut, which is no error."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """What hidden calls may cost one client request."""

    rounds: int
    """Executions of hidden calls, each with its continuation."""
    executions: int
    """Hidden calls that are run."""
    result_bytes: int
    """Bytes of results that go back to the model."""
    extra_tokens: int
    """Tokens spent by continuations."""
    stalled_rounds: int
    """Rounds in a row whose results were all seen before."""
    seconds: float
    """Time for the hidden calls and the start of continuations."""

    @property
    def allow_calls(self) -> bool:
        """Whether there is anything to spend: a budget of 0 means no hidden call at all."""
        return all(
            (self.rounds, self.executions, self.result_bytes, self.extra_tokens, self.seconds)
        )
