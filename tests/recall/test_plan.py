from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recall.plan import Pass, Probe, conjunction, plan

BUDGET = 100
PROBES = st.lists(
    st.builds(Probe, st.sampled_from("abcdefgh"), st.integers(0, BUDGET), st.integers(1, 10_000)),
    max_size=8,
    unique_by=lambda probe: probe.expression,
)


def planned(*probes: Probe, enough: int = 8) -> tuple[Pass, ...]:
    return plan(probes, first=1, newest=10_000, budget=BUDGET, enough=enough)


def test_words_without_entries_are_not_looked_for() -> None:
    assert planned(Probe("a", 0, 0)) == ()
    assert planned(Probe("a", 0, 0), Probe("b", 3, 5)) == (Pass("b", 1),)


def test_all_words_count_while_the_budget_lasts() -> None:
    assert planned(Probe("a", 60, 5), Probe("b", 40, 7)) == (Pass("b OR a", 1),)


def test_beside_rare_words_common_ones_add_to_the_score() -> None:
    assert planned(Probe("a", 100, 7_000), Probe("b", 40, 7)) == (Pass("(b) AND (b OR a)", 1),)


def test_beside_rare_words_a_word_of_every_text_tells_nothing() -> None:
    assert planned(Probe("a", 100, 9_900), Probe("b", 40, 7)) == (Pass("b", 1),)


def test_common_words_alone_are_looked_for_among_the_newest() -> None:
    assert planned(Probe("a", 100, 9_001)) == (Pass("a", 9_000),)
    both = planned(Probe("a", 100, 9_001), Probe("b", 100, 9_201))
    assert both == (Pass("a OR b", 9_556),)


def test_a_word_of_too_many_entries_is_not_weighed() -> None:
    assert planned(Probe("a", 100, 9_001), Probe("b", 100, 9_801)) == (Pass("a", 9_000),)
    assert planned(Probe("b", 100, 9_901)) == (Pass("b", 9_900),)


def test_too_few_rare_entries_are_filled_up_from_the_newest() -> None:
    rare, newest = planned(Probe("a", 100, 7_001), Probe("b", 4, 7))
    assert rare == Pass("(b) AND (b OR a)", 1)
    assert newest == Pass("a", 7_000)


def test_only_common_words_are_also_looked_for_together() -> None:
    common = [Probe("a", 100, 9_001), Probe("b", 100, 9_801), Probe("c", 0, 0)]
    ends = {"first": 9_000, "newest": 10_000, "budget": BUDGET}
    assert conjunction(common, **ends) == "a AND b"
    assert conjunction(common[:1], **ends) is None
    assert conjunction([*common, Probe("d", 5, 1)], **ends) is None


@given(PROBES, st.integers(1, 30))
def test_a_plan_finds_something_wherever_a_word_has_entries(
    probes: list[Probe], enough: int
) -> None:
    passes = planned(*probes, enough=enough)
    assert bool(passes) == any(probe.rows for probe in probes)
    assert len(passes) <= 2
    assert all(1 <= each.floor <= 10_000 for each in passes)
