"""The command ``sottovoce``: its verbs, found by name and imported when they are called.

A verb is a module with a click command named ``command``. What such a module imports at its top
is paid by ``--help`` and by completion, so it is ``click`` and little else; the rest is imported
by the function that needs it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from proxy.cli_files import hint_for
from proxy.cli_output import CliError, tell, tell_failure
from proxy.cli_streams import OutputError, attach, mute, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM: Final = "sottovoce"


class Verb(NamedTuple):
    """Where a verb lives, and its line in the list of verbs."""

    module: str
    summary: str


VERBS: Final = {
    "serve": Verb("proxy.cli_serve", "Run the proxy."),
    "demo": Verb("proxy.demo", "Show a hidden recall without any account."),
    "ask": Verb("proxy.cli_ask", "Ask a question through the proxy."),
    "chat": Verb("proxy.cli_chat", "Talk with a model through the proxy."),
    "recall": Verb("proxy.cli_recall", "Work with the memory, without a model."),
    "config": Verb("proxy.cli_config", "Show, check or begin a configuration."),
    "validate": Verb("proxy.validate", "Check a recorded stream against the lifecycle's rules."),
    "replay": Verb("proxy.replay", "Check fixtures, or serve one as a provider."),
    "completion": Verb("proxy.cli_completion", "Print a completion script for a shell."),
}


class Verbs(click.Group):
    """A group that imports a verb when it is called, not when it is listed."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the verbs' names in the order in which they are useful."""
        return list(VERBS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in VERBS:
            return None
        found = import_module(VERBS[cmd_name].module).command
        if not isinstance(found, click.Command):
            raise TypeError(f"{VERBS[cmd_name].module}.command is no click command")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb of a command line; a wrong one is told with the nearest."""
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            meant = "".join(
                f". Did you mean {near!r}?" for near in get_close_matches(args[0], VERBS, 1)
            )
            raise click.UsageError(f"No such command {args[0]!r}{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing one."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])


def _print_version(ctx: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from proxy.version import VERSION  # looks the distribution up: 20 ms

        click.echo(f"{PROGRAM} {VERSION}")
        ctx.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def command() -> None:
    """A streaming LLM proxy with a hidden memory.

    The model consults its memory in a whisper; the client hears only the answer.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0, 1 for expected failures, 2 for usage.

    No exception leaves it, so nobody sees a traceback, unless Python runs in its development mode
    (``python -X dev``), which is for us.
    """
    try:
        code = command.main(arguments, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except CliError as error:
        for message, hint in error.failures:
            tell_failure(message, hint)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the whole help, as it is
        return error.exit_code
    except click.UsageError as error:
        path = PROGRAM if error.ctx is None else error.ctx.command_path
        tell_failure(
            " ".join(error.format_message().split()).rstrip("."),
            f"`{path} --help` tells how it is used",
        )
        return error.exit_code
    except click.ClickException as error:
        tell_failure(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        tell("aborted")
        return 130
    except OutputError as error:
        mute(sys.stdout)
        if not error.unheard:
            tell_failure(str(error), error.hint)
        return 1
    except OSError as error:
        # A file that the verb did not expect to fail: no defect, and the system says which.
        named = "" if error.filename is None else f"{error.filename} can't be used: "
        tell_failure(f"{named}{error.strerror or error}", hint_for(error))
        return 1
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return _tell_defect(error)
    return code if isinstance(code, int) else 0


def main() -> None:
    """Run the process's own command line: the entry point of the script and of ``-m``."""
    attach()
    code = run()
    settle()
    sys.exit(code)


def _tell_defect(error: Exception) -> int:
    from telemetry.redact import redact

    tell_failure(
        redact(f"unexpected {type(error).__name__}: {error}"),
        "this is a defect of Sottovoce; `python -X dev -m proxy.cli …` shows where",
    )
    return 1


if __name__ == "__main__":
    main()
