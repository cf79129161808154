"""The memory file's shape, one function for each step it ever took.

Steps go forward only and are never edited once released: the file says in ``user_version`` how
many it has seen. A file from a newer version is refused, because writing into a shape that this
code doesn't know would damage it.

An entry's rowid carries its tenant in the upper half (``tenant << 32 | number``). So a tenant is
one range of rowids, in the table and in both indexes, and a search that is bound to the range
can't even see what others stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

APPLICATION: Final = 0x534F5456
"""``application_id`` of a memory file: SOTV."""
TENANT_SHIFT: Final = 32
"""Where the tenant stands in an entry's rowid."""


class StoreError(Exception):
    """The memory file can't be used: for the user's eyes.

    Args:
        message: Why.
        hint: What to do about it.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def m001_memory(connection: sqlite3.Connection) -> None:
    """Create tenants, projects, sessions, entries and the two indexes over their text.

    Both indexes are contentless: the text stands once, in ``entry``; what was indexed is computed
    again when an entry is deleted. ``words`` holds stems, scope tags and date words; ``parts``
    holds trigrams without positions, for pieces of words.
    """
    for statement in (
        """CREATE TABLE tenant (
            id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, last INTEGER NOT NULL DEFAULT 0)""",
        """CREATE TABLE project (
            id INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, name TEXT NOT NULL,
            UNIQUE (tenant, name))""",
        """CREATE TABLE session (
            id INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, name TEXT NOT NULL,
            last INTEGER NOT NULL DEFAULT 0, UNIQUE (tenant, name))""",
        """CREATE TABLE entry (
            id INTEGER PRIMARY KEY, project INTEGER NOT NULL, session INTEGER NOT NULL,
            position INTEGER NOT NULL, role TEXT NOT NULL, created INTEGER NOT NULL,
            day INTEGER NOT NULL, source TEXT NOT NULL, digest INTEGER NOT NULL,
            text TEXT NOT NULL)""",
        "CREATE UNIQUE INDEX entry_position ON entry (session, position)",
        "CREATE UNIQUE INDEX entry_digest ON entry (session, digest)",
        "CREATE INDEX entry_project ON entry (project)",
        """CREATE VIRTUAL TABLE words USING fts5 (
            body, tags, day, content='', tokenize='porter unicode61 remove_diacritics 2')""",
        """CREATE VIRTUAL TABLE parts USING fts5 (
            body, content='', tokenize='trigram', detail=none)""",
    ):
        connection.execute(statement)


def m002_ledger(connection: sqlite3.Connection) -> None:
    """Create what turns leave behind for later requests: hidden groups and response ids."""
    for statement in (
        """CREATE TABLE hidden_group (
            id INTEGER PRIMARY KEY AUTOINCREMENT, tenant INTEGER NOT NULL, session TEXT NOT NULL,
            created INTEGER NOT NULL, bytes INTEGER NOT NULL, digest INTEGER NOT NULL,
            data BLOB NOT NULL, UNIQUE (tenant, digest))""",
        "CREATE INDEX hidden_group_session ON hidden_group (tenant, session)",
        "CREATE INDEX hidden_group_created ON hidden_group (created)",
        """CREATE TABLE hidden_key (
            tenant INTEGER NOT NULL, key INTEGER NOT NULL, hidden_group INTEGER NOT NULL,
            PRIMARY KEY (tenant, key, hidden_group)) WITHOUT ROWID""",
        "CREATE INDEX hidden_key_group ON hidden_key (hidden_group)",
        """CREATE TABLE response (
            tenant INTEGER NOT NULL, id TEXT NOT NULL, data TEXT NOT NULL, created INTEGER NOT NULL,
            PRIMARY KEY (tenant, id)) WITHOUT ROWID""",
        "CREATE INDEX response_created ON response (created)",
    ):
        connection.execute(statement)


MIGRATIONS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (m001_memory, m002_ledger)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file to the newest shape, all steps or none.

    Two processes may do this at once: the second waits for the first and finds nothing to do.

    Raises:
        StoreError: The file is no memory of ours, or newer than this code.
    """
    connection.execute("BEGIN")  # what is read of the file is of one moment
    try:
        version = _version(connection)
    finally:
        if connection.in_transaction:  # a file that can't be read has ended it
            connection.execute("COMMIT")
    if version == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in MIGRATIONS[_version(connection) :]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    """Return how many steps the file has seen; refuse a file that we must not touch."""
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION and (application or tables):
        raise StoreError(
            "the memory file is a database of another program",
            hint="choose another state directory",
        )
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the memory file has version {version}, this sottovoce knows versions up to"
            f" {len(MIGRATIONS)}",
            hint="upgrade sottovoce, or choose another state directory",
        )
    return version
