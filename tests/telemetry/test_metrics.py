from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from telemetry.capture import (
    Door,
    EmptyCompletion,
    Keeping,
    Loss,
    TurnRecord,
    capture_empty_completion,
)
from telemetry.labels import Bounded, Labelled, Summed
from telemetry.metrics import Metrics, token_counts

BOUND = 30.0

TURN = TurnRecord(
    turn="t1",
    outcome="failed",
    category="principal_limit",
    protocol="codex",
    upstream="codex",
    model="gpt-x",
    hops=2,
    recalls=3,
    recall_hits=1,
    hidden_bytes=500,
    deferred_bytes=20,
    limit="hidden_bytes",
    truncated="retained_bytes",
    undeclared="off",
    usage={
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens": 7,
        "output_tokens_details": None,
        "total_tokens": 107,
    },
    repairs={"output_filled": 1},
    tolerations={"unknown_event": 2},
    seconds=1.5,
    first_byte_seconds=0.2,
    recall_seconds=(0.01, 0.02),
)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return samples by name and label values (in the order of the labels' names)."""
    metrics.flush()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


def test_a_turn_is_counted_under_each_name() -> None:
    metrics = Metrics(version="1.2.3")
    metrics.observe(TURN)
    found = samples(metrics)
    assert found == {
        **found,
        ("sottovoce_build_info", ("1.2.3",)): 1,
        ("sottovoce_turns_total", ("principal_limit", "failed", "codex", "codex")): 1,
        ("sottovoce_hops_total", ()): 2,
        ("sottovoce_recalls_total", ()): 3,
        ("sottovoce_recall_hits_total", ()): 1,
        ("sottovoce_recall_seconds_count", ()): 2,
        ("sottovoce_hidden_bytes_total", ()): 500,
        ("sottovoce_deferred_bytes_total", ()): 20,
        ("sottovoce_limits_reached_total", ("hidden_bytes",)): 1,
        ("sottovoce_accumulations_truncated_total", ("retained_bytes",)): 1,
        ("sottovoce_recall_undeclared_total", ("off",)): 1,
        ("sottovoce_stream_repairs_total", ("output_filled",)): 1,
        ("sottovoce_stream_tolerations_total", ("unknown_event",)): 2,
        ("sottovoce_tokens_total", ("input", "gpt-x")): 100,
        ("sottovoce_tokens_total", ("cached", "gpt-x")): 40,
        ("sottovoce_tokens_total", ("output", "gpt-x")): 7,
        ("sottovoce_turn_seconds_sum", ()): 1.5,
        ("sottovoce_first_byte_seconds_sum", ()): 0.2,
        ("sottovoce_turns_in_flight", ()): 0,
    }


def test_a_turn_without_figures_is_counted_too() -> None:
    metrics = Metrics(version="1")
    metrics.observe(TurnRecord(turn="t", outcome="completed"))
    assert (
        samples(metrics)["sottovoce_turns_total", ("none", "completed", "responses", "none")] == 1
    )


def test_what_happens_outside_of_a_record() -> None:
    metrics = Metrics(version="1")
    metrics.turn_started()
    metrics.turn_started()
    metrics.turn_ended()
    metrics.request_answered(route="passthrough", status=404)
    metrics.upstream_answered(upstream="openai", result="network", seconds=0.5)
    metrics.failed_over(upstream="openai", kind="network")
    metrics.ingested(4)
    metrics.ingest_failed()
    metrics.join_write_missed()
    metrics.hook_failed("commit")
    found = samples(metrics)
    assert found["sottovoce_turns_in_flight", ()] == 1
    assert found["sottovoce_requests_total", ("passthrough", "404")] == 1
    assert found["sottovoce_upstream_requests_total", ("network", "openai")] == 1
    assert found["sottovoce_upstream_head_seconds_sum", ("openai",)] == 0.5
    assert found["sottovoce_failovers_total", ("network", "openai")] == 1
    assert found["sottovoce_ingested_entries_total", ()] == 4
    assert found["sottovoce_ingest_failures_total", ()] == 1
    assert found["sottovoce_join_write_misses_total", ()] == 1
    assert found["sottovoce_hook_failures_total", ("commit",)] == 1


def test_the_door_tells_what_its_sinks_lost() -> None:
    metrics = Metrics(version="1")

    def broken(_record: object) -> None:
        raise OSError

    door = Door({"metrics": Keeping(metrics.observe, metrics.flush), "broken": broken})
    metrics.watch(door)
    capture_empty_completion(
        door,
        protocol="codex",
        model=None,
        session=None,
        stop_reason=None,
        output_tokens=None,
        recall_depth=0,
    )
    assert door.close(BOUND)
    found = samples(metrics)
    assert found["sottovoce_empty_completions_total", ("codex",)] == 1
    assert found["sottovoce_telemetry_losses_total", ("raised", "broken")] == 1
    assert found["sottovoce_telemetry_losses_total", ("raised", "metrics")] == 0


def test_the_states_of_circuits_are_asked_for_each_time() -> None:
    metrics = Metrics(version="1")
    states = {"one": "closed", "two": "open"}
    metrics.watch_circuits(lambda: states)
    name = "sottovoce_upstream_circuit"
    assert samples(metrics)[name, ("open", "two")] == 1
    states["two"] = "trial"
    found = {labels for key, labels in samples(metrics) if key == name}
    assert found == {("closed", "one"), ("trial", "two")}


def test_two_apps_of_one_process_count_apart() -> None:
    first, second = Metrics(version="1"), Metrics(version="1")
    first.turn_started()
    assert samples(second)["sottovoce_turns_in_flight", ()] == 0


@pytest.mark.parametrize(
    "field", ["model", "protocol", "upstream", "outcome", "category", "limit", "undeclared"]
)
def test_labels_are_bounded(field: str) -> None:
    metrics = Metrics(version="1")
    for number in range(300):
        metrics.observe(
            TurnRecord(
                **{"turn": "t", "outcome": "x", "usage": {"input_tokens": 1}, field: f"v{number}"}
            )
        )
    values = {value for _, labels in samples(metrics) for value in labels if value.startswith("v")}
    assert len(values) <= 64
    assert any("other" in labels for _, labels in samples(metrics))


@given(st.lists(st.text(), min_size=1), st.dictionaries(st.text(), st.integers(0, 5)))
def test_any_text_makes_a_label_that_parses(models: list[str], kinds: dict[str, int]) -> None:
    metrics = Metrics(version="1")
    for model in models:
        metrics.observe(
            TurnRecord(
                turn="t", outcome=model, model=model, usage={"input_tokens": 1}, repairs=kinds
            )
        )
        metrics.observe(EmptyCompletion(model, model, model, model, None, 0))
    for name, labels in samples(metrics):
        assert all(len(value) <= 80 and value.isascii() for value in labels), name


@given(
    st.dictionaries(
        st.sampled_from(["input_tokens", "output_tokens", "input_tokens_details"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.dictionaries(st.text(), st.none()),
    )
)
def test_only_positive_whole_numbers_are_tokens(usage: dict[str, object]) -> None:
    assert all(count > 0 for _, count in token_counts(usage))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1000))))
