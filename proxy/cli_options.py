"""The options that every verb with a configuration shares, and how it is loaded for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import click

from proxy.cli_files import Name
from proxy.cli_output import CliError, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from proxy.config import Config
    from proxy.config_errors import Problem
    from proxy.config_toml import KeyPath

_EVERY_KEY: Final = "`sottovoce config init --print` explains every key"
F = TypeVar("F", bound="Callable[..., object]")


def config_option(function: F) -> F:
    """Add ``--config FILE``."""
    return click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=Name(),
        help="Configuration to read instead of the one that is found.",
    )(function)


def state_dir_option(function: F) -> F:
    """Add ``--state-dir DIR``."""
    return click.option(
        "--state-dir",
        metavar="DIR",
        type=Name(file_okay=False),
        help="Where the memory lives.",
    )(function)


def json_option(function: F) -> F:
    """Add ``--json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON with a schema version."
    )(function)


def load(config_file: Path | None, flags: Mapping[KeyPath, object] | None = None) -> Config:
    """Load the configuration for a verb that serves with it.

    Raises:
        CliError: It can't be used; each problem is one failure.
    """
    from proxy.config import load_config
    from proxy.config_errors import ConfigError

    try:
        config = load_config(config_file=config_file, flags=flags)
    except ConfigError as error:
        raise failure(error.problems) from None
    warn(config.warnings)
    return config


def read(config_file: Path | None, flags: Mapping[KeyPath, object] | None = None) -> Config:
    """Read the configuration for a verb that only needs some of its values.

    Raises:
        CliError: It can't be read; each problem is one failure.
    """
    from proxy.config import read_config
    from proxy.config_errors import ConfigError

    try:
        config = read_config(config_file=config_file, flags=flags)
    except ConfigError as error:
        raise failure(error.problems) from None
    warn(config.warnings)
    return config


def warn(problems: Sequence[Problem]) -> None:
    """Tell what does not stop a verb, a line each."""
    for problem in problems:
        tell(f"warning: {problem}; {problem.hint}" if problem.hint else f"warning: {problem}")


def failure(problems: Sequence[Problem]) -> CliError:
    """Return problems as one error of the command line."""
    (message, hint), *more = [(str(each), each.hint or _EVERY_KEY) for each in problems]
    return CliError(message, hint=hint, more=more)
