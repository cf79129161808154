"""The ledger's storage: hidden groups and response ids, for the proxy's loop.

Where a hidden group belongs in a history is decided by ``pipeline.history``; this finds the groups
that may belong into one. Records are written before the client may see the end of its turn,
because its next request can be here microseconds later; so a write, once asked for, is finished
even if nobody waits for it. A turn whose client asked for nothing to be stored leaves its records
in memory only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.history import HiddenGroup
from recall import records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection

    from recall.glance import Seen
    from recall.store import Store


@dataclass(frozen=True, slots=True)
class ResponseIds:
    """What stands behind a response id that a client knows."""

    hops: tuple[str, ...]
    """The upstream's ids of all hops, in order; a later request continues the last."""
    outputs: tuple[bytes, ...] = ()
    """Items that answer hidden calls of the last hop, and that no request has carried yet."""


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
    data, turn = group.to_json(), group.turn_keys()
    keys = (*group.lookup_keys(), *group.hidden_keys())
    if len(data) > records.SESSION_BYTES:
        return False

    def work(connection: sqlite3.Connection) -> None:
        records.add_group(connection, tenant, session, keys, data, turn=turn, now=now)
        if not lasting:
            records.bound_groups(connection, records.FLEETING_BYTES)

    home = _home(store, lasting=lasting)
    await home.database.write_async(work, lasting=True, committed=home.glance.wrote)
    return True


async def find_groups(store: Store, tenant: str, keys: Collection[str]) -> list[HiddenGroup]:
    """Return a tenant's groups that have any of the keys, in the order they were saved."""
    digests = records.key_digests(keys)
    found: list[HiddenGroup] = []
    for home in store.homes():
        known = home.glance.known(digests)
        if known is None:
            found += await _look(home, tenant, digests)
        elif known:
            groups = home.glance.remembered(tenant, known)
            found += await _look(home, tenant, known) if groups is None else groups
    return found


async def _look(home: Store, tenant: str, digests: Collection[int]) -> list[HiddenGroup]:
    """Find groups in the file, and learn on the way which keys it has."""
    glance = home.glance

    def work(connection: sqlite3.Connection) -> tuple[bytes | None, Seen | None, list[bytes]]:
        mark = glance.mark()
        seen = glance.look(connection)
        return mark, seen, records.find_groups(connection, tenant, digests)

    mark, seen, data = await home.database.read_async(work)
    groups = [HiddenGroup.from_json(each) for each in data]
    glance.learn(seen)
    glance.remember(mark, tenant, digests, groups, sum(map(len, data)))
    return groups


async def save_response_id(
    store: Store,
    tenant: str,
    public_id: str,
    behind: ResponseIds,
    now: float,
    *,
    lasting: bool = True,
) -> None:
    """Keep what stands behind the id that a client was given."""
    data = {"hops": behind.hops, "outputs": [each.decode() for each in behind.outputs]}
    await _home(store, lasting=lasting).database.write_async(
        lambda connection: records.add_response(connection, tenant, public_id, data, now),
        lasting=True,
    )


async def find_response_id(store: Store, tenant: str, public_id: str) -> ResponseIds | None:
    """Return what stands behind a response id; None for one that this tenant was not given."""
    for home in store.homes():
        data = await home.database.read_async(
            lambda connection: records.find_response(connection, tenant, public_id)
        )
        if data is not None:
            outputs = tuple(each.encode() for each in data["outputs"])
            return ResponseIds(tuple(data["hops"]), outputs)
    return None


async def find_public_id(store: Store, tenant: str, hop: str) -> str | None:
    """Return the id that this tenant knows instead of an upstream's; None where it has no other."""
    for home in store.homes():
        public_id = await home.database.read_async(
            lambda connection: records.find_public_id(connection, tenant, hop)
        )
        if public_id is not None:
            return public_id
    return None


def _home(store: Store, *, lasting: bool) -> Store:
    return store if lasting else store.fleeting()
