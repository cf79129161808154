"""Search: which entries answer a query, and the hidden call around it.

The word index does the work, in SQL: an OR of the query's words, scored by bm25, inside the rowids
of one tenant and, where the scope is narrower, behind its tag, so that nobody else's entries are
even looked at. Two things are added to its scores: a share for entries that only have a piece of a
word (the trigram index), and what :mod:`recall.rank` knows about conversations.

bm25 costs a microsecond or two for every entry that has any of the words, and in a large memory
common words are everywhere. So each word is probed first, which is twenty times cheaper, and only
as many entries are scored as fit a budget: those with the rare words, among which the common ones
still count; if there are only common ones, the newest entries that have them, and those that have
them all.

The results of each statement come as one JSON text. Fetching rows one by one would ask for the
interpreter's lock after each, against an event loop that is busy with streams.
"""

from __future__ import annotations

import sqlite3
from math import log
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

import orjson

from recall.database import StoppedError
from recall.dates import day_of
from recall.entries import (
    Entry,
    Scope,
    around,
    fetch,
    find_group,
    find_tenant,
    reach_of,
    rowid_of,
)
from recall.migrations import StoreError
from recall.plan import Pass, Probe, conjunction, plan
from recall.rank import Place, rank
from recall.render import Found, Order, Shown, render_failure, render_found, render_shown
from recall.terms import expressions, query_words, substrings
from recall.tool import ANCHOR, RecallInput, RecallResult, Within, parse_recall_input

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recall.store import Store

DEADLINE_SECONDS: Final = 1.0
"""After this time a search counts as failed."""
SCORED: Final = 3_000
"""How many entries bm25 may score in one search."""
CANDIDATES: Final = 250
"""How many of them go on to be ranked."""
LEADERS: Final = 60
"""How many of those share their score with their neighbours; further down it moves nothing up."""
PART_SHARE: Final = 0.3
"""What a piece of a word counts against the whole word."""

_LEAST_RARITY: Final = 1e-6
"""What bm25 takes for the weight of a word that more than half of the entries have."""
_PART_WORDS: Final = 8
_PART_MATCHES: Final = 300
_PART_SCANNED: Final = 10_000
_PART_WORK: Final = 200_000
"""Words times entries that the trigram index may be asked for."""


# Both ends of a scope. Two look-ups: min and max in one statement would read all between them.
_ENDS: Final = {
    Within.ALL: (
        "SELECT (SELECT min(id) FROM entry WHERE id BETWEEN :first AND :last),"
        " (SELECT max(id) FROM entry WHERE id BETWEEN :first AND :last), last"
        " FROM tenant WHERE id = :tenant"
    ),
    Within.PROJECT: (
        "SELECT (SELECT min(id) FROM entry WHERE project = :project),"
        " (SELECT max(id) FROM entry WHERE project = :project), last"
        " FROM tenant WHERE id = :tenant"
    ),
    Within.SESSION: (
        "SELECT (SELECT min(id) FROM entry WHERE session = :session),"
        " (SELECT max(id) FROM entry WHERE session = :session), last"
        " FROM tenant WHERE id = :tenant"
    ),
}


class Area(NamedTuple):
    """A scope, in the numbers of the file."""

    first: int
    """The oldest rowid."""
    newest: int
    """The newest rowid."""
    size: int
    """How many entries the tenant has stored so far."""
    project: int | None
    session: int | None
    within: Within

    def only(self) -> dict[str, int | None]:
        """Return the project and the session that entries must have; None: any."""
        return {
            "project": self.project if self.within is Within.PROJECT else None,
            "session": self.session if self.within is Within.SESSION else None,
        }

    def match(self, expression: str) -> str:
        """Return a full-text expression that keeps to the scope."""
        match self.within:
            case Within.ALL:
                return expression
            case Within.PROJECT:
                return f'tags : "p{self.project}" AND ({expression})'
            case Within.SESSION:
                return f'tags : "s{self.session}" AND ({expression})'
            case _:
                assert_never(self.within)


async def run_recall(
    store: Store, scope: Scope, arguments: str, *, now: float, anchor: bool
) -> RecallResult:
    """Answer one hidden call. Cancelling it interrupts the search at once.

    Args:
        store: The memory.
        scope: Who asks, from which project and session.
        arguments: The call's arguments as the model wrote them.
        now: Seconds since 1970.
        anchor: Whether the client may see a line that says that the memory was consulted.

    Returns:
        The result: also for arguments that can't be used and for a search that failed, each with
        a text that says so. It changes nothing, so it has no hooks.
    """
    anchor_text = ANCHOR if anchor else None
    wanted = parse_recall_input(arguments)
    if isinstance(wanted, str):
        return RecallResult(anchor_text, wanted, ())
    try:
        text, entries = await store.database.read_async(
            lambda connection: _answer(connection, scope, wanted, now), seconds=DEADLINE_SECONDS
        )
    except StoppedError:
        return RecallResult(anchor_text, render_failure("it took too long"), ())
    except (sqlite3.Error, StoreError):
        return RecallResult(anchor_text, render_failure("the memory could not be read"), ())
    return RecallResult(anchor_text, text, tuple(entry.id for entry in entries))


