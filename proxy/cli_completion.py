"""``sottovoce completion SHELL``: the script that teaches a shell our verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    For bash, `eval "$(sottovoce completion bash)"` in ~/.bashrc; for zsh the same with zsh in
    ~/.zshrc; for fish, `sottovoce completion fish > ~/.config/fish/completions/sottovoce.fish`.
    """
    root = ctx.find_root()
    completion_class = get_completion_class(shell)
    if completion_class is None:  # click knows all three
        raise click.UsageError(f"no completion for {shell}")
    name = root.info_name or "sottovoce"
    variable = f"_{name}_COMPLETE".replace("-", "_").upper()
    completion = completion_class(root.command, {}, name, variable)
    # Not ``source()``: for bash that runs the bash of this machine to look at its version.
    click.echo(completion.source_template % completion.source_vars())
