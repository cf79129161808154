"""Join records: what turns leave for later requests, as plain functions on a connection.

A hidden group is stored as the bytes that its turn made of it, under digests of its join keys; a
response id with the upstream's ids behind it. Both age out after 30 days, and the groups of one
conversation may take one MiB.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from recall.entries import find_tenant, make_tenant
from recall.text import stored_name

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Mapping, Sequence

AGE_SECONDS: Final = 30 * 86_400
"""How long a record is kept."""
SESSION_BYTES: Final = 1 << 20
"""What the groups of one conversation may take."""
FLEETING_BYTES: Final = 64 << 20
"""What all groups together may take that are kept in memory only."""
GROUPS_PER_KEY: Final = 32
"""How many groups one key leads to, the newest: an answer like "Done." is in many conversations,
and who sends it has other keys for the one that is meant."""

_ROOM: Final = SESSION_BYTES // 4
"""What is freed at once: each group that goes costs its conversation the provider's prompt cache
from there on, so few large cuts are better than many small ones."""
_HOP: Final = "hop of "
"""What stands in front of an upstream's id, where it leads to the one that the client knows."""
_SHOWN_ID: Final = re.compile(rb"\[(m[1-9a-z][0-9a-z]{0,6})\]")


def add_group(
    connection: sqlite3.Connection,
    tenant: str,
    session: str,
    keys: Iterable[str],
    data: bytes,
    *,
    turn: bytes,
    now: float,
) -> None:
    """Store a turn's group, and let go of what is too old or too much for its conversation.

    Args:
        connection: With a transaction open.
        tenant: Whose it is.
        session: Its conversation; empty: its size counts nowhere.
        keys: Under which it is found.
        data: Of at most :data:`SESSION_BYTES`.
        turn: Names the turn and its items; what was stored under this name is replaced.
        now: Seconds since 1970.
    """
    number, session = make_tenant(connection, tenant), stored_name(session)
    inserted = connection.execute(
        "INSERT INTO hidden_group (tenant, session, created, bytes, digest, data)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, digest) DO UPDATE"
        " SET created = excluded.created, bytes = excluded.bytes, data = excluded.data"
        " RETURNING id",
        (number, session, int(now), len(data), _digest(turn), data),
    ).fetchone()
    connection.executemany(
        "INSERT OR IGNORE INTO hidden_key VALUES (?, ?, ?)",
        [(number, key, inserted[0]) for key in key_digests(keys)],
    )
    _let_go(connection, number, session, before=int(now) - AGE_SECONDS)


def _let_go(connection: sqlite3.Connection, number: int, session: str, *, before: int) -> None:
    """Delete what is too old, and what is too much for a conversation."""
    rows = connection.execute("SELECT id FROM hidden_group WHERE created < ?", (before,))
    _delete(connection, [int(row[0]) for row in rows])
    if session:
        rows = connection.execute(
            "SELECT id, bytes FROM hidden_group WHERE tenant = ? AND session = ? ORDER BY id DESC",
            (number, session),
        )
        _delete(connection, _excess(rows.fetchall(), SESSION_BYTES))


def bound_groups(connection: sqlite3.Connection, limit: int) -> None:
    """Let go of the oldest groups, whosoever they are, when all together exceed a limit."""
    rows = connection.execute("SELECT id, bytes FROM hidden_group ORDER BY id DESC")
    _delete(connection, _excess(rows.fetchall(), limit))


def key_digests(keys: Iterable[str]) -> list[int]:
    """Return join keys as they are stored. A collision costs a look at a group that won't match."""
    return [_digest(key.encode("utf-8", "surrogatepass")) for key in keys]


def newer_keys(connection: sqlite3.Connection, group: int, limit: int) -> list[tuple[int, int]]:
    """Return the stored keys, and their groups, of all tenants' groups behind one."""
    rows = connection.execute(
        "SELECT key, hidden_group FROM hidden_key WHERE hidden_group > ?"
        " ORDER BY hidden_group LIMIT ?",
        (group, limit),
    )
    return rows.fetchall()


