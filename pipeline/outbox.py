"""What a turn asks for, in its order, until whoever drives it takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.commands import Send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.commands import Command
    from pipeline.view import ClientView


class Outbox:
    """Collects the commands of a turn.

    Args:
        view: Where the bytes for the client come from.
    """

    __slots__ = ("_commands", "_view")

    def __init__(self, view: ClientView) -> None:
        self._commands: list[Command] = []
        self._view = view

    def add(self, command: Command) -> None:
        """Ask for something, behind all that was asked for before."""
        self._commands.append(command)

    def extend(self, commands: Iterable[Command]) -> None:
        """Ask for several things."""
        self._commands += commands

    def flush(self, *, last: bool = False) -> None:
        """Send what is ready for the client.

        Args:
            last: Whether its body ends with that.
        """
        data = self._view.take(all_of_it=last)
        if data or last:
            self._commands.append(Send(data, last=last))

    def take(self) -> list[Command]:
        """Return what was asked for, and forget it."""
        commands, self._commands = self._commands, []
        return commands
