"""``sottovoce validate``: what is wrong with a recorded stream, and who would choke on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from proxy.cli_files import unusable
from proxy.cli_options import json_option
from proxy.cli_output import CliError, print_json, printable
from proxy.cli_streams import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.lifecycle import Dialect
    from proxy.validate_stream import Finding, Recording, Report

MOST_BYTES: Final = 64 * 1024 * 1024
_FETCH_SECONDS: Final = 60.0
_FORM: Final = (
    "a recording is a body of server-sent events, JSON lines of events with a type, or a fixture"
)


@click.command("validate")
@click.argument("source", metavar="FILE|URL|-")
@click.option(
    "--dialect",
    type=click.Choice(["public", "codex"]),
    default="public",
    show_default=True,
    help="Whose habits count as native.",
)
@click.option("--strict", is_flag=True, help="Reject what a proxy would repair or tolerate.")
@json_option
def command(*, source: str, dialect: str, strict: bool, as_json: bool) -> None:
    """Check a recorded stream against the lifecycle's rules.

    It may be a body of server-sent events, its events as JSON lines, or a fixture. Each deviation
    is told with its rule and the event where it was first seen, then which clients would survive
    the stream as it is. The exit code is 1 if a rule rejects it.
    """
    from pipeline.errors import SSEStreamLimitError
    from pipeline.lifecycle import Dialect as Habits
    from proxy.config import Config
    from proxy.validate_stream import inspect

    config = Config()
    limits, habits = config.limits.as_limits(), Habits(dialect)
    data = read_source(source)
    try:
        reports = [
            report
            for recorded in recordings(data, source)
            for report in inspect(recorded, habits, limits, config.recall.budgets.as_budgets())
        ]
    except SSEStreamLimitError as error:
        hint = "the limits are those of a turn: the proxy would end this stream too"
        raise CliError(f"{source}: {error.message}", hint=hint) from None
    if as_json:
        mode = "strict" if strict else "tolerant"
        told = [as_object(report, habits, strict=strict) for report in reports]
        print_json({"source": source, "dialect": dialect, "mode": mode, "responses": told})
    else:
        for number, report in enumerate(reports, 1):
            print_report(report, number, habits, strict=strict)
    if any(report.rejected(habits, strict=strict) for report in reports):
        raise click.exceptions.Exit(1)


def read_source(source: str) -> bytes:
    """Return what a file, a URL or stdin holds.

    Raises:
        CliError: It can't be read, or is too large.
    """
    if not source:
        raise click.UsageError("the source is empty; is a variable in it not set?")
    if source.startswith(("http://", "https://")):
        data = _fetch(source)
    elif source == "-":
        data = read_bytes(MOST_BYTES)
    else:
        try:
            with Path(source).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise unusable(source, "read", error) from None
    if len(data) > MOST_BYTES:
        hint = "cut it: a recording of one stream is much smaller"
        raise CliError(f"{source} is larger than {MOST_BYTES} bytes", hint=hint)
    if not data.strip():
        raise CliError(f"{source} is empty", hint=_FORM)
    return data


def recordings(data: bytes, source: str) -> Iterator[Recording]:
    """Yield the recorded bodies of a source: one, or one for each hop of a fixture.

    Raises:
        CliError: It is no recording.
    """
    from proxy.config import Config
    from proxy.validate_stream import joined, recording

    limits = Config().limits.as_limits()
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n#").startswith(b"{"):
        yield recording(data, limits)
        return
    lines = data.splitlines()
    first = _object(next(line for line in lines if line.strip() and not line.startswith(b"#")))
    if first is not None and "fixture" in first:
        for pieces in _fixture_bodies(lines, source):
            yield joined(pieces, limits)
        return
    yield joined(_event_lines(lines, source), limits)


def as_object(report: Report, dialect: Dialect, *, strict: bool) -> dict[str, object]:
    """Return a report as a JSON object."""
    from proxy.validate_stream import CLIENTS

    return {
        "events": report.events,
        "terminal": report.terminal,
        "ok": not report.rejected(dialect, strict=strict),
        "verbatim": report.verbatim,
        "survives": {client: report.survives(client) for client in CLIENTS},
        "findings": [
            {
                "rule": found.rule,
                "severity": found.severity(dialect, strict=strict),
                "event": found.event,
                "line": found.line,
                "type": found.kind,
                "count": found.count,
                "message": found.message,
                "breaks": sorted(found.breaks),
            }
            for found in report.findings.values()
        ],
    }


def print_report(report: Report, number: int, dialect: Dialect, *, strict: bool) -> None:
    """Print a report for people."""
    from proxy.validate_stream import CLIENTS

    end = report.terminal or "no terminal"
    click.echo(f"response {number}: {report.events} events, {end}")
    for found in report.findings.values():
        click.echo(f"  {_told(found, dialect, strict=strict)}")
    if not report.findings:
        click.echo("  nothing deviates")
    for client, name in CLIENTS.items():
        culprits = [found.rule for found in report.findings.values() if client in found.breaks]
        reason = f": {', '.join(dict.fromkeys(culprits))}" if culprits else ""
        click.echo(f"  {name} {'survives' if report.survives(client) else 'breaks'}{reason}")
    passes = "byte for byte" if report.verbatim else "with these repairs"
    if report.rejected(dialect, strict=strict):
        passes = "not at all"
    click.echo(f"  through the proxy: {passes}")


def _told(found: Finding, dialect: Dialect, *, strict: bool) -> str:
    severity = found.severity(dialect, strict=strict)
    times = f" (x{found.count})" if found.count > 1 else ""
    where = f"event {found.event}, line {found.line}"
    return printable(f"{where}: {severity} {found.rule}: {found.message}{times}")


def _event_lines(lines: list[bytes], source: str) -> Iterator[tuple[int, bytes]]:
    from pipeline.sse import encode_event

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        event = _object(line)
        if event is None or not isinstance(event.get("type"), str):
            raise CliError(
                f"{source}:{number}: no event",
                hint=_FORM,
            )
        yield number, encode_event(event["type"], line)


def _fixture_bodies(lines: list[bytes], source: str) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the body of each hop: what came in from the upstream between a head and the next."""
    from proxy.fixture import FixtureError, parse_fixture

    try:
        fixture = parse_fixture(lines)
    except FixtureError as error:
        hint = "fixtures/ has files that show the form"
        raise CliError(f"{source}:{error}", hint=hint) from None
    numbers = [n for n, line in enumerate(lines, 1) if line.strip() and not line.startswith(b"#")]
    body: list[tuple[int, bytes]] = []
    for number, record in zip(numbers[1:], fixture.records, strict=True):
        if record.side == "in" and record.kind == "head" and body:
            yield body
            body = []
        elif record.side == "in" and record.kind in ("event", "bytes"):
            body.append((number, record.data()))
    if body:
        yield body


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _fetch(url: str) -> bytes:
    import httpx

    from telemetry.redact import redact

    data = bytearray()
    try:
        with httpx.stream("GET", url, timeout=_FETCH_SECONDS, follow_redirects=True) as response:
            if not response.is_success:
                hint = "check the address; it must answer without a credential"
                raise CliError(f"{redact(url)} answered {response.status_code}", hint=hint)
            for piece in response.iter_bytes():
                data += piece
                if len(data) > MOST_BYTES:
                    break
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        hint = "check the address, or save the stream and name the file"
        raise CliError(redact(f"{url} can't be fetched: {error}"), hint=hint) from None
    return bytes(data)
