"""Entries: what is stored, as plain functions on a connection.

Whoever calls decides on which thread and in which transaction. Every function takes the tenant by
name and can reach nothing outside its range of rowids.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import orjson

from recall.dates import day_of
from recall.migrations import TENANT_SHIFT
from recall.terms import index_day, index_text
from recall.text import clean, stored_name

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Sequence

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID: Final = re.compile(r"\[?m([1-9a-z][0-9a-z]{0,6})\]?", re.IGNORECASE)
_NUMBERS: Final = (1 << TENANT_SHIFT) - 1
_ENTRY: Final = (
    "SELECT e.id, p.name, s.name, e.position, e.role, e.created, e.day, e.source, e.text"
    " FROM entry e JOIN project p ON p.id = e.project JOIN session s ON s.id = e.session"
)


class Scope(NamedTuple):
    """Whose memory, and from where it is asked."""

    tenant: str
    project: str
    session: str


class Draft(NamedTuple):
    """A text on its way into the memory."""

    text: str
    role: str
    """``user``, ``assistant``, or the name of who spoke."""
    source: str = "turn"
    """What brought it here: ``turn``, ``add``, or the name of an importer."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored text."""

    id: str
    """Short and per tenant: another tenant's entry of the same id is another entry."""
    project: str
    session: str
    position: int
    """Its place in the session. Growing; gaps are where something was forgotten."""
    role: str
    created: int
    """Seconds since 1970."""
    day: int
    """The calendar day on which it was said, ``yyyymmdd``."""
    source: str
    text: str


class Row(NamedTuple):
    """An entry as its table holds it."""

    id: int
    project: int
    session: int
    position: int
    role: str
    created: int
    day: int
    source: str
    digest: int
    text: str


class Reach(NamedTuple):
    """The rowids of one tenant, both ends included."""

    first: int
    last: int


class Removed(NamedTuple):
    """What was deleted."""

    ids: tuple[str, ...]
    sessions: tuple[str, ...]
    """Names, as stored, of the sessions of which nothing is left."""


def entry_id(rowid: int) -> str:
    """Return the id that stands for a rowid within its tenant."""
    number, digits = rowid & _NUMBERS, ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return f"m{digits}"


def rowid_of(reach: Reach, id_: str) -> int | None:
    """Return the rowid behind an id, always one of this tenant; None for what is no id."""
    match = _ID.fullmatch(id_)
    number = int(match[1], 36) if match else 0
    return reach.first - 1 + number if 0 < number <= _NUMBERS else None