async def search(
    store: Store, scope: Scope, wanted: RecallInput, *, now: float, seconds: float | None = None
) -> Found:
    """Return a page of hits for a query.

    Raises:
        StoppedError: ``seconds`` were over.
    """
    return await store.database.read_async(
        lambda connection: find(connection, scope, wanted, now=now), seconds=seconds
    )


def find(connection: sqlite3.Connection, scope: Scope, wanted: RecallInput, *, now: float) -> Found:
    """Return a page of hits for a query: as many as it asks for, if there are as many.

    A query in which nothing can be looked for gets the newest entries.
    """
    area = _area(connection, scope, wanted.within)
    if area is None:
        return Found((), more=False, order=Order.BEST)
    terms = expressions(wanted.query, day_of(now))
    if terms:
        order, rowids = Order.BEST, _ranked(connection, area, wanted, terms, now)
    else:
        order, rowids = Order.NEWEST, _newest(connection, area)
    end = wanted.offset + wanted.limit
    page = tuple(fetch(connection, rowids[wanted.offset : end]))
    return Found(page, more=len(rowids) > end, order=order)


def _answer(
    connection: sqlite3.Connection, scope: Scope, wanted: RecallInput, now: float
) -> tuple[str, tuple[Entry, ...]]:
    if wanted.ids:
        shown, missing = _read(connection, scope.tenant, wanted.ids)
        text = render_shown(shown, missing, scope)
        return text, tuple(each.entry for each in shown)
    found = find(connection, scope, wanted, now=now)
    return render_found(found, wanted, scope), found.entries


def _read(
    connection: sqlite3.Connection, tenant: str, ids: Sequence[str]
) -> tuple[list[Shown], list[str]]:
    """Look entries up by id; return what there is, and the ids that have none."""
    number = find_tenant(connection, tenant)
    shown: list[Shown] = []
    missing: list[str] = []
    for each in ids:
        rowid = None if number is None else rowid_of(reach_of(number), each)
        entries = [] if rowid is None else fetch(connection, [rowid])
        if rowid is None or not entries:
            missing.append(each)
        else:
            shown.append(Shown(entries[0], *around(connection, rowid)))
    return shown, missing


def _area(connection: sqlite3.Connection, scope: Scope, within: Within) -> Area | None:
    """Return a scope in numbers; None for one in which nothing is stored."""
    tenant = find_tenant(connection, scope.tenant)
    if tenant is None:
        return None
    project = find_group(connection, "project", tenant, scope.project)
    session = find_group(connection, "session", tenant, scope.session)
    # A session, and often a project, is a short stretch of the tenant's rowids.
    first, newest, size = connection.execute(
        _ENDS[within],
        {"tenant": tenant, "project": project, "session": session, **reach_of(tenant)._asdict()},
    ).fetchone()
    if first is None:
        return None
    return Area(first, newest, size, project, session, within)


def _newest(connection: sqlite3.Connection, area: Area) -> list[int]:
    match area.within:
        case Within.ALL:
            sql = "SELECT id FROM entry WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT ?"
            values = [area.first, area.newest]
        case Within.PROJECT:
            sql = "SELECT id FROM entry WHERE project = ? ORDER BY id DESC LIMIT ?"
            values = [area.project or 0]
        case Within.SESSION:
            sql = "SELECT id FROM entry WHERE session = ? ORDER BY position DESC LIMIT ?"
            values = [area.session or 0]
        case _:
            assert_never(area.within)
    return [int(row[0]) for row in connection.execute(sql, (*values, CANDIDATES))]


def _ranked(
    connection: sqlite3.Connection,
    area: Area,
    wanted: RecallInput,
    terms: Sequence[str],
    now: float,
) -> list[int]:
    scores = _word_scores(connection, area, terms, wanted.offset + wanted.limit)
    for rowid, share in _part_scores(connection, area, wanted.query, alone=not scores).items():
        scores[rowid] = scores.get(rowid, 0.0) + share
    if not scores:
        return []
    best = sorted(scores, key=lambda rowid: (-scores[rowid], -rowid))[:CANDIDATES]
    return rank(
        {rowid: scores[rowid] for rowid in best},
        _places(connection, area, best),
        words=frozenset(query_words(wanted.query)),
        project=area.project,
        here=None if area.within is Within.SESSION else area.session,
        now=now,
    )


