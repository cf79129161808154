"""Every metric of the process, each name once, in one class over a registry of its own.

Labels are bounded, whoever chose their value: closed lists by membership, open ones by
``_Bounded``, which lets the first few distinct values through and calls the rest ``other``. No
label ever holds a tenant, a session, a client's tool name or anything of a memory's content; the
model is what an upstream reported, never what a client asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pipeline.errors import FailureCategory
from telemetry.capture import Door, EmptyCompletion, Record, TranscriptLines, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

OTHER: Final = "other"
"""What a label says for every value beyond its bound."""
NONE: Final = "none"
"""What a label says where there is no value."""

_SECONDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_SHORT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_CATEGORIES: Final = frozenset(FailureCategory)


class _Bounded:
    """Lets the first ``most`` distinct values of an open label through, the rest are ``other``.

    Values that are longer than 80 characters or hold anything but printable ASCII are ``other``
    from the start: no provider can write a page into a label.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, value: str | None) -> str:
        if value is None or value == "":
            return NONE
        if value in self._seen:
            return value
        if len(self._seen) >= self._most or len(value) > 80 or not _is_plain(value):
            return OTHER
        self._seen.add(value)
        return value


class Metrics:
    """The metrics of one process, or of one app in a test.

    Turn records and empty completions come in through ``observe``, a sink behind the door; what
    happens outside of a turn's record has a method of its own. All of it is arithmetic in memory.

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
        """Count a record: the sink ``metrics`` of the door."""
        match record:
            case EmptyCompletion():
                self._empty.labels(self._protocol(record.protocol)).inc()
            case TurnRecord():
                self._observe_turn(record)
                self._observe_recalls(record)
                self._observe_usage(record)
            case TranscriptLines():
                pass  # content is for no metric

    def turn_started(self) -> None:
        """Count a turn as in flight, until ``turn_ended``."""
        self._in_flight.inc()

    def turn_ended(self) -> None:
        """Take a turn out of those in flight."""
        self._in_flight.dec()

    def request_answered(self, *, route: str, status: int) -> None:
        """Count an answer of any route by the route's own name and the status."""
        self._requests.labels(self._route(route), self._status(str(status))).inc()

    def upstream_answered(self, *, upstream: str, result: str, seconds: float) -> None:
        """Count an upstream request and the time to its head, or to its failure.

        Args:
            upstream: The configured name.
            result: ``ok``, or the kind of its error.
            seconds: From the request to the head, or to the failure.
        """
        self._upstream_requests.labels(self._upstream(upstream), self._result(result)).inc()
        self._upstream_head.labels(self._upstream(upstream)).observe(seconds)

    def failed_over(self, *, upstream: str, kind: str) -> None:
        """Count a request that went on to another upstream.

        Args:
            upstream: The configured name of the one that failed.
            kind: Of its error.
        """
        self._failovers.labels(self._upstream(upstream), self._result(kind)).inc()

    def watch_circuits(self, states: Callable[[], Mapping[str, str]]) -> None:
        """Tell the state of each upstream's circuit, asked for whenever metrics are rendered.

        Args:
            states: Returns ``closed``, ``trial`` or ``open`` by the upstream's configured name.
        """
        self.registry.register(_Circuits(states))

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
        self._hook_failures.labels(self._hook(hook)).inc()

    def left_out(self, kind: str, counts: Iterable[tuple[str, int]]) -> None:
        """Count what a request offered and an upstream of this kind does without."""
        for what, count in counts:
            self._left_out.labels(self._kind(kind), self._offer(what)).inc(count)

    def compacted(self, *, reason: str, result: str) -> None:
        """Count a history that was to be summarized.

        Args:
            reason: ``asked`` by the client, or an ``overflow``.
            result: ``ok`` or ``failed``.
        """
        self._compactions.labels(reason, result).inc()

    def _open_labels(self) -> None:
        self._protocol = _Bounded(8)
        self._outcome = _Bounded(16)
        self._upstream = _Bounded(32)
        self._model = _Bounded(64)
        self._route = _Bounded(32)
        self._status = _Bounded(64)
        self._result = _Bounded(16)
        self._limit = _Bounded(32)
        self._repair = _Bounded(64)
        self._toleration = _Bounded(64)
        self._reason = _Bounded(16)
        self._hook = _Bounded(16)
        self._kind = _Bounded(8)
        self._offer = _Bounded(32)

    def _open_turns(self) -> None:
        self._in_flight = self._gauge("turns_in_flight", "Turns that are running now.")
        self._turns = self._counter(
            "turns",
            "Turns by how they ended; the category is that of a failure.",
            ("protocol", "upstream", "outcome", "category"),
        )
        self._empty = self._counter(
            "empty_completions", "Completed turns without text, calls or reasoning.", ("protocol",)
        )
        self._limits = self._counter(
            "limits_reached", "Turns that a limit or a budget ended, by its name.", ("limit",)
        )
        self._truncated = self._counter(
            "accumulations_truncated",
            "Observed turns that a limit kept us from accumulating whole, by its name.",
            ("limit",),
        )
        self._repairs = self._counter(
            "stream_repairs", "Deviations of providers that were repaired, by kind.", ("kind",)
        )
        self._tolerations = self._counter(
            "stream_tolerations", "Deviations of providers that were let pass, by kind.", ("kind",)
        )
        self._tokens = self._counter(
            "tokens", "Tokens spent, as the upstream reported them.", ("model", "kind")
        )
        self._turn_seconds = self._histogram("turn_seconds", "A turn, whole.")
        self._first_byte = self._histogram(
            "first_byte_seconds", "From a request to the first body byte for the client."
        )

    def _open_recalls(self) -> None:
        self._hops = self._counter("hops", "Upstream requests of turns, the first one included.")
        self._recalls = self._counter("recalls", "Hidden calls that were run.")
        self._recall_hits = self._counter("recall_hits", "Hidden calls that found something.")
        self._recall_seconds = self._histogram(
            "recall_seconds", "A hidden call, whole.", buckets=_SHORT_SECONDS
        )
        self._hidden_bytes = self._counter("hidden_bytes", "Stream bytes kept from clients.")
        self._deferred_bytes = self._counter(
            "deferred_bytes", "Stream bytes held back while a call had no name."
        )
        self._undeclared = self._counter(
            "recall_undeclared", "Turns in which the tool was not declared, by reason.", ("reason",)
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
        self._hook_failures = self._counter("hook_failures", "Hooks that raised.", ("hook",))

    def _open_process(self, version: str) -> None:
        self._requests = self._counter(
            "requests", "Answers by route and status.", ("route", "status")
        )
        self._upstream_requests = self._counter(
            "upstream_requests", "Upstream requests by result.", ("upstream", "result")
        )
        self._left_out = self._counter(
            "request_parts_left_out",
            "What requests offered and upstreams of a kind do without.",
            ("kind", "part"),
        )
        self._compactions = self._counter(
            "compactions",
            "Histories that were summarized here, by what it was for and what came of it.",
            ("reason", "result"),
        )
        self._upstream_head = self._histogram(
            "upstream_head_seconds", "Until the upstream's head.", ("upstream",)
        )
        self._failovers = self._counter(
            "failovers",
            "Requests that went on to another upstream, by the one that failed and how.",
            ("upstream", "kind"),
        )
        self._gauge("build_info", "Always 1; the label is the version.", ("version",)).labels(
            version
        ).set(1)

    def _observe_turn(self, record: TurnRecord) -> None:
        self._turns.labels(
            self._protocol(record.protocol),
            self._upstream(record.upstream),
            self._outcome(record.outcome),
            _category(record.category),
        ).inc()
        if record.limit is not None:
            self._limits.labels(self._limit(record.limit)).inc()
        if record.truncated is not None:
            self._truncated.labels(self._limit(record.truncated)).inc()
        _count_kinds(self._repairs, self._repair, record.repairs)
        _count_kinds(self._tolerations, self._toleration, record.tolerations)
        if record.seconds is not None:
            self._turn_seconds.observe(record.seconds)
        if record.first_byte_seconds is not None:
            self._first_byte.observe(record.first_byte_seconds)

    def _observe_recalls(self, record: TurnRecord) -> None:
        self._hops.inc(record.hops)
        self._recalls.inc(record.recalls)
        self._recall_hits.inc(record.recall_hits)
        self._hidden_bytes.inc(record.hidden_bytes)
        self._deferred_bytes.inc(record.deferred_bytes)
        if record.undeclared is not None:
            self._undeclared.labels(self._reason(record.undeclared)).inc()
        for seconds in record.recall_seconds:
            self._recall_seconds.observe(seconds)

    def _observe_usage(self, record: TurnRecord) -> None:
        for kind, count in token_counts(record.usage):
            self._tokens.labels(self._model(record.model), kind).inc(count)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, labels, namespace="sottovoce", registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, text, labels, namespace="sottovoce", registry=self.registry)

    def _histogram(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...] = (),
        buckets: tuple[float, ...] = _SECONDS,
    ) -> Histogram:
        return Histogram(
            name, text, labels, namespace="sottovoce", registry=self.registry, buckets=buckets
        )


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
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            yield kind, count


def _member(details: object, name: str) -> object:
    return details.get(name) if isinstance(details, dict) else None


def _category(category: str | None) -> str:
    if category is None:
        return NONE
    return category if category in _CATEGORIES else OTHER


def _count_kinds(counter: Counter, bound: _Bounded, kinds: Mapping[str, int]) -> None:
    for kind, count in kinds.items():
        counter.labels(bound(kind)).inc(count)


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable()
