"""An event loop whose time is not the clock's: it goes on when there is nothing else to do."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Never blocks: the time that it should wait has passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:  # the base class's
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits, and nothing will ever happen"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 seconds."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in no time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


def milliseconds() -> int:
    """Return the running loop's time."""
    return round(asyncio.get_running_loop().time() * 1000)
