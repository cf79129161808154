"""``sottovoce recall``: the memory without a model, and without the proxy running or not."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

import click

from proxy.cli_files import unusable
from proxy.cli_options import config_option, json_option, read, state_dir_option
from proxy.cli_output import CliError, print_json, printable, tell
from proxy.cli_streams import read_text
from recall.tool import LIMIT, MOST, OFFSET, QUERY_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from recall.entries import Entry
    from recall.store import Store

F = TypeVar("F", bound="Callable[..., object]")

SESSION: Final = "notes"
"""The session of what is added by hand, unless one is named."""
_MOST_LISTED: Final = 10_000
_LAST: Final = 2**32
"""The largest offset: there are never more entries of a tenant."""
_ELSEWHERE: Final = "--state-dir names another place"


@click.group("recall")
def command() -> None:
    """Work with the memory, without a model.

    It is the memory of a running proxy too: what is added here is found there at once.
    """


def tenant_option(function: F) -> F:
    """Add ``--tenant``."""
    return click.option("--tenant", default="local", show_default=True, help="Whose memory it is.")(
        function
    )


def place_options(function: F) -> F:
    """Add ``--project`` and ``--session``."""
    function = click.option(
        "--session", default=SESSION, show_default=True, help="The conversation."
    )(function)
    return click.option("--project", default="default", show_default=True, help="The project.")(
        function
    )


@command.command()
@click.argument("text")
@place_options
@tenant_option
@config_option
@state_dir_option
def add(
    *,
    text: str,
    project: str,
    session: str,
    tenant: str,
    config_file: Path | None,
    state_dir: Path | None,
) -> None:
    """Store TEXT, or stdin for `-`, and print the new ids."""
    if text == "-":
        text = read_text()
    if not text.strip():
        raise click.UsageError("there is no text to store")
    with opened(memory_file(config_file, state_dir)) as store:
        ids = store.add_text(tenant, project, session, text, time.time())
    for each in ids:
        click.echo(each)
    if not ids:
        tell(f"nothing stored: the session {printable(session)} has it already")


@command.command()
@click.argument("query")
@click.option(
    "--scope",
    type=click.Choice(["all", "project", "session"]),
    default="all",
    show_default=True,
    help="Where to look.",
)
@click.option(
    "--limit", type=click.IntRange(1, MOST), default=LIMIT, show_default=True, help="Hits."
)
@click.option("--offset", type=click.IntRange(0, OFFSET), default=0, help="Hits to skip.")
@place_options
@tenant_option
@config_option
@state_dir_option
@json_option
def search(
    *,
    query: str,
    scope: str,
    limit: int,
    offset: int,
    project: str,
    session: str,
    tenant: str,
    config_file: Path | None,
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Find what the model would find with QUERY, best first."""
    from recall.entries import Scope
    from recall.search import find
    from recall.tool import RecallInput, Within

    if len(query) > QUERY_CHARS:
        raise click.UsageError(f"a query has at most {QUERY_CHARS} characters")
    wanted = RecallInput(query=query, within=Within(scope), offset=offset, limit=limit)
    where = Scope(tenant, project, session)
    found = None
    path = memory_file(config_file, state_dir)
    if has_memory(path):
        with opened(path) as store:
            found = store.database.read(
                lambda connection: find(connection, where, wanted, now=time.time())
            )
    entries = () if found is None else found.entries
    if as_json:
        more = found is not None and found.more
        print_json({"tenant": tenant, "query": query, "more": more, "entries": plain(entries)})
        return
    print_entries(entries)
    if not entries:
        tell("nothing found")
    elif found is not None and found.more:
        tell(f"more: --offset {offset + limit}")


@command.command("list")
@click.option(
    "--limit", type=click.IntRange(1, _MOST_LISTED), default=20, show_default=True, help="Entries."
)
@click.option("--offset", type=click.IntRange(0, _LAST), default=0, help="Entries to skip.")
@tenant_option
@config_option
@state_dir_option
@json_option
def list_entries(
    *,
    limit: int,
    offset: int,
    tenant: str,
    config_file: Path | None,
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Print the newest entries."""
    path = memory_file(config_file, state_dir)
    entries: list[Entry] = []
    count = 0
    if has_memory(path):
        with opened(path) as store:
            entries, count = store.list(tenant, limit, offset), store.count(tenant)
    if as_json:
        print_json({"tenant": tenant, "count": count, "entries": plain(entries)})
        return
    print_entries(entries)
    tell(f"{len(entries)} of {count}")


@command.command()
@click.argument("id_", metavar="ID")
@tenant_option
@config_option
@state_dir_option
@json_option
def show(
    *, id_: str, tenant: str, config_file: Path | None, state_dir: Path | None, as_json: bool
) -> None:
    """Print one entry whole."""
    path, entry = memory_file(config_file, state_dir), None
    if has_memory(path):
        with opened(path) as store:
            entry = store.show(tenant, id_)
    if entry is None:
        hint = "`sottovoce recall list` prints the ids"
        raise CliError(f"there is no entry {printable(id_)} of tenant {tenant}", hint=hint)
    if as_json:
        print_json({"tenant": tenant, "entry": plain([entry])[0]})
        return
    tell(_heading(entry))
    click.echo(printable(entry.text))


def memory_file(config_file: Path | None, state_dir: Path | None) -> Path:
    """Return the memory that the configuration and ``--state-dir`` lead to."""
    folder = None if state_dir is None else str(state_dir)
    return read(config_file, {("server", "state_dir"): folder}).memory_file


def has_memory(path: Path) -> bool:
    """Tell whether there is a memory yet, and say so where there is none: reading makes none.

    Raises:
        CliError: There can be none: its folder is no folder, or may not be looked into.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        tell(f"there is no memory yet at {path}")
        return False
    except OSError as error:
        raise unusable(path, "opened", error, hint=_ELSEWHERE) from None
    return True


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Store]:
    """Open a memory for one verb.

    Raises:
        CliError: It can't be opened, read or written.
    """
    from recall.migrations import StoreError
    from recall.store import Store as Memory
    from recall.trouble import trouble_of

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Memory.open(path) as store:
            yield store
    except StoreError as error:
        raise CliError(str(error), hint=error.hint) from None
    except sqlite3.Error as error:
        trouble = trouble_of(error)
        reason, hint = (str(error), None) if trouble is None else trouble[:2]
        message = f"the memory {path} can't be used: {reason}"
        raise CliError(message, hint=hint or "check its folder and its rights") from None
    except OSError as error:
        raise unusable(path, "opened", error, hint=_ELSEWHERE) from None


def print_entries(entries: Iterable[Entry]) -> None:
    """Print entries for people: a heading each, and the text indented under it."""
    for entry in entries:
        click.echo(_heading(entry))
        for line in printable(entry.text).splitlines():
            click.echo(f"    {line}")


def plain(entries: Iterable[Entry]) -> list[dict[str, object]]:
    """Return entries as JSON objects."""
    return [
        {
            "id": entry.id,
            "project": entry.project,
            "session": entry.session,
            "position": entry.position,
            "role": entry.role,
            "created": _moment(entry),
            "source": entry.source,
            "text": entry.text,
        }
        for entry in entries
    ]


def _heading(entry: Entry) -> str:
    place = f"{entry.project}/{entry.session}"
    return printable(f"{entry.id}  {_moment(entry)}  {place}  {entry.role}")


def _moment(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.created, UTC).isoformat(timespec="seconds")
