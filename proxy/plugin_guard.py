"""The guard that code of a plugin runs in, once it is loaded.

It has a time limit, and whatever it raises is an error that ends nothing but itself: neither the
process, nor the event loop, nor the task that waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

from proxy.plugin_values import error_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_CANCEL_SECONDS: Final = 1.0


class PluginError(Exception):
    """Code of a plugin tried what would have ended more than itself.

    Attributes:
        kind: The name of what it raised.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def kind_of(error: Exception) -> str:
    """Return the name of what a plugin raised, for the log."""
    return error.kind if isinstance(error, PluginError) else error_name(error)


async def invoke(call: Callable[..., object], *arguments: object) -> object:
    """Call a function of a plugin: a plain one on a thread, since it may block."""
    if inspect.iscoroutinefunction(call):
        result: object = call(*arguments)
    else:
        result = await _threaded(call, *arguments)
    return await result if inspect.isawaitable(result) else result


def _threaded(call: Callable[..., object], *arguments: object) -> asyncio.Future[object]:
    """Run a function on a thread of its own.

    Those that the process shares are few, and it waits for them at its end: a function that never
    returns would take one of them away for good.
    """
    outcome: Future[object] = Future()
    outcome.set_running_or_notify_cancel()  # from here on, nobody's cancellation settles it
    context = copy_context()

    def run() -> None:
        try:
            result = context.run(call, *arguments)
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
            outcome.set_exception(_contained(error))
        else:
            outcome.set_result(result)

    Thread(target=run, name="sottovoce-plugin", daemon=True).start()
    return asyncio.wrap_future(outcome)


def _contained(error: BaseException) -> Exception:
    """Return an error that a future can hold, and a task raise, without further consequences."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return PluginError(error_name(error))


async def bounded(awaitable: Awaitable[T], *, seconds: float) -> T:
    """Wait for something of a plugin, but not for ever.

    It has a task of its own: one that cancels itself, or does not let itself be cancelled, has no
    hold over ours. What is raised here as ``CancelledError`` is therefore always our own
    cancellation, never the plugin's.

    Raises:
        TimeoutError: It did not end in time; it was cancelled.
        PluginError: It cancelled itself, or raised what is no ``Exception``.
    """
    task = asyncio.ensure_future(_kept(awaitable))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
            task.add_done_callback(_seen)
    if not done:
        raise TimeoutError
    if task.cancelled():
        raise PluginError(asyncio.CancelledError.__name__)
    error = task.exception()
    if error is None:
        return task.result()
    raise _contained(error)


async def _kept(awaitable: Awaitable[T]) -> T:
    """Keep from the loop what a task would raise through it, and so end it."""
    try:
        return await awaitable
    except (KeyboardInterrupt, SystemExit) as error:
        raise PluginError(error_name(error)) from None


def _seen(task: asyncio.Task[T]) -> None:
    """Look at what came of a task that nobody waits for, so that nothing complains of it."""
    if not task.cancelled():
        task.exception()
