"""Every metric of the process, each name once, in one class over a registry of its own.

Labels are bounded, whoever chose their value: closed lists by membership, open ones by
``Bounded``, which lets the first few distinct values through and calls the rest ``other``. No
label ever holds a tenant, a session, a client's tool name or anything of a memory's content; the
model is what an upstream reported, never what a client asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pipeline.errors import FailureCategory
from telemetry.capture import Door, EmptyCompletion, Record, TranscriptLines, TurnRecord
from telemetry.labels import NONE, OTHER, Bounded, Labelled, Summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from telemetry.labels import Bound

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_SHORT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_CATEGORIES: Final = frozenset(FailureCategory)

_Buckets: TypeAlias = tuple[float, ...]


class Metrics:
    """The metrics of one process, or of one app in a test.

    Turn records and empty completions come in through ``observe`` and ``flush``, a sink behind the
    door; what happens outside of a turn's record has a method of its own. All of it is arithmetic
    in memory.

    Args:
        version: Ours, told by ``sottovoce_build_info``.
    """

    def __init__(self, *, version: str) -> None:
        self.registry = CollectorRegistry()
        self._open_labels()
        self._open_turns()
        self._open_recalls()
        self._open_process(version)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format, ``CONTENT_TYPE``."""
        return generate_latest(self.registry)

    def watch(self, door: Door) -> None:
        """Tell what the door's sinks lost, read from it whenever the metrics are rendered."""
        self.registry.register(_Losses(door))

    def observe(self, record: Record) -> None:
        """Count a record: the sink ``metrics`` of the door. `flush` lets it be seen."""
        match record:
            case EmptyCompletion():
                self._empty(record.protocol).inc()
            case TurnRecord():
                self._observe_turn(record)
                self._observe_recalls(record)
                self._observe_usage(record)
            case TranscriptLines():
                pass  # content is for no metric

    def flush(self) -> None:
        """Add up what was counted of some records: what the door calls behind the last.

        Turns that end close together are much alike: their sums take a few steps for all of them.
        """
        for summed in (self._turns, self._hops, self._tokens):
            summed.flush()

    def turn_started(self) -> None:
        """Count a turn as in flight, until ``turn_ended``; both on one thread."""
        self._running += 1

    def turn_ended(self) -> None:
        """Take a turn out of those in flight."""
        self._running -= 1

    def request_answered(self, *, route: str, status: int) -> None:
        """Count an answer of any route by the route's own name and the status."""
        self._requests(route, str(status)).inc()

    def upstream_answered(self, *, upstream: str, result: str, seconds: float) -> None:
        """Count an upstream request and the time to its head, or to its failure.

        Args:
            upstream: The configured name.
            result: ``ok``, or the kind of its error.
            seconds: From the request to the head, or to the failure.
        """
        self._upstream_requests(upstream, result).inc()
        self._upstream_head(upstream).observe(seconds)

    def failed_over(self, *, upstream: str, kind: str) -> None:
        """Count a request that went on to another upstream.

        Args:
            upstream: The configured name of the one that failed.
            kind: Of its error.
        """
        self._failovers(upstream, kind).inc()

    def watch_circuits(self, states: Callable[[], Mapping[str, str]]) -> None:
        """Tell the state of each upstream's circuit, asked for whenever metrics are rendered.

        Args:
            states: Returns ``closed``, ``trial`` or ``open`` by the upstream's configured name.
        """
        self.registry.register(_Circuits(states))

    def watch_requests(self, read: Callable[[], Mapping[str, int]]) -> None:
        """Tell how requests were read, asked for whenever metrics are rendered.

        Args:
            read: Returns bytes of their bodies, ``known`` from an earlier request or ``parsed``.
        """
        self.registry.register(_Requests(read))

    def ingested(self, entries: int) -> None:
        """Count what a turn added to the memory."""
        self._ingested.inc(entries)

    def ingest_failed(self) -> None:
        """Count a turn whose content could not be stored."""
        self._ingest_failures.inc()

    def join_write_missed(self) -> None:
        """Count a terminal that went out before its join records were durable."""
        self._join_misses.inc()

    def join_record_lost(self) -> None:
        """Count a join record that was given up before it could be written."""
        self._joins_lost.inc()

    def hook_failed(self, hook: str) -> None:
        """Count a commit, rollback or plugin hook that raised."""
        self._hook_failures(hook).inc()

    def left_out(self, kind: str, counts: Iterable[tuple[str, int]]) -> None:
        """Count what a request offered and an upstream of this kind does without."""
        for what, count in counts:
            self._left_out(kind, what).inc(count)

    def compacted(self, *, reason: str, result: str) -> None:
        """Count a history that was to be summarized.

        Args:
            reason: ``asked`` by the client, or an ``overflow``.
            result: ``ok`` or ``failed``.
        """
        self._compactions(reason, result).inc()

    def _open_labels(self) -> None:
        """Make the bounds of labels that several metrics have."""
        self._protocol = Bounded(8)
        self._upstream = Bounded(32)
        self._result = Bounded(16)
        self._limit = Bounded(32)

    def _open_turns(self) -> None:
        self._running = 0
        in_flight = self._gauge("turns_in_flight", "Turns that are running now.")
        in_flight.set_function(lambda: self._running)
        turns = self._counters(
            "turns",
            "Turns by how they ended; the category is that of a failure.",
            protocol=self._protocol,
            upstream=self._upstream,
            outcome=Bounded(16),
            category=_category,
        )
        self._turns = Summed(turns)
        self._empty = self._counters(
            "empty_completions",
            "Completed turns without text, calls or reasoning.",
            protocol=self._protocol,
        )
        self._limits = self._counters(
            "limits_reached",
            "Turns that a limit or a budget ended, by its name.",
            limit=self._limit,
        )
        self._truncated = self._counters(
            "accumulations_truncated",
            "Observed turns that a limit kept us from accumulating whole, by its name.",
            limit=self._limit,
        )
        self._repairs = self._counters(
            "stream_repairs",
            "Deviations of providers that were repaired, by kind.",
            kind=Bounded(64),
        )
        self._tolerations = self._counters(
            "stream_tolerations",
            "Deviations of providers that were let pass, by kind.",
            kind=Bounded(64),
        )
        tokens = self._counters(
            "tokens",
            "Tokens spent, as the upstream reported them.",
            model=Bounded(64),
            kind=Bounded(8),
        )
        self._tokens = Summed(tokens)
        self._turn_seconds = self._histogram("turn_seconds", "A turn, whole.")
        self._first_byte = self._histogram(
            "first_byte_seconds", "From a request to the first body byte for the client."
        )

    def _open_recalls(self) -> None:
        hops = self._counter("hops", "Upstream requests of turns, the first one included.")
        self._hops = Summed(lambda: hops)
        self._recalls = self._counter("recalls", "Hidden calls that were run.")
        self._recall_hits = self._counter("recall_hits", "Hidden calls that found something.")
        self._recall_seconds = self._histogram(
            "recall_seconds", "A hidden call, whole.", buckets=_SHORT_SECONDS
        )
        self._hidden_bytes = self._counter("hidden_bytes", "Stream bytes kept from clients.")
        self._deferred_bytes = self._counter(
            "deferred_bytes", "Stream bytes held back while a call had no name."
        )
        self._undeclared = self._counters(
            "recall_undeclared",
            "Turns in which the tool was not declared, by reason.",
            reason=Bounded(16),
        )
        self._ingested = self._counter("ingested_entries", "Entries that turns added to memory.")
        self._ingest_failures = self._counter(
            "ingest_failures", "Turns whose content could not be stored."
        )
        self._join_misses = self._counter(
            "join_write_misses", "Terminals that went out before their join records were durable."
        )
        self._joins_lost = self._counter(
            "join_records_lost", "Join records that were given up before they could be written."
        )
        self._hook_failures = self._counters(
            "hook_failures", "Hooks that raised.", hook=Bounded(16)
        )

    def _open_process(self, version: str) -> None:
        self._requests = self._counters(
            "requests", "Answers by route and status.", route=Bounded(32), status=Bounded(64)
        )
        self._upstream_requests = self._counters(
            "upstream_requests",
            "Upstream requests by result.",
            upstream=self._upstream,
            result=self._result,
        )
        self._left_out = self._counters(
            "request_parts_left_out",
            "What requests offered and upstreams of a kind do without.",
            kind=Bounded(8),
            part=Bounded(32),
        )
        self._compactions = self._counters(
            "compactions",
            "Histories that were summarized here, by what it was for and what came of it.",
            reason=Bounded(4),
            result=Bounded(4),
        )
        self._upstream_head = self._histograms(
            "upstream_head_seconds", "Until the upstream's head.", upstream=self._upstream
        )
        self._failovers = self._counters(
            "failovers",
            "Requests that went on to another upstream, by the one that failed and how.",
            upstream=self._upstream,
            kind=self._result,
        )
        self._gauge("build_info", "Always 1; the label is the version.", ("version",)).labels(
            version
        ).set(1)

    def _observe_turn(self, record: TurnRecord) -> None:
        self._turns.add(1, record.protocol, record.upstream, record.outcome, record.category)
        if record.limit is not None:
            self._limits(record.limit).inc()
        if record.truncated is not None:
            self._truncated(record.truncated).inc()
        for kind, count in record.repairs.items():
            self._repairs(kind).inc(count)
        for kind, count in record.tolerations.items():
            self._tolerations(kind).inc(count)
        if record.seconds is not None:
            self._turn_seconds.observe(record.seconds)
        if record.first_byte_seconds is not None:
            self._first_byte.observe(record.first_byte_seconds)

    def _observe_recalls(self, record: TurnRecord) -> None:
        self._hops.add(record.hops)
        if record.recalls:
            self._recalls.inc(record.recalls)
            self._recall_hits.inc(record.recall_hits)
        if record.hidden_bytes:
            self._hidden_bytes.inc(record.hidden_bytes)
        if record.deferred_bytes:
            self._deferred_bytes.inc(record.deferred_bytes)
        if record.undeclared is not None:
            self._undeclared(record.undeclared).inc()
        for seconds in record.recall_seconds:
            self._recall_seconds.observe(seconds)

    def _observe_usage(self, record: TurnRecord) -> None:
        for kind, count in token_counts(record.usage):
            self._tokens.add(count, record.model, kind)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, namespace="sottovoce", registry=self.registry)

    def _counters(self, name: str, text: str, **labels: Bound) -> Labelled[Counter]:
        counter = Counter(name, text, [*labels], namespace="sottovoce", registry=self.registry)
        return Labelled(counter, *labels.values())

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, text, labels, namespace="sottovoce", registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...] = (), *, buckets: _Buckets = _SECONDS
    ) -> Histogram:
        return Histogram(
            name, text, labels, namespace="sottovoce", registry=self.registry, buckets=buckets
        )

    def _histograms(self, name: str, text: str, **labels: Bound) -> Labelled[Histogram]:
        return Labelled(self._histogram(name, text, (*labels,)), *labels.values())


