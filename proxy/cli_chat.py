"""``sottovoce chat``: a conversation through the proxy."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Final

import click

from proxy.cli_ask import (
    chosen_model,
    model_option,
    project_option,
    show_activity,
    show_text,
    state_flags,
)
from proxy.cli_options import config_option, load, state_dir_option
from proxy.cli_output import CliError, tell, tell_failure
from proxy.cli_streams import read_line

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.talk import Talk

_LEAVE: Final = ("/exit", "/quit")


@click.command("chat")
@model_option
@project_option
@config_option
@state_dir_option
def command(
    *,
    model: str | None,
    project: str | None,
    config_file: Path | None,
    state_dir: Path | None,
) -> None:
    """Talk with a model through the proxy.

    One line is one message. Ctrl-C stops an answer, /new begins another conversation, and
    /exit, Ctrl-D or Ctrl-C at the prompt leaves.
    """
    config = load(config_file, state_flags(state_dir))
    model = chosen_model(config, model)
    from proxy.local import proxy
    from proxy.talk import Talk

    with proxy(config) as place:

        def begin() -> Talk:
            return Talk(
                place,
                model=model,
                session=f"chat-{secrets.token_hex(8)}",
                project=project,
                on_text=show_text,
                on_activity=show_activity,
            )

        where = "the running proxy" if place.running else "a proxy of its own"
        tell(f"{model} through {where}; /new begins again, /exit leaves")
        talk = begin()
        while (line := _line()) is not None and line not in _LEAVE:
            if line == "/new":
                talk = begin()
                tell("a new conversation")
            elif line:
                _answer(talk, line)


def _answer(talk: Talk, line: str) -> None:
    """Print an answer; one that fails or is stopped does not end the conversation."""
    try:
        answer = talk.ask(line)
    except KeyboardInterrupt:
        click.echo()
        tell("stopped")
        return
    except CliError as error:
        click.echo()
        for message, hint in error.failures:
            tell_failure(message, hint)
        return
    click.echo()
    if answer.status != "completed":
        tell(f"the answer is incomplete: {answer.reason or 'no reason was given'}")


def _line() -> str | None:
    """Return the user's next line, None at the end."""
    try:
        if not sys.stdin.isatty():
            line = read_line()
            return line.strip() if line else None
        import readline  # noqa: F401 - gives the prompt its editing

        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        click.echo()
        return None
