"""Runs what plugins bring: their tools, and their hooks around the hidden calls of a turn.

Everything of a plugin runs in a guard (`proxy.plugin_guard`), what it answers is read there too;
what it raises is logged, and counted where it is a hook.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from pipeline import jsontext
from pipeline.errors import FailureCategory
from pipeline.outcome import Ending
from pipeline.request import input_items
from proxy.plugin_guard import bounded, invoke, kind_of
from proxy.plugin_values import error_name, text_of, written
from proxy.plugins import Hook
from recall.tool import RecallResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pipeline.turn import Turn
    from proxy.driver import ToolRunner
    from proxy.plugins import PluginHook, Plugins, PluginTool
    from proxy.services import Background

TOOL_SECONDS: Final = 30.0
"""How long a tool may take."""
HOOK_SECONDS: Final = 5.0
"""How long a hook may take."""
OUTPUT_CHARACTERS: Final = 32_768
"""What is left of a tool's result."""
SUMMARY_CHARACTERS: Final = 300
"""What ``after_tool_call`` is told of a result."""
REASON_CHARACTERS: Final = 300
"""What the model is told of a veto's reason."""
_SHORTENED: Final = "\n[shortened]"

log = structlog.get_logger("sottovoce.plugins")


class PluginRun:
    """The plugins' part in one turn.

    Hooks that only listen run one after the other, behind the turn's back; only
    ``before_tool_call`` is waited for, because it has something to say.

    Args:
        plugins: What was loaded.
        background: Where hooks run that outlive the turn.
        hook_failed: Counts a hook that raised, by its name.
    """

    def __init__(
        self, plugins: Plugins, background: Background, hook_failed: Callable[[str], None]
    ) -> None:
        self._plugins = plugins
        self._background = background
        self._hook_failed = hook_failed
        self._last: asyncio.Future[None] | None = None

    def start(self, body: dict[str, Any]) -> None:
        """Tell ``run_start`` how long the input is."""
        if self._of(Hook.RUN_START):  # counting takes half as long as parsing did
            self._tell(Hook.RUN_START, {"input_chars": input_characters(body)})

    def end(self, turn: Turn) -> None:
        """Tell ``run_end`` how the turn ended; also when its client left."""
        if turn.outcome is not None and self._of(Hook.RUN_END):
            told = {"stopped_reason": stopped_reason(turn), "turns_used": turn.outcome.hops}
            self._tell(Hook.RUN_END, told)

    def runners(self, names: Iterable[str], recall: ToolRunner) -> dict[str, ToolRunner]:
        """Return what executes the hidden tools of a turn, hooks included.

        Args:
            names: Of the tools that were declared.
            recall: Executes every tool that is no plugin's.
        """
        return {name: self._runner(name, recall) for name in names}

    def _runner(self, name: str, recall: ToolRunner) -> ToolRunner:
        tool = self._plugins.handlers.get(name)

        async def own(arguments: str) -> RecallResult:
            text = "" if tool is None else await run_tool(tool, arguments, self._plugins.work_dir)
            return RecallResult(None, text, ())

        run = recall if tool is None else own
        if not self._plugins.hooks:
            return run

        async def hooked(arguments: str) -> RecallResult:
            reason = await self._vetoed(name, arguments)
            if reason is not None:
                return RecallResult(None, f"blocked_by_plugin: {reason}", ())
            result = await run(arguments)
            summary = result.result_text[:SUMMARY_CHARACTERS]
            self._tell(Hook.AFTER_TOOL_CALL, name, arguments, summary)
            return result

        return hooked

    # --- Hooks ----------------------------------------------------------------------------

    def _of(self, wanted: Hook) -> list[PluginHook]:
        return [each for each in self._plugins.hooks if each.hook is wanted]

    async def _vetoed(self, name: str, arguments: str) -> str | None:
        """Return the reason of the first plugin that blocks a call; None lets it run."""
        hooks = self._of(Hook.BEFORE_TOOL_CALL)
        if hooks and self._last is not None:
            await asyncio.wait({self._last})
        for hook in hooks:
            reason = await self._call(hook, lambda: (_call_of(name, arguments),), veto)
            if reason is not None:
                return reason
        return None

    def _tell(self, wanted: Hook, *told: Any) -> None:  # a hook's own payload
        """Call the hooks that listen, behind all that were called before."""
        hooks = self._of(wanted)
        if not hooks:
            return

        def payload() -> tuple[Any, ...]:
            if wanted is Hook.AFTER_TOOL_CALL:
                name, arguments, summary = told
                return _call_of(name, arguments), summary
            return tuple(dict(each) for each in told)

        async def call(before: asyncio.Future[None] | None) -> None:
            if before is not None:
                await asyncio.wait({before})
            for hook in hooks:
                await self._call(hook, payload, _nothing)

        self._last = asyncio.ensure_future(call(self._last))
        self._background.spawn(self._last)

    async def _call(
        self,
        hook: PluginHook,
        payload: Callable[[], tuple[Any, ...]],
        read: Callable[[object], str | None],
    ) -> str | None:
        """Call a hook in its guard; what it raises is logged, and means nothing."""

        async def answered() -> str | None:
            context = {"work_dir": str(self._plugins.work_dir)}
            return read(await invoke(hook.call, *payload(), context))

        try:
            return await bounded(answered(), seconds=HOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._hook_failed(hook.hook)
            log.warning(
                "plugin hook failed",
                plugin=hook.plugin,
                hook=hook.hook.value,
                error=kind_of(error),
            )
            return None


def _nothing(_: object) -> None:
    """Read the answer of a hook that only listens."""


def veto(answer: object) -> str | None:
    """Read the answer of ``before_tool_call``: the reason of a veto, None where the call may run.

    ``False``, a text, and ``{"allow": False, "reason": …}`` block; anything else allows.
    """
    reason: object = None
    if isinstance(answer, dict):
        if answer.get("allow", True):
            return None
        reason = answer.get("reason")
    elif isinstance(answer, str):
        reason = answer
    elif answer is not False:
        return None
    words = " ".join((text_of(reason) or "").split())
    return words[:REASON_CHARACTERS] or "no reason given"


async def run_tool(tool: PluginTool, arguments: str, work_dir: Path) -> str:
    """Execute a plugin's tool; whatever comes of it is a text for the model.

    Args:
        tool: The tool.
        arguments: As the model wrote them.
        work_dir: Told to the tool.
    """
    name = tool.tool.name
    try:
        given = jsontext.loads((arguments or "{}").encode("utf-8", "surrogatepass"))
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return f"[{name} was not run: the arguments must be one JSON object.]"
    context = {"work_dir": str(work_dir)}

    async def answered() -> str:
        return clamped(await invoke(tool.handler, given, context))

    try:
        return await bounded(answered(), seconds=TOOL_SECONDS)
    except TimeoutError:
        log.warning("plugin tool timed out", plugin=tool.plugin, tool=name)
        return f"[{name} failed: it did not finish in time.]"
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        log.warning("plugin tool failed", plugin=tool.plugin, tool=name, error=kind_of(error))
        return f"[{name} failed: {error_name(error)}.]"


def clamped(result: object) -> str:
    """Return a tool's result as the model gets it.

    Raises:
        ValueError: It is no text and no JSON value, or one that is nested too deeply.
    """
    if result is None:
        return ""
    text = text_of(result)
    if text is None:
        text = _as_json(result)
    return text if len(text) <= OUTPUT_CHARACTERS else text[:OUTPUT_CHARACTERS] + _SHORTENED


def _as_json(value: object) -> str:
    try:
        return written(value, OUTPUT_CHARACTERS)
    except TypeError as error:
        raise ValueError("a result is a text or a JSON value") from error


def stopped_reason(turn: Turn) -> str:
    """Say why a turn that is over stopped: ``final``, ``budget`` or ``aborted``."""
    outcome = turn.outcome
    exhausted = outcome is not None and (
        outcome.limit is not None
        or FailureCategory.DEPTH_EXHAUSTED in (outcome.recovered_from, outcome.category)
    )
    if outcome is None or outcome.ending is Ending.CLIENT_DISCONNECT:
        return "aborted"
    if turn.rounds.last or exhausted:
        return "budget"
    done = outcome.ending in (Ending.COMPLETED, Ending.INCOMPLETE)
    return "final" if done else "aborted"


def input_characters(body: dict[str, Any]) -> int:
    """Count the characters of a request's input: of messages, and of outputs of calls."""
    return sum(
        _characters(item.get("content")) + _characters(item.get("output"))
        for item in input_items(body)
        if isinstance(item, dict)
    )


def _characters(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return sum(len(text) for text in texts if isinstance(text, str))


def _call_of(name: str, arguments: str) -> dict[str, Any]:
    """Return a call as hooks see it: each gets a copy of its own, so none can rewrite it."""
    try:
        given = jsontext.loads((arguments or "{}").encode("utf-8", "surrogatepass"))
    except ValueError:
        given = {}
    return {"name": name, "arguments": given if isinstance(given, dict) else {}}
