"""``sottovoce ask``: one question through the proxy."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, TypeVar

import click

from proxy.cli_options import config_option, json_option, load, state_dir_option
from proxy.cli_output import CliError, print_json, printable, tell
from proxy.cli_streams import read_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxy.config import Config
    from proxy.talk import Answer

F = TypeVar("F", bound="Callable[..., object]")


def project_option(function: F) -> F:
    """Add ``--project NAME``."""
    return click.option(
        "--project", metavar="NAME", help="Project whose memory comes first (default)."
    )(function)


def model_option(function: F) -> F:
    """Add ``--model NAME``."""
    return click.option(
        "--model",
        metavar="NAME",
        envvar="SOTTOVOCE_MODEL",
        help="Model to ask; else SOTTOVOCE_MODEL, else the model of the first upstream.",
    )(function)


@click.command("ask")
@click.argument("question")
@model_option
@project_option
@config_option
@state_dir_option
@click.option("--session", metavar="ID", help="Conversation that the question belongs to.")
@json_option
def command(
    *,
    question: str,
    model: str | None,
    project: str | None,
    session: str | None,
    as_json: bool,
    config_file: Path | None,
    state_dir: Path | None,
) -> None:
    """Ask a question through the proxy.

    The answer is printed as it comes, tools that the model consults are told on stderr. The proxy
    that runs is used, or one is run for the question. QUESTION may be - for standard input.
    """
    config = load(config_file, state_flags(state_dir))
    model = chosen_model(config, model)
    question = read_text() if question == "-" else question
    if not question.strip():
        raise click.UsageError("QUESTION is empty")
    from proxy.local import proxy
    from proxy.talk import Talk

    session = session or f"ask-{secrets.token_hex(8)}"
    with proxy(config) as place:
        talk = Talk(
            place,
            model=model,
            session=session,
            project=project,
            on_text=(lambda _: None) if as_json else show_text,
            on_activity=show_activity,
        )
        answer = talk.ask(question)
    if as_json:
        print_json(_as_data(answer, session))
        return
    click.echo()
    if answer.status != "completed":
        tell(f"the answer is incomplete: {answer.reason or 'no reason was given'}")


def _as_data(answer: Answer, session: str) -> dict[str, Any]:
    """Return what ``--json`` says of an answer."""
    return {
        "answer": answer.text,
        "status": answer.status,
        "reason": answer.reason,
        "model": answer.model,
        "usage": answer.usage,
        "turn": answer.turn,
        "session": session,
        "tools": answer.tools,
    }


def state_flags(state_dir: Path | None) -> dict[tuple[str | int, ...], object]:
    """Return ``--state-dir`` as the configuration takes it."""
    return {("server", "state_dir"): None if state_dir is None else str(state_dir)}


def chosen_model(config: Config, given: str | None) -> str:
    """Return the model to ask.

    Raises:
        CliError: Nobody names one.
    """
    model = given or config.upstream_for(codex=False).model
    if not model:
        raise CliError(
            "no model is named",
            hint="--model NAME, SOTTOVOCE_MODEL, or model of [[upstream]] in sottovoce.toml",
        )
    return model


def show_text(text: str) -> None:
    """Print a piece of an answer at once."""
    click.echo(printable(text), nl=False)


def show_activity(line: str) -> None:
    """Tell that a tool is at work."""
    tell(click.style(f"  · {printable(line)}", dim=True))