def test_sums_are_what_each_amount_would_have_made(amounts: list[tuple[str | None, int]]) -> None:
    counter = Counter("c", "c", ["one"], registry=CollectorRegistry())
    summed = Summed(Labelled(counter, Bounded(1)))
    for at, (value, amount) in enumerate(amounts):
        summed.add(amount, value)
        if at % 3 == 0:
            summed.flush()
    summed.flush()
    summed.flush()
    (family,) = counter.collect()
    assert sum(one.value for one in family.samples if one.name == "c_total") == sum(
        amount for _, amount in amounts
    )


def test_a_figure_beyond_every_float_costs_its_own_record_alone() -> None:
    metrics = Metrics(version="1")
    door = Door({"metrics": Keeping(metrics.observe, metrics.flush)})
    door.post(TURN)
    door.post(TURN._replace(usage={"input_tokens": 10**400, "output_tokens": 5}))
    door.post(TURN)
    assert door.close(BOUND)
    assert door.losses()["metrics", Loss.RAISED] == 1
    assert samples(metrics)["sottovoce_tokens_total", ("input", "gpt-x")] == 200


def test_children_are_kept_for_as_many_values_as_there_are_labels() -> None:
    counter = Counter("c", "c", ["one", "two"], registry=CollectorRegistry())
    counters = Labelled(counter, Bounded(2), Bounded(2))
    for number in range(50):
        counters(f"a{number % 5}", None if number % 2 else f"b{number}").inc()
    for values in (("a0", "b0"), ("a1", None), ("x" * 100, "\n")):
        assert counters(*values) is counters(*values)
    assert len(counters._children) <= 3 * 3
    (family,) = counter.collect()
    assert sum(one.value for one in family.samples if one.name == "c_total") == 50
