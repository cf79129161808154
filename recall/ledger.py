"""The ledger's storage: what turns leave for later requests of the same tenant.

Two things are kept. A hidden group is what a turn hid from its client, found again by the keys of
the visible items around it; where it belongs in a history is decided by ``pipeline.history``. And
which upstream response stands behind the id that a client knows.

They are written before the client may see the end of its turn, because its next request can be
here microseconds later; so a write, once asked for, is finished even if nobody waits for it. They
age out after 30 days, and a conversation keeps one MiB of groups. A turn whose client asked for
nothing to be stored leaves them in memory only.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from pipeline.history import HiddenGroup
from recall.entries import find_tenant, make_tenant
from recall.text import stored_name

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Sequence

    from recall.store import Store

AGE_SECONDS: Final = 30 * 86_400
"""How long a record is kept."""
SESSION_BYTES: Final = 1 << 20
"""What the groups of one conversation may take."""
FLEETING_BYTES: Final = 64 << 20
"""What all groups together may take that are kept in memory only."""

_ROOM: Final = SESSION_BYTES // 4
"""What is freed at once: each group that goes costs its conversation the provider's prompt cache
from there on, so few large cuts are better than many small ones."""
_SHOWN_ID: Final = re.compile(rb"\[(m[1-9a-z][0-9a-z]{0,6})\]")


@dataclass(frozen=True, slots=True)
class ResponseIds:
    """What stands behind a response id that a client knows."""

    last: str
    """The upstream's id of the last hop: what a later request continues."""
    hops: tuple[str, ...]
    """The upstream's ids of all hops, in order."""


async def save_group(
    store: Store,
    tenant: str,
    group: HiddenGroup,
    now: float,
    *,
    session: str = "",
    lasting: bool = True,
) -> bool:
    """Keep a hidden group.

    Args:
        store: The memory.
        tenant: Whose it is.
        group: What was hidden.
        now: Seconds since 1970.
        session: Its conversation, within which its size counts; empty: it counts nowhere.
        lasting: False keeps it in memory only, until the store closes.

    Returns:
        Whether it is kept: not if it alone is larger than its conversation's share.
    """
    data = group.to_json()
    if len(data) > SESSION_BYTES:
        return False
    keys = group.lookup_keys()
    total = None if lasting else FLEETING_BYTES
    session = stored_name(session)

    def work(connection: sqlite3.Connection) -> None:
        number = make_tenant(connection, tenant)
        row = (number, session, int(now), len(data), _digest(data), data)
        inserted = connection.execute(
            "INSERT OR IGNORE INTO hidden_group (tenant, session, created, bytes, digest, data)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            row,
        )
        if inserted.rowcount:
            connection.executemany(
                "INSERT OR IGNORE INTO hidden_key VALUES (?, ?, ?)",
                [(number, _key(key), inserted.lastrowid) for key in keys],
            )
        _age(connection, number, session, now, total)

    await _home(store, lasting=lasting).database.write_async(work, lasting=True)
    return True


async def find_groups(store: Store, tenant: str, keys: Collection[str]) -> list[HiddenGroup]:
    """Return a tenant's groups that have any of the keys, in the order they were saved."""
    found: list[HiddenGroup] = []
    for home in store.homes():
        rows = await home.database.read_async(lambda connection: _groups(connection, tenant, keys))
        found += [HiddenGroup.from_json(row) for row in rows]
    return found


async def save_response_id(  # noqa: PLR0917 - a record's columns, in their order
    store: Store,
    tenant: str,
    public_id: str,
    last_hop_id: str,
    hop_ids: Sequence[str],
    now: float,
    *,
    lasting: bool = True,
) -> None:
    """Keep which upstream responses stand behind the id that a client was given."""
    # The standard encoder escapes what no text column could take.
    row = (stored_name(public_id), json.dumps([last_hop_id, *hop_ids]), int(now))

    def work(connection: sqlite3.Connection) -> None:
        number = make_tenant(connection, tenant)
        connection.execute("INSERT OR REPLACE INTO response VALUES (?, ?, ?, ?)", (number, *row))
        connection.execute("DELETE FROM response WHERE created < ?", (int(now) - AGE_SECONDS,))

    await _home(store, lasting=lasting).database.write_async(work, lasting=True)


async def find_response_id(store: Store, tenant: str, public_id: str) -> ResponseIds | None:
    """Return what stands behind a response id; None for one that this tenant was not given."""
    for home in store.homes():
        row = await home.database.read_async(
            lambda connection: connection.execute(
                "SELECT response.hops FROM response JOIN tenant ON tenant.id = response.tenant"
                " WHERE tenant.name = ? AND response.id = ?",
                (stored_name(tenant), stored_name(public_id)),
            ).fetchone()
        )
        if row is not None:
            last, *hops = json.loads(row[0])
            return ResponseIds(last, tuple(hops))
    return None


def forget_groups(
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
        int(row[0])
        for row in rows
        if sessions is None or row[1] in sessions or not shown.isdisjoint(_SHOWN_ID.findall(row[2]))
    ]
    _delete(connection, chosen)
    if sessions is None:
        connection.execute("DELETE FROM response WHERE tenant = ?", (number,))


def _home(store: Store, *, lasting: bool) -> Store:
    return store if lasting else store.fleeting()


def _groups(connection: sqlite3.Connection, tenant: str, keys: Collection[str]) -> list[bytes]:
    number = find_tenant(connection, tenant)
    if number is None:
        return []
    rows = connection.execute(
        "SELECT data FROM hidden_group WHERE id IN (SELECT found.hidden_group FROM json_each(?)"
        " wanted CROSS JOIN hidden_key found ON found.tenant = ? AND found.key = wanted.value)"
        " ORDER BY id",
        (orjson.dumps([_key(key) for key in keys]).decode(), number),
    )
    return [row[0] for row in rows]


def _age(
    connection: sqlite3.Connection, tenant: int, session: str, now: float, total: int | None
) -> None:
    """Delete what is too old, and the oldest of what is too much."""
    rows = connection.execute(
        "SELECT id FROM hidden_group WHERE created < ?", (int(now) - AGE_SECONDS,)
    )
    _delete(connection, [int(row[0]) for row in rows])
    if session:
        rows = connection.execute(
            "SELECT id, bytes FROM hidden_group WHERE tenant = ? AND session = ? ORDER BY id DESC",
            (tenant, session),
        )
        _delete(connection, _excess(rows.fetchall(), SESSION_BYTES))
    if total is not None:
        rows = connection.execute("SELECT id, bytes FROM hidden_group ORDER BY id DESC")
        _delete(connection, _excess(rows.fetchall(), total))


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


def _key(key: str) -> int:
    """Return a join key as it is stored. A collision costs a look at a group that won't match."""
    return _digest(key.encode("utf-8", "surrogatepass"))


def _digest(data: bytes) -> int:
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
