"""``sottovoce config``: what is in effect and where it comes from, and how to begin."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proxy.cli_files import unusable
from proxy.cli_options import config_option, failure, json_option, read, warn
from proxy.cli_output import CliError, print_json, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

    from proxy.config import Config
    from proxy.config_toml import KeyPath


@click.group("config")
def command() -> None:
    """Show, check or begin a configuration."""


@command.command()
@config_option
@json_option
def show(config_file: Path | None, as_json: bool) -> None:
    """Print every key that is in effect, and where its value comes from."""
    from proxy.config_errors import dotted
    from proxy.config_template import toml_value
    from telemetry.redact import redact

    config = read(config_file)
    rows = [(path, value, str(config.source(*path))) for path, value in values(config)]
    if as_json:
        print_json(
            {
                "file": config.file,
                "values": [
                    {"key": dotted(path), "value": _plain(value), "source": source}
                    for path, value, source in rows
                ],
            }
        )
        return
    for path, value, source in rows:
        click.echo(f"{dotted(path)} = {redact(toml_value(value))}  # {source}")


@command.command()
@config_option
def path(config_file: Path | None) -> None:
    """Print the file that is read, or would be if it were there."""
    from proxy.config import user_config_dir
    from proxy.config_sources import FILE_NAME, find_file

    found = config_file or find_file(Path.cwd(), user_config_dir())
    if found is not None and found.is_dir():
        raise CliError(f"{found} is a folder", hint="--config names a file in it")
    if found is None or not found.is_file():
        tell("there is no file yet: `sottovoce config init` writes one")
    click.echo(str(found or user_config_dir() / FILE_NAME))


@command.command()
@config_option
@json_option
def check(config_file: Path | None, as_json: bool) -> None:
    """Say whether `serve` could start with what is configured."""
    from dataclasses import asdict

    from proxy.config import load_config
    from proxy.config_errors import ConfigError, Problem
    from proxy.config_rules import exposure

    file, problems, warnings = config_file, list[Problem](), list[Problem]()
    try:
        config = load_config(config_file=config_file)
        file, problems, warnings = config.file, exposure(config), [*config.warnings]
    except ConfigError as error:
        problems += error.problems
    if as_json:
        print_json(
            {
                "ok": not problems,
                "file": file,
                "problems": list(map(asdict, problems)),
                "warnings": list(map(asdict, warnings)),
            }
        )
        raise click.exceptions.Exit(1 if problems else 0)
    warn(warnings)
    if problems:
        raise failure(problems)
    click.echo(f"ok: {file or 'no file, the defaults'}")


@command.command()
@config_option
@click.option("--print", "to_stdout", is_flag=True, help="Print it instead of writing a file.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def init(config_file: Path | None, to_stdout: bool, force: bool) -> None:
    """Write a template with every key, its default and what it means.

    It goes to the user's configuration directory unless --config names another place.
    """
    from proxy.config import user_config_dir
    from proxy.config_sources import FILE_NAME
    from proxy.config_template import template

    if to_stdout:
        click.echo(template(), nl=False)
        return
    target = config_file or user_config_dir() / FILE_NAME
    if target.is_dir():
        raise CliError(
            f"{target} is a folder", hint="--config names a file, as in DIR/sottovoce.toml"
        )
    if target.exists() and not target.is_file():
        hint = "--print writes to standard output; --config names a file"
        raise CliError(f"{target} is no plain file", hint=hint)
    if target.exists() and not force:
        raise CliError(f"{target} is there already", hint="--force replaces it")
    write_private(target, template())
    click.echo(str(target))


def values(config: Config) -> Iterator[tuple[KeyPath, object]]:
    """Yield every key of a configuration with its value, in the order of the template."""
    yield from _values(config, ())


def write_private(target: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all.

    Raises:
        CliError: It can't be written.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise unusable(target, "written", error) from None


def _values(model: BaseModel, path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    from pydantic import BaseModel as Model

    for name, value in model:
        if isinstance(value, Model):
            yield from _values(value, (*path, name))
        elif isinstance(value, tuple) and value and isinstance(value[0], Model):
            for index, element in enumerate(value):
                yield from _values(element, (*path, name, index))
        else:
            yield (*path, name), value


def _plain(value: object) -> object:
    from telemetry.redact import redact

    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    return redact(str(value))