def find_groups(
    connection: sqlite3.Connection, tenant: str, digests: Collection[int]
) -> list[bytes]:
    """Return a tenant's groups with any of the keys, in the order they were stored.

    Of a key that very many groups have, only the newest count.

    Args:
        connection: With a transaction open.
        tenant: Whose they are.
        digests: The keys' (see `key_digests`).
    """
    number = find_tenant(connection, tenant)
    if number is None:
        return []
    rows = connection.execute(
        "SELECT data FROM hidden_group WHERE id IN (SELECT found.hidden_group"
        " FROM json_each(:keys) wanted CROSS JOIN hidden_key found"
        " ON found.tenant = :tenant AND found.key = wanted.value AND found.hidden_group >="
        " coalesce((SELECT later.hidden_group FROM hidden_key later WHERE later.tenant = :tenant"
        " AND later.key = wanted.value ORDER BY later.hidden_group DESC LIMIT 1 OFFSET :more), 0))"
        " ORDER BY id",
        {
            "keys": orjson.dumps([*digests]).decode(),
            "tenant": number,
            "more": GROUPS_PER_KEY - 1,
        },
    )
    return [row[0] for row in rows]


def add_response(
    connection: sqlite3.Connection,
    tenant: str,
    public_id: str,
    data: Mapping[str, Any],
    now: float,
) -> None:
    """Store what stands behind an id that a client was given, and that id behind the others."""
    number = make_tenant(connection, tenant)
    entries = [(public_id, data)]
    known = {"public": public_id}
    entries += [(_HOP + hop, known) for hop in data["hops"] if hop != public_id]
    connection.executemany(
        "INSERT OR REPLACE INTO response VALUES (?, ?, ?, ?)",
        # The standard encoder escapes what a text column could not take.
        [(number, stored_name(name), json.dumps(value), int(now)) for name, value in entries],
    )
    connection.execute("DELETE FROM response WHERE created < ?", (int(now) - AGE_SECONDS,))


def find_public_id(connection: sqlite3.Connection, tenant: str, hop: str) -> str | None:
    """Return the id that a client knows instead of an upstream's; None where it knows none."""
    found = _find_response(connection, tenant, _HOP + hop)
    return None if found is None else str(found["public"])


def find_response(
    connection: sqlite3.Connection, tenant: str, public_id: str
) -> dict[str, Any] | None:
    """Return what stands behind an id; None for one that this tenant was not given."""
    found = _find_response(connection, tenant, public_id)
    return found if found is not None and "hops" in found else None


def _find_response(connection: sqlite3.Connection, tenant: str, name: str) -> dict[str, Any] | None:
    number = find_tenant(connection, tenant)
    row = connection.execute(
        "SELECT data FROM response WHERE tenant = ? AND id = ?", (number, stored_name(name))
    ).fetchone()
    return None if row is None else dict(json.loads(row[0]))


def forget(
    connection: sqlite3.Connection,
    tenant: str,
    ids: Iterable[str],
    sessions: Collection[str] | None,
) -> None:
    """Delete the groups in which one of some entries was shown, and those of some sessions.

    Args:
        connection: With a transaction open.
        tenant: Whose they are.
        ids: Entries.
        sessions: Names as stored; None deletes everything the tenant has here.
    """
    number = find_tenant(connection, tenant)
    shown = {each.encode() for each in ids}
    rows = connection.execute(
        "SELECT id, session, data FROM hidden_group WHERE tenant = ?", (number,)
    )
    chosen = [
        int(id_)
        for id_, session, data in rows
        if sessions is None or session in sessions or not shown.isdisjoint(_SHOWN_ID.findall(data))
    ]
    _delete(connection, chosen)
    if sessions is None:
        connection.execute("DELETE FROM response WHERE tenant = ?", (number,))


def _excess(newest_first: Sequence[tuple[int, int]], limit: int) -> list[int]:
    """Return the oldest groups that make room, none while everything fits."""
    if sum(size for _, size in newest_first) <= limit:
        return []
    kept = 0
    for at, (_, size) in enumerate(newest_first):
        kept += size
        if at and kept > limit - _ROOM:
            return [id_ for id_, _ in newest_first[at:]]
    return []


def _delete(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    rows = [(each,) for each in ids]
    connection.executemany("DELETE FROM hidden_key WHERE hidden_group = ?", rows)
    connection.executemany("DELETE FROM hidden_group WHERE id = ?", rows)


def _digest(data: bytes) -> int:
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
