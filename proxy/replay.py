"""``sottovoce replay``: check fixtures against our turns, or serve one as a provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from proxy.cli_files import Name, unusable
from proxy.cli_output import CliError, printable, tell

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.fixture import Fixture

_MOST_LINES: Final = 40
"""Lines of a difference that are shown."""
_WIDTH: Final = 200
"""Characters of such a line."""


@click.command("replay")
@click.argument("files", nargs=-1, type=Name(), metavar="FILE…")
@click.option("--update", is_flag=True, help="Write what our turns do as the new golden answer.")
@click.option(
    "--as-provider",
    "served",
    metavar="FILE",
    type=Name(),
    help="Serve this fixture's answers as a provider does.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where to serve; 0 is any.")
@click.option("--realtime", is_flag=True, help="Serve with the pauses that the fixture records.")
def command(
    files: tuple[Path, ...], *, update: bool, served: Path | None, port: int, realtime: bool
) -> None:
    """Check fixtures, or serve one as a provider."""
    if (served is None) is not bool(files):
        raise click.UsageError("name fixtures to check, or one to serve with --as-provider")
    if served is not None:
        if update:
            raise click.UsageError("--update goes with files to check")
        _serve(_read(served), port, realtime=realtime)
        return
    if port or realtime:
        raise click.UsageError("--port and --realtime go with --as-provider")
    _check(files, update=update)


def _check(files: tuple[Path, ...], *, update: bool) -> None:
    failed = 0
    for path in files:
        difference = _differs(path, update=update)
        if not difference:
            click.echo(f"ok       {path}")
        elif update:
            click.echo(f"updated  {path}")
        else:
            failed += 1
            click.echo(f"differs  {path}")
            for line in _focused(difference[:_MOST_LINES]):
                click.echo(f"  {printable(line)}")
            if len(difference) > _MOST_LINES:
                click.echo(f"  … {len(difference) - _MOST_LINES} more lines")
    if failed:
        raise CliError(
            f"{failed} of {len(files)} fixtures differ from what our turns do",
            hint="if the new behaviour is right, run it again with --update",
        )


def _differs(path: Path, *, update: bool) -> list[str]:
    """Return the lines in which a fixture differs from its replay; write the replay if asked."""
    from difflib import unified_diff

    from proxy.fixture import FixtureError, dump_fixture
    from proxy.playback import play

    fixture = _read(path)
    try:
        played = play(fixture)
    except FixtureError as error:
        raise CliError(f"{path}: {error}", hint="`in` records stand in the order of time") from None
    golden, now = (dump_fixture(_timeless(one)).decode() for one in (fixture, played))
    difference = list(
        unified_diff(golden.splitlines(), now.splitlines(), "fixture", "replay", n=1, lineterm="")
    )
    if difference and update:
        try:
            path.write_bytes(dump_fixture(played))
        except OSError as error:
            raise unusable(path, "written", error) from None
    return difference


def _focused(difference: list[str]) -> list[str]:
    """Cut long lines of a difference to where they begin to differ."""
    from itertools import zip_longest

    shown: list[str] = []
    rest = difference
    while rest:
        signs = [line[:1] for line in rest]
        count = next((n for n, sign in enumerate(signs) if sign != "-"), len(rest))
        added = next((n for n, sign in enumerate(signs[count:]) if sign != "+"), len(rest) - count)
        old, new = rest[:count], rest[count : count + added]
        for before, after in zip_longest(old, new):
            shown += _pair(before, after)
        if not (old or new):
            shown.append(rest[0][:_WIDTH])
        rest = rest[max(1, count + added) :]
    return shown


def _pair(before: str | None, after: str | None) -> list[str]:
    if before is None or after is None:
        return [line[:_WIDTH] for line in (before, after) if line is not None]
    pairs = enumerate(zip(before[1:], after[1:], strict=False))
    same = next((n for n, (old, new) in pairs if old != new), 0)
    start = max(1, same - _WIDTH // 4) if same > _WIDTH // 2 else 1
    dots = "…" if start > 1 else ""
    return [line[0] + dots + line[start : start + _WIDTH] for line in (before, after)]


def _timeless(fixture: Fixture) -> Fixture:
    """Take the times away from the golden answer: when is the machine's affair."""
    from dataclasses import replace

    records = [replace(one, t=None) if one.side == "out" else one for one in fixture.records]
    return replace(fixture, records=tuple(records))


def _read(path: Path) -> Fixture:
    from proxy.fixture import FixtureError, read_fixture

    try:
        return read_fixture(path)
    except FixtureError as error:
        raise CliError(str(error), hint="fixtures/ has files that show the form") from None
    except OSError as error:
        raise unusable(path, "read", error) from None


def _serve(fixture: Fixture, port: int, *, realtime: bool) -> None:
    import asyncio

    import uvicorn

    from proxy.cli_serve import listen
    from proxy.fixture import FixtureError
    from proxy.fixture_provider import FixtureProvider

    try:
        provider = FixtureProvider(fixture, pause=asyncio.sleep if realtime else None)
    except FixtureError as error:
        raise CliError(str(error), hint="fixtures/ has files that show the form") from None
    with listen("127.0.0.1", port) as listener:
        tell(f"a provider of kind responses: http://127.0.0.1:{listener.getsockname()[1]}/v1")
        tell("end it with Ctrl-C")
        config = uvicorn.Config(provider, lifespan="off", log_level="warning", ws="none")
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