class _Losses(Collector):
    """Reads from the door what its sinks lost."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def describe(self) -> Iterable[CounterMetricFamily]:
        return (self._family(),)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = self._family()
        for (sink, reason), count in self._door.losses().items():
            family.add_metric((sink, reason), count)
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(
            "sottovoce_telemetry_losses",
            "Records that a telemetry sink did not take.",
            labels=("sink", "reason"),
        )


class _Requests(Collector):
    """Reads how much of requests did not have to be parsed."""

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._read = read

    def describe(self) -> Iterable[CounterMetricFamily]:
        return (self._family(),)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = self._family()
        for read, count in self._read().items():
            family.add_metric((read,), count)
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(
            "sottovoce_request_bytes",
            "Bytes of Responses requests, by whether an earlier request had brought them.",
            labels=("read",),
        )


class _Circuits(Collector):
    """Reads from the router which upstreams are not asked for a while."""

    def __init__(self, states: Callable[[], Mapping[str, str]]) -> None:
        self._states = states

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return (self._family(),)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = self._family()
        for upstream, state in self._states().items():
            family.add_metric((upstream, state), 1)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "sottovoce_upstream_circuit",
            "Always 1; the label is the state of the upstream's circuit.",
            labels=("upstream", "state"),
        )


def token_counts(usage: Mapping[str, object] | None) -> Iterator[tuple[str, int]]:
    """Yield kind and count of a usage object: input, cached, output, reasoning; no zeros."""
    if usage is None:
        return
    paths = (
        ("input", usage.get("input_tokens")),
        ("cached", _member(usage.get("input_tokens_details"), "cached_tokens")),
        ("output", usage.get("output_tokens")),
        ("reasoning", _member(usage.get("output_tokens_details"), "reasoning_tokens")),
    )
    for kind, count in paths:
        if type(count) is int and count > 0:
            yield kind, count


def _member(details: object, name: str) -> object:
    return details.get(name) if isinstance(details, dict) else None


def _category(category: str | None) -> str:
    if category is None:
        return NONE
    return category if category in _CATEGORIES else OTHER
