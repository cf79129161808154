"""The door between a turn and whatever watches it: passing it never throws and never blocks.

::

    turn ── post(record) ──┬── Channel "log"     queue ── thread ── sink
                           ├── Channel "metrics" queue ── thread ── sink
                           └── …

Every sink stands behind a channel of its own: a bounded queue that a daemon thread empties. So a
sink that raises costs one count, a sink that blocks for ever fills its own queue and then loses
records, counted too, and in neither case does the turn, or another sink, notice. What was lost is
told by ``Door.losses``; the metrics read it when they are asked.

To wake a thread costs more than most records do, the turn's thread too. So the thread of a door's
channel, once woken, lets more records come for a moment; and whatever waits is taken at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from queue import SimpleQueue
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

CAPACITY: Final = 1024
"""Records that wait for one sink before the next is dropped."""
LINGER: Final = 0.05
"""Seconds for which a door's first record waits for others, unless somebody waits for it."""
BATCH: Final = 64
"""Records that are taken at once, so that a sink does not keep what it makes of them for long."""


_NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


class Loss(StrEnum):
    """Why a sink did not take a record."""

    RAISED = "raised"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class EmptyCompletion:
    """A turn that completed without text, calls or reasoning."""

    protocol: str
    """How the client spoke to us: ``responses``, ``codex``, ``chat``."""
    model: str | None
    """As the upstream reported it."""
    session: str | None
    stop_reason: str | None
    output_tokens: int | None
    recall_depth: int
    """Rounds of hidden calls before the empty answer."""


class TurnRecord(NamedTuple):
    """What is told of one turn when it is over: figures and names, never content."""

    turn: str
    """The id that the client saw in ``x-sottovoce-turn``."""
    outcome: str
    """How it ended: ``completed``, ``incomplete``, ``failed``, ``client_disconnect`` …"""
    category: str | None = None
    """Of the closed list of failure categories, where it failed."""
    protocol: str = "responses"
    upstream: str = ""
    """The configured name."""
    model: str | None = None
    """As the upstream reported it."""
    session: str | None = None
    streamed: bool = True
    status: int | None = None
    """HTTP status that the client saw; ``None`` when it left before the head."""
    stop_reason: str | None = None
    hops: int = 0
    attempts: int = 0
    """Requests that were sent upstream, those that failed over or were sent again included."""
    recalls: int = 0
    recall_hits: int = 0
    """Recalls that found something."""
    hidden_bytes: int = 0
    deferred_bytes: int = 0
    limit: str | None = None
    """The limit or budget that ended the turn."""
    truncated: str | None = None
    """The limit that ended the accumulation of an observed turn."""
    undeclared: str | None = None
    """Why the tool was not declared."""
    usage: Mapping[str, object] | None = None
    """Spent: the sum over all hops."""
    repairs: Mapping[str, int] = _NO_COUNTS
    tolerations: Mapping[str, int] = _NO_COUNTS
    seconds: float | None = None
    first_byte_seconds: float | None = None
    head_seconds: tuple[float, ...] = ()
    """Time until the upstream's head, one per hop."""
    recall_seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TranscriptLines:
    """What a turn adds to its conversation's transcript. Content: for no other sink."""

    conversation: str
    """Names the file: a digest, never a client's own text."""
    lines: tuple[Mapping[str, object], ...]


Record: TypeAlias = EmptyCompletion | TurnRecord | TranscriptLines
Sink: TypeAlias = Callable[[Record], object]


@dataclass(frozen=True, slots=True)
class Keeping:
    """A sink that keeps what it makes of records, to pass it on at once."""

    sink: Sink
    flush: Callable[[], object]
    """Called on the sink's thread behind the last of some records."""
    linger: float = LINGER
    """Seconds for which the first record waits for others."""