def digest_of(role: str, text: str) -> int:
    """Return what tells a cleaned text from the others of its session: a signed 64-bit number."""
    digest = hashlib.sha256(f"{clean(role)}\n{text}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def find_tenant(connection: sqlite3.Connection, name: str) -> int | None:
    """Return a tenant's number; None for one that has stored nothing."""
    row = connection.execute(
        "SELECT id FROM tenant WHERE name = ?", (stored_name(name),)
    ).fetchone()
    return None if row is None else int(row[0])


def make_tenant(connection: sqlite3.Connection, name: str) -> int:
    """Return a tenant's number, giving it one if it has none."""
    connection.execute("INSERT OR IGNORE INTO tenant (name) VALUES (?)", (stored_name(name),))
    row = connection.execute(
        "SELECT id FROM tenant WHERE name = ?", (stored_name(name),)
    ).fetchone()
    return int(row[0])


def find_group(
    connection: sqlite3.Connection, kind: Literal["project", "session"], tenant: int, name: str
) -> int | None:
    """Return the number of a tenant's project or session; None for one without entries."""
    sql = (
        "SELECT id FROM project WHERE tenant = ? AND name = ?"
        if kind == "project"
        else "SELECT id FROM session WHERE tenant = ? AND name = ?"
    )
    row = connection.execute(sql, (tenant, stored_name(name))).fetchone()
    return None if row is None else int(row[0])


def reach_of(tenant: int) -> Reach:
    """Return the rowids that belong to a tenant."""
    return Reach((tenant << TENANT_SHIFT) + 1, (tenant << TENANT_SHIFT) + _NUMBERS)


def tags(project: int, session: int) -> str:
    """Return the words under which an entry's project and session are indexed."""
    return f"p{project} s{session}"


def add(
    connection: sqlite3.Connection, scope: Scope, drafts: Iterable[Draft], now: float
) -> list[str]:
    """Store, in order, what the session doesn't have yet.

    Args:
        connection: With a transaction open.
        scope: Where it belongs.
        drafts: Texts. Empty ones are left out.
        now: Seconds since 1970.

    Returns:
        The ids of the new entries.
    """
    rows = insert(connection, scope, drafts, now)
    index(connection, rows)
    return [entry_id(row.id) for row in rows]


def insert(
    connection: sqlite3.Connection, scope: Scope, drafts: Iterable[Draft], now: float
) -> list[Row]:
    """Store, in order, what the session doesn't have yet, for `index` to follow.

    The arguments are those of `add`.

    Returns:
        What is new, and can't be found yet.
    """
    said: dict[int, tuple[Draft, str]] = {}
    for draft in drafts:
        if text := clean(draft.text):
            said.setdefault(digest_of(draft.role, text), (draft, text))
    if not said:
        return []
    tenant = make_tenant(connection, scope.tenant)
    session = _make(connection, "session", tenant, scope.session)
    stored = _stored(connection, session, list(said))
    fresh = [(digest, *said[digest]) for digest in said if digest not in stored]
    if not fresh:
        return []
    project = _make(connection, "project", tenant, scope.project)
    rowid = reach_of(tenant).first + _advance(connection, "tenant", tenant, len(fresh))
    position = _advance(connection, "session", session, len(fresh)) + 1
    created, day = int(now), day_of(now)
    rows = [
        Row(
            *(rowid + at, project, session, position + at, clean(draft.role)),
            *(created, day, draft.source, digest, text),
        )
        for at, (digest, draft, text) in enumerate(fresh)
    ]
    connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    return rows


def index(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Let rows that were inserted be found.

    All that a transaction inserts is best indexed at once: the index writes to the file what it
    was given so far whenever another statement than its own begins.
    """
    words, parts = _indexed([(row.id, row.project, row.session, row.day, row.text) for row in rows])
    connection.executemany("INSERT INTO words (rowid, body, tags, day) VALUES (?, ?, ?, ?)", words)
    connection.executemany("INSERT INTO parts (rowid, body) VALUES (?, ?)", parts)


def lacking_in(connection: sqlite3.Connection, scope: Scope, digests: Collection[int]) -> set[int]:
    """Return which texts a session doesn't have, by their digests (see `digest_of`)."""
    rows = connection.execute(
        "SELECT wanted.value FROM json_each(?) wanted WHERE NOT EXISTS (SELECT 1 FROM entry e"
        " WHERE e.session = (SELECT s.id FROM session s JOIN tenant t ON t.id = s.tenant"
        " WHERE t.name = ? AND s.name = ?) AND e.digest = wanted.value)",
        (orjson.dumps([*digests]).decode(), stored_name(scope.tenant), stored_name(scope.session)),
    )
    return {int(row[0]) for row in rows}


def list_entries(
    connection: sqlite3.Connection, tenant: str, limit: int, offset: int = 0
) -> list[Entry]:
    """Return a tenant's entries, the newest first."""
    number = find_tenant(connection, tenant)
    if number is None:
        return []
    rows = connection.execute(
        f"{_ENTRY} WHERE e.id BETWEEN ? AND ? ORDER BY e.id DESC LIMIT ? OFFSET ?",
        (*reach_of(number), limit, offset),
    )
    return [_entry(row) for row in rows]


def show(connection: sqlite3.Connection, tenant: str, id_: str) -> Entry | None:
    """Return one entry of a tenant; None where it has no such entry."""
    number = find_tenant(connection, tenant)
    rowid = None if number is None else rowid_of(reach_of(number), id_)
    return None if rowid is None else next(iter(fetch(connection, [rowid])), None)


def fetch(connection: sqlite3.Connection, rowids: Sequence[int]) -> list[Entry]:
    """Return entries by rowid, in the order asked for; missing ones are left out."""
    rows = connection.execute(
        f"{_ENTRY} JOIN json_each(?) wanted ON wanted.value = e.id ORDER BY wanted.key",
        (orjson.dumps(list(rowids)).decode(),),
    )
    return [_entry(row) for row in rows]


def around(connection: sqlite3.Connection, rowid: int) -> tuple[str | None, str | None]:
    """Return the ids of the entries before and after one in its session."""
    row = connection.execute(
        "SELECT (SELECT id FROM entry b WHERE b.session = e.session AND b.position < e.position"
        " ORDER BY b.position DESC LIMIT 1), (SELECT id FROM entry a WHERE a.session = e.session"
        " AND a.position > e.position ORDER BY a.position LIMIT 1) FROM entry e WHERE e.id = ?",
        (rowid,),
    ).fetchone()
    before, after = row or (None, None)
    return before and entry_id(before), after and entry_id(after)


def count(connection: sqlite3.Connection, tenant: str | None = None) -> int:
    """Return how many entries a tenant has, or all of them together."""
    if tenant is None:
        return int(connection.execute("SELECT count(*) FROM entry").fetchone()[0])
    number = find_tenant(connection, tenant)
    if number is None:
        return 0
    sql = "SELECT count(*) FROM entry WHERE id BETWEEN ? AND ?"
    return int(connection.execute(sql, reach_of(number)).fetchone()[0])


def forget(
    connection: sqlite3.Connection,
    tenant: str,
    *,
    ids: Sequence[str] | None = None,
    project: str | None = None,
    session: str | None = None,
) -> Removed:
    """Delete the entries of a tenant that satisfy every condition given; all without any."""
    number = find_tenant(connection, tenant)
    if number is None:
        return Removed((), ())
    reach = reach_of(number)
    only: dict[str, int | None] = {"project": None, "session": None}
    if project is not None:
        only["project"] = find_group(connection, "project", number, project) or 0
    if session is not None:
        only["session"] = find_group(connection, "session", number, session) or 0
    wanted = None if ids is None else {rowid_of(reach, each) for each in ids}
    rows = connection.execute(
        "SELECT id FROM entry WHERE id BETWEEN :first AND :last"
        " AND (:project IS NULL OR project = :project)"
        " AND (:session IS NULL OR session = :session)",
        {**reach._asdict(), **only},
    )
    chosen = [int(row[0]) for row in rows if wanted is None or row[0] in wanted]
    return Removed(tuple(map(entry_id, chosen)), _delete(connection, number, chosen))


def _delete(connection: sqlite3.Connection, tenant: int, rowids: Sequence[int]) -> tuple[str, ...]:
    """Delete entries and all that only they had; return the names of the sessions left empty.

    The indexes are merged, because otherwise deleted words would stay in them, marked as deleted.
    """
    chosen = orjson.dumps(list(rowids)).decode()
    rows = connection.execute(
        "SELECT e.id, e.project, e.session, e.day, e.text FROM entry e"
        " JOIN json_each(?) chosen ON chosen.value = e.id",
        (chosen,),
    ).fetchall()
    words, parts = _indexed(rows)
    connection.executemany(
        "INSERT INTO words (words, rowid, body, tags, day) VALUES ('delete', ?, ?, ?, ?)", words
    )
    connection.executemany("INSERT INTO parts (parts, rowid, body) VALUES ('delete', ?, ?)", parts)
    connection.execute("DELETE FROM entry WHERE id IN (SELECT value FROM json_each(?))", (chosen,))
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    connection.execute("INSERT INTO parts (parts) VALUES ('optimize')")
    connection.execute(
        "DELETE FROM project WHERE tenant = ? AND id NOT IN (SELECT project FROM entry)", (tenant,)
    )
    emptied = connection.execute(
        "DELETE FROM session WHERE tenant = ? AND id NOT IN (SELECT session FROM entry)"
        " RETURNING name",
        (tenant,),
    )
    return tuple(row[0] for row in emptied.fetchall())


def _indexed(
    rows: Iterable[tuple[int, int, int, int, str]],
) -> tuple[list[tuple[int, str, str, str]], list[tuple[int, str]]]:
    """Return what the indexes hold of rows ``(rowid, project, session, day, text)``.

    A contentless index deletes by being told once more exactly what was inserted, so this must
    give the same for the same row for ever; to change it takes a migration that indexes anew.
    """
    words: list[tuple[int, str, str, str]] = []
    parts: list[tuple[int, str]] = []
    for rowid, project, session, day, text in rows:
        words.append((rowid, index_text(text), tags(project, session), index_day(day)))
        parts.append((rowid, text))
    return words, parts


def _stored(connection: sqlite3.Connection, session: int, digests: Collection[int]) -> set[int]:
    rows = connection.execute(
        "SELECT e.digest FROM json_each(?) wanted"
        " CROSS JOIN entry e ON e.session = ? AND e.digest = wanted.value",
        (orjson.dumps(list(digests)).decode(), session),
    )
    return {int(row[0]) for row in rows}


def _make(
    connection: sqlite3.Connection, kind: Literal["project", "session"], tenant: int, name: str
) -> int:
    sql = (
        "INSERT OR IGNORE INTO project (tenant, name) VALUES (?, ?)"
        if kind == "project"
        else "INSERT OR IGNORE INTO session (tenant, name) VALUES (?, ?)"
    )
    connection.execute(sql, (tenant, stored_name(name)))
    number = find_group(connection, kind, tenant, name)
    if number is None:  # pragma: no cover - it was made in this transaction
        raise LookupError(kind)
    return number


def _advance(
    connection: sqlite3.Connection, kind: Literal["tenant", "session"], number: int, by: int
) -> int:
    """Take the next numbers of a tenant or session and return how many it had given before.

    A number is never given twice, so that an id the model has seen never means another entry.
    """
    sql = (
        "UPDATE tenant SET last = last + ? WHERE id = ? RETURNING last"
        if kind == "tenant"
        else "UPDATE session SET last = last + ? WHERE id = ? RETURNING last"
    )
    return int(connection.execute(sql, (by, number)).fetchone()[0]) - by


def _entry(row: tuple[int, str, str, int, str, int, int, str, str]) -> Entry:
    return Entry(entry_id(row[0]), *row[1:])
