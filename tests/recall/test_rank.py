from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recall.rank import HALF_LIFE_SECONDS, Place, rank

NOW = 1_790_000_000.0


def place(
    rowid: int,
    *,
    session: int = 1,
    position: int | None = None,
    project: int = 1,
    age: float = 0.0,
    role: str = "user",
    head: str = "",
) -> Place:
    at = rowid if position is None else position
    return Place(rowid, session, at, project, int(NOW - age), role, head)


def ranked(
    scores: dict[int, float],
    places: list[Place],
    words: str = "",
    project: int | None = None,
    here: int | None = None,
) -> list[int]:
    told = frozenset(words.split())
    return rank(scores, places, words=told, project=project, here=here, now=NOW)


def test_the_best_come_first_and_the_newer_of_equals() -> None:
    places = [place(rowid, session=rowid) for rowid in (1, 2, 3)]
    assert ranked({1: 1.0, 2: 3.0, 3: 1.0}, places) == [2, 3, 1]


def test_neighbours_get_their_shares() -> None:
    places = [place(rowid) for rowid in range(1, 8)]
    assert ranked({4: 1.0}, places) == [4, 5, 3, 6, 2]


def test_shares_add_up() -> None:
    places = [place(rowid) for rowid in range(1, 6)] + [place(9, session=2)]
    order = ranked({2: 1.0, 4: 1.0, 9: 1.1}, places)
    assert order.index(4) < order.index(9)
    assert order.index(3) < order.index(9) or order.index(3) == order.index(9) + 1


def test_another_session_at_the_same_position_is_no_neighbour() -> None:
    assert ranked({4: 1.0}, [place(4), place(5, session=2)]) == [4]


def test_a_hit_out_of_scope_is_left_out() -> None:
    assert ranked({4: 1.0, 5: 2.0}, [place(4)]) == [4]


def test_a_speaker_whom_the_query_names_counts_twice() -> None:
    places = [
        place(1, session=1, role="Caroline"),
        place(2, session=2),
        place(3, session=3, head="Melanie: I went"),
    ]
    scores = {1: 1.0, 2: 1.5, 3: 1.0}
    assert ranked(scores, places) == [2, 3, 1]
    assert ranked(scores, places, "caroline") == [1, 2, 3]
    assert ranked(scores, places, "melanie") == [3, 2, 1]


def test_the_project_that_asks_is_preferred() -> None:
    places = [place(1, session=1, project=1), place(2, session=2, project=2)]
    assert ranked({1: 1.0, 2: 1.1}, places, project=1) == [1, 2]
    assert ranked({1: 1.0, 2: 1.1}, places, project=2) == [2, 1]
    assert ranked({1: 1.0, 2: 1.1}, places) == [2, 1]


def test_the_conversation_that_asks_stands_back() -> None:
    places = [place(1, session=1), place(2, session=2)]
    assert ranked({1: 1.5, 2: 1.0}, places) == [1, 2]
    assert ranked({1: 1.5, 2: 1.0}, places, here=1) == [2, 1]


def test_of_nearly_equals_the_recent_one_comes_first() -> None:
    places = [place(1, session=1), place(2, session=2, age=10 * HALF_LIFE_SECONDS)]
    assert ranked({1: 1.0, 2: 1.05}, places) == [1, 2]
    assert ranked({1: 1.0, 2: 1.2}, places) == [2, 1]


def test_a_time_to_come_is_as_recent_as_now() -> None:
    places = [place(1, session=1, age=-1e9), place(2, session=2)]
    assert ranked({1: 1.0, 2: 1.01}, places) == [2, 1]


@given(st.dictionaries(st.integers(1, 40), st.floats(1e-6, 100.0)), st.sets(st.integers(1, 40)))
def test_all_places_that_count_are_ranked_once(scores: dict[int, float], known: set[int]) -> None:
    order = ranked(scores, [place(rowid, session=rowid % 3) for rowid in known])
    assert len(order) == len(set(order))
    assert known >= set(order) >= known & scores.keys()