class _Marker(threading.Event):
    """Set by a channel's thread once it has seen everything that was put before it."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last


class Channel(Generic[T]):
    """One sink with its queue and its thread, which starts with the first record.

    Args:
        name: Of the thread, and of the sink where losses are told.
        sink: Called with one record at a time, in order, on the channel's thread.
        capacity: Records that may wait.
        linger: Seconds for which the first one waits for others.
        flush: Called there behind the last of some records, for a sink that keeps what it makes of
            them to pass it on at once.
    """

    def __init__(
        self,
        name: str,
        sink: Callable[[T], object],
        *,
        capacity: int = CAPACITY,
        linger: float = 0,
        flush: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self._sink = sink
        self._flush = flush
        self._capacity = capacity
        self._linger = linger
        self._queue: SimpleQueue[T | _Marker] = SimpleQueue()
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._raised = 0
        self._dropped = 0

    def __repr__(self) -> str:
        return f"<Channel {self.name} waiting={self._queue.qsize()} losses={self.losses()}>"

    def put(self, record: T) -> None:
        """Hand a record over; returns at once, whatever the sink does."""
        if self._queue.qsize() < self._capacity and self._started():
            self._queue.put(record)
        else:
            self._dropped += 1

    def drain(self, seconds: float) -> bool:
        """Wait until the sink has seen everything put so far; ``False`` if it did not in time.

        Blocks for up to ``seconds``: for shutdown and tests, never for a turn.
        """
        return self._reach(seconds, last=False)

    def close(self, seconds: float) -> bool:
        """Drain, and let the thread end; what is put afterwards is dropped."""
        self._closed = True
        return self._reach(seconds, last=True)

    def losses(self) -> dict[Loss, int]:
        """Return how many records the sink did not take, by reason."""
        return {Loss.RAISED: self._raised, Loss.DROPPED: self._dropped}

    def _reach(self, seconds: float, *, last: bool) -> bool:
        if self._thread is None or not self._thread.is_alive():
            return True
        marker = _Marker(last=last)
        self._queue.put(marker)
        self._hurry.set()
        return marker.wait(seconds)

    def _started(self) -> bool:
        if self._thread is not None or self._closed:
            return not self._closed
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"sink {self.name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread to be had: the record is lost, the turn is not
                    return False
                self._thread = thread
        return True

    def _run(self) -> None:
        last = False
        while not last:
            self._let_gather()
            waiting: list[T | _Marker] = []
            if self._queue.empty():
                waiting.append(self._queue.get())
                self._let_gather()
            waiting += [self._queue.get() for _ in range(min(self._queue.qsize(), BATCH))]
            last = self._take(waiting)

    def _let_gather(self) -> None:
        """Let more records come for a moment.

        Done behind some records as well as in front of the first: while there are more and more,
        the thread wakes once for each lot of them.
        """
        if self._linger and self._queue.qsize() < BATCH:
            self._hurry.wait(self._linger)
            self._hurry.clear()  # before the look at the queue: who hurries has a marker in it

    def _take(self, waiting: list[T | _Marker]) -> bool:
        """Pass records on; tell whether they are the last."""
        kept = 0
        for record in waiting:
            if isinstance(record, _Marker):
                self._flushed(kept)
                kept = 0
                record.set()
                if record.last:
                    return True
                continue
            try:
                self._sink(record)
                kept += 1
            except BaseException:  # noqa: BLE001 - whatever a sink raises ends here, counted
                self._raised += 1
        self._flushed(kept)
        return False

    def _flushed(self, kept: int) -> None:
        """Let the sink pass on what it kept of so many records."""
        if kept and self._flush is not None:
            try:
                self._flush()
            except BaseException:  # noqa: BLE001 - as above
                self._raised += kept


class Door:
    """All sinks of the process.

    Args:
        sinks: By name; the names label what is lost.
        capacity: Records that may wait for each.
    """

    def __init__(self, sinks: Mapping[str, Sink | Keeping], *, capacity: int = CAPACITY) -> None:
        self._channels = tuple(_channel(name, one, capacity) for name, one in sinks.items())

    def post(self, record: Record) -> None:
        """Tell every sink; never raises, never waits."""
        for channel in self._channels:
            channel.put(record)

    def drain(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for each sink to see what was posted; tell whether all did."""
        drained = [channel.drain(seconds) for channel in self._channels]
        return all(drained)

    def close(self, seconds: float) -> bool:
        """Drain, and let the threads end; what is posted afterwards is dropped."""
        closed = [channel.close(seconds) for channel in self._channels]
        return all(closed)

    def losses(self) -> dict[tuple[str, Loss], int]:
        """Return the count of lost records by sink and reason, zeros included."""
        return {
            (channel.name, reason): count
            for channel in self._channels
            for reason, count in channel.losses().items()
        }


def _channel(name: str, sink: Sink | Keeping, capacity: int) -> Channel[Record]:
    if isinstance(sink, Keeping):
        return Channel(name, sink.sink, capacity=capacity, linger=sink.linger, flush=sink.flush)
    return Channel(name, sink, capacity=capacity, linger=LINGER)


def capture_empty_completion(
    door: Door,
    *,
    protocol: str,
    model: str | None,
    session: str | None,
    stop_reason: str | None,
    output_tokens: int | None,
    recall_depth: int,
) -> None:
    """Record that a turn completed empty. Never throws, never blocks the read path.

    The log's sink turns it into the warning line ``empty completion → client``, the metrics' into
    a count.
    """
    door.post(EmptyCompletion(protocol, model, session, stop_reason, output_tokens, recall_depth))