def _word_scores(
    connection: sqlite3.Connection, area: Area, terms: Sequence[str], enough: int
) -> dict[int, float]:
    probes = _probe(connection, area, terms)
    passes = plan(probes, first=area.first, newest=area.newest, budget=SCORED, enough=enough)
    if every := conjunction(probes, first=area.first, newest=area.newest, budget=SCORED):
        passes += tuple(Pass(every, probe.oldest) for probe in _probe(connection, area, [every]))
    scores: dict[int, float] = {}
    for each in passes:
        rows = _json(
            connection,
            "SELECT json_group_array(json_array(id, score)) FROM ("
            " SELECT rowid AS id, -bm25(words, 1.0, 0.0, 1.0) AS score FROM words"
            " WHERE words MATCH ? AND rowid BETWEEN ? AND ? ORDER BY score DESC LIMIT ?)",
            (area.match(each.expression), each.floor, area.newest, CANDIDATES),
        )
        for rowid, score in rows:
            scores[rowid] = max(score, scores.get(rowid, 0.0))
    return scores


def _probe(connection: sqlite3.Connection, area: Area, terms: Sequence[str]) -> list[Probe]:
    counts = _json(
        connection,
        "SELECT json_group_array(json((SELECT json_array(count(*), coalesce(min(id), 0)) FROM ("
        " SELECT rowid AS id FROM words WHERE words MATCH term.value AND rowid BETWEEN ? AND ?"
        " ORDER BY rowid DESC LIMIT ?)))) FROM json_each(?) term",
        (area.first, area.newest, SCORED, _dump([area.match(term) for term in terms])),
    )
    return [Probe(term, *found) for term, found in zip(terms, counts, strict=True)]


def _part_scores(
    connection: sqlite3.Connection, area: Area, query: str, *, alone: bool
) -> dict[int, float]:
    """Return shares for entries that have a piece of a word.

    A piece that is everywhere tells nothing, and is left out unless there is nothing else.
    """
    pieces = sorted(substrings(query), key=len, reverse=True)
    scores: dict[int, float] = {}
    for piece in pieces[: max(1, min(_PART_WORDS, _PART_WORK // area.size))]:
        rowids = _json(
            connection,
            "SELECT json_group_array(e.id) FROM (SELECT e.id FROM (SELECT rowid AS id FROM parts"
            " WHERE parts MATCH :piece AND rowid BETWEEN :first AND :newest"
            " ORDER BY rowid DESC LIMIT :scanned) part"
            " CROSS JOIN entry e ON e.id = part.id WHERE (:project IS NULL OR e.project = :project)"
            " AND (:session IS NULL OR e.session = :session) LIMIT :most) e",
            {
                "piece": piece,
                "first": area.first,
                "newest": area.newest,
                "scanned": _PART_SCANNED,
                "most": _PART_MATCHES,
                **area.only(),
            },
        )
        if len(rowids) < _PART_MATCHES or alone:
            rarity = max(log((area.size - len(rowids) + 0.5) / (len(rowids) + 0.5)), _LEAST_RARITY)
            share = PART_SHARE * rarity
            for rowid in rowids:
                scores[rowid] = scores.get(rowid, 0.0) + share
    return scores


def _places(connection: sqlite3.Connection, area: Area, rowids: Sequence[int]) -> list[Place]:
    """Return where entries stand, and the leaders' neighbours, as far as they are in scope."""
    rows = _json(
        connection,
        "WITH near AS (SELECT value AS id FROM json_each(:hits) UNION"
        " SELECT n.id FROM json_each(:leaders) leader CROSS JOIN entry h ON h.id = leader.value"
        " CROSS JOIN entry n ON n.session = h.session"
        " AND n.position BETWEEN h.position - 2 AND h.position + 2)"
        " SELECT json_group_array(json_array(e.id, e.session, e.position, e.project, e.created,"
        " e.role, substr(e.text, 1, 48))) FROM near CROSS JOIN entry e ON e.id = near.id"
        " WHERE (:project IS NULL OR e.project = :project)"
        " AND (:session IS NULL OR e.session = :session)",
        {"hits": _dump(rowids), "leaders": _dump(rowids[:LEADERS]), **area.only()},
    )
    return [Place(*row) for row in rows]


def _json(
    connection: sqlite3.Connection, sql: str, values: Sequence[object] | Mapping[str, object]
) -> list[Any]:
    """Run a statement whose only row is one JSON array."""
    result: list[Any] = orjson.loads(connection.execute(sql, values).fetchone()[0])
    return result


def _dump(value: Sequence[object]) -> str:
    return orjson.dumps(list(value)).decode()
