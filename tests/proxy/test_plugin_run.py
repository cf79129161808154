"""What plugins do in a turn: in order, in a guard, and never for longer than their limit."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pipeline.errors import FailureCategory
from pipeline.outcome import Ending, TurnOutcome
from pipeline.request import HiddenTool
from proxy import plugin_guard, plugin_run
from proxy.plugin_guard import PluginError, bounded
from proxy.plugin_run import (
    OUTPUT_CHARACTERS,
    PluginRun,
    clamped,
    input_characters,
    run_tool,
    stopped_reason,
    veto,
)
from proxy.plugins import Hook, PluginHook, Plugins, PluginTool
from proxy.services import Background
from recall.tool import RecallResult
from tests.playbook import turn
from tests.proxy.test_plugin_values import own_dict, own_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.turn import Turn

pytestmark = pytest.mark.anyio

FOLDER = Path("/project")


def tool_of(handler: Callable[..., Any]) -> PluginTool:
    return PluginTool("p", HiddenTool("mine", b"{}", early=False), handler)


def plugins_of(*hooks: tuple[Hook, Callable[..., Any]], tool: PluginTool | None = None) -> Plugins:
    handlers = {} if tool is None else {tool.tool.name: tool}
    numbered = tuple(PluginHook(f"p{n}", *each) for n, each in enumerate(hooks))
    return Plugins(FOLDER, ("p",), handlers, numbered, ())


class Lab:
    """A run of plugins and what became of it."""

    def __init__(self, plugins: Plugins) -> None:
        self.background = Background()
        self.failed: list[str] = []
        self.recalled: list[str] = []
        self.run = PluginRun(plugins, self.background, self.failed.append)
        self.runners = self.run.runners(["recall", *plugins.handlers], self._recall)

    async def _recall(self, arguments: str) -> RecallResult:
        self.recalled.append(arguments)
        return RecallResult(None, "found " * 100, ("private",))

    async def over(self) -> None:
        await self.background.finish(5)


def ended(ending: Ending, **members: Any) -> Turn:
    over = turn()
    over.outcome = TurnOutcome(ending, hops=2, **members)
    return over


ENDERS: list[type[BaseException]] = [
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    BaseException,
]
"""What isn't caught as an ``Exception``, and may end a task, a loop or a process."""


def raiser(raised: type[BaseException], *, plain: bool) -> Callable[..., Any]:
    def raises(*_: object) -> Never:
        raise raised

    async def raises_later(*_: object) -> Never:
        await asyncio.sleep(0)
        raise raised

    return raises if plain else raises_later


# ---------------------------------------------------------------------------------------- hooks


async def test_hooks_come_in_order_with_what_they_are_promised() -> None:
    seen: list[Any] = []

    async def listens(*told: object) -> None:
        await asyncio.sleep(0)
        seen.append(told)

    lab = Lab(plugins_of(*((hook, listens) for hook in Hook)))
    lab.run.start({"input": "hello"})
    await lab.runners["recall"]('{"query": "x"}')
    lab.run.end(ended(Ending.COMPLETED))
    await lab.over()
    context = {"work_dir": "/project"}
    call = {"name": "recall", "arguments": {"query": "x"}}
    assert seen == [
        ({"input_chars": 5}, context),
        (call, context),
        (call, ("found " * 100)[:300], context),
        ({"stopped_reason": "final", "turns_used": 2}, context),
    ]


async def test_the_first_blocker_wins_and_nothing_runs() -> None:
    asked: list[str] = []

    def hook(name: str, answer: object) -> tuple[Hook, Callable[..., object]]:
        def ask(*_: object) -> object:
            asked.append(name)
            return answer

        return Hook.BEFORE_TOOL_CALL, ask

    lab = Lab(
        plugins_of(
            hook("a", None),
            hook("b", {"allow": False, "reason": "not\nnow"}),
            hook("c", "never"),
        )
    )
    result = await lab.runners["recall"]("{}")
    assert result.result_text == "blocked_by_plugin: not now"
    assert asked == ["a", "b"]
    assert lab.recalled == []


async def test_no_hook_can_rewrite_a_call() -> None:
    seen = []

    def rewrites(call: dict[str, Any], context: dict[str, Any]) -> None:
        seen.append(dict(call["arguments"]))
        call["arguments"]["query"] = "other"
        context["work_dir"] = "elsewhere"

    before = (Hook.BEFORE_TOOL_CALL, rewrites)
    lab = Lab(plugins_of(before, before))
    await lab.runners["recall"]('{"query":"x"}')
    assert lab.recalled == ['{"query":"x"}']
    assert seen == [{"query": "x"}, {"query": "x"}]


@pytest.mark.parametrize("hook", list(Hook))
async def test_a_hook_that_throws_is_told_and_nothing_else(hook: Hook) -> None:
    def throws(*_: object) -> Never:
        raise RuntimeError("canary")

    heard: list[Any] = []
    lab = Lab(plugins_of((hook, throws), (Hook.RUN_END, lambda *told: heard.append(told))))
    lab.run.start({})
    result = await lab.runners["recall"]("not JSON")
    lab.run.end(ended(Ending.COMPLETED))
    await lab.over()
    assert result.coverage == ("private",)
    assert lab.failed == [hook]
    assert len(heard) == 1


async def test_a_hook_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_run, "HOOK_SECONDS", 0.01)

    async def hangs(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    lab = Lab(plugins_of((Hook.RUN_START, hangs), (Hook.BEFORE_TOOL_CALL, hangs)))
    lab.run.start({})
    await lab.runners["recall"]("{}")
    assert lab.failed == ["run_start", "before_tool_call"]
    await lab.over()
    assert len(lab.background) == 0


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
@pytest.mark.parametrize("raised", ENDERS)
@pytest.mark.parametrize("hook", list(Hook))
async def test_a_hook_that_would_end_more_than_itself_is_told_and_nothing_else(
    hook: Hook, raised: type[BaseException], *, plain: bool
) -> None:
    heard: list[Any] = []
    lab = Lab(
        plugins_of(
            (hook, raiser(raised, plain=plain)), (Hook.RUN_END, lambda *told: heard.append(told))
        )
    )
    with capture_logs() as logs:
        lab.run.start({})
        result = await lab.runners["recall"]("{}")
        lab.run.end(ended(Ending.COMPLETED))
        await lab.over()
    assert result.coverage == ("private",)
    assert lab.failed == [hook]
    assert len(heard) == 1
    assert [line["error"] for line in logs] == [raised.__name__]


async def test_an_answer_that_can_not_be_read_blocks_nothing() -> None:
    class Answer(dict[str, Any]):
        def get(self, *_: object) -> Never:
            raise KeyboardInterrupt

    lab = Lab(plugins_of((Hook.BEFORE_TOOL_CALL, lambda *_: Answer())))
    result = await lab.runners["recall"]("{}")
    assert result.coverage == ("private",)
    assert lab.failed == ["before_tool_call"]


async def test_plain_hooks_that_hang_take_no_thread_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin_run, "HOOK_SECONDS", 0.01)
    monkeypatch.setattr(plugin_guard, "_CANCEL_SECONDS", 0.01)
    let_go = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    hangs = (Hook.BEFORE_TOOL_CALL, lambda *_: let_go.wait())
    lab = Lab(plugins_of(hangs, hangs, hangs))
    try:
        await lab.runners["recall"]("{}")
        assert await asyncio.wait_for(asyncio.to_thread(len, "free"), 10) == 4
    finally:
        let_go.set()
    assert lab.failed == ["before_tool_call"] * 3


async def test_without_hooks_nothing_stands_between() -> None:
    lab = Lab(plugins_of())
    lab.run.start({"input": "x"})
    lab.run.end(ended(Ending.COMPLETED))
    assert lab.runners["recall"] == lab._recall
    assert len(lab.background) == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, None),
        (True, None),
        ({"allow": True, "reason": "fine"}, None),
        ({}, None),
        (5, None),
        (False, "no reason given"),
        ("", "no reason given"),
        ("no", "no"),
        ({"allow": False}, "no reason given"),
        ({"allow": False, "reason": 5}, "no reason given"),
        ({"allow": False, "reason": "x" * 900}, "x" * 300),
    ],
)
def test_what_blocks(answer: object, reason: str | None) -> None:
    assert veto(answer) == reason


# ---------------------------------------------------------------------------------------- tools


async def test_a_tool_gets_its_arguments_and_the_work_dir() -> None:
    async def handler(arguments: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
        return {"got": arguments, "in": context["work_dir"]}

    lab = Lab(plugins_of(tool=tool_of(handler)))
    result = await lab.runners["mine"]('{"a": 1}')
    assert result == RecallResult(None, '{"got":{"a":1},"in":"/project"}', ())
    assert await run_tool(tool_of(handler), "", FOLDER) == '{"got":{},"in":"/project"}'


async def test_a_plain_function_is_a_handler_too() -> None:
    assert await run_tool(tool_of(lambda *_: "plain"), "{}", FOLDER) == "plain"


@pytest.mark.parametrize("arguments", ["[]", "nothing", "5", '{"a":'])
async def test_arguments_must_be_an_object(arguments: str) -> None:
    text = await run_tool(tool_of(lambda *_: "ran"), arguments, FOLDER)
    assert text == "[mine was not run: the arguments must be one JSON object.]"


async def _raises(*_: object) -> Never:
    raise ValueError("canary")


async def _exits(*_: object) -> Never:
    raise SystemExit(1)


async def _cancels_itself(*_: object) -> Never:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (_raises, "ValueError"),
        (_exits, "PluginError"),
        (_cancels_itself, "PluginError"),
        (lambda *_: object(), "ValueError"),
    ],
)
async def test_whatever_a_tool_does_is_a_result(handler: Callable[..., Any], error: str) -> None:
    assert await run_tool(tool_of(handler), "{}", FOLDER) == f"[mine failed: {error}.]"


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
@pytest.mark.parametrize("raised", ENDERS)
async def test_a_tool_that_would_end_more_than_itself_has_failed(
    raised: type[BaseException], *, plain: bool
) -> None:
    with capture_logs() as logs:
        text = await run_tool(tool_of(raiser(raised, plain=plain)), "{}", FOLDER)
    assert text == "[mine failed: PluginError.]"
    assert [line["error"] for line in logs] == [raised.__name__]


async def test_a_plain_tool_can_raise_stop_iteration() -> None:
    text = await run_tool(tool_of(raiser(StopIteration, plain=True)), "{}", FOLDER)
    assert text == "[mine failed: PluginError.]"


async def test_a_tool_that_cancels_its_task_does_not_cancel_the_turn() -> None:
    async def cancels(*_: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    own = asyncio.current_task()
    assert own is not None
    assert await run_tool(tool_of(cancels), "{}", FOLDER) == "[mine failed: PluginError.]"
    assert own.cancelling() == 0


async def test_an_interrupt_while_a_tool_is_cancelled_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin_run, "TOOL_SECONDS", 0.01)

    async def interrupts(*_: object) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise KeyboardInterrupt

    text = await run_tool(tool_of(interrupts), "{}", FOLDER)
    assert text == "[mine failed: it did not finish in time.]"


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("value", [own_list(), own_dict(), _deep()], ids=["list", "dict", "deep"])
async def test_a_result_without_a_bottom_has_failed(value: object) -> None:
    text = await run_tool(tool_of(lambda *_: value), "{}", FOLDER)
    assert text == "[mine failed: ValueError.]"


async def test_an_error_without_a_proper_name_is_one_short_line() -> None:
    odd = type("\n" * 9 + "x" * 900, (Exception,), {})
    text = await run_tool(tool_of(raiser(odd, plain=False)), "{}", FOLDER)
    assert text == f"[mine failed: {'x' * 80}.]"


async def test_a_tool_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_run, "TOOL_SECONDS", 0.01)
    cancelled = []

    async def hangs(*_: object) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    text = await run_tool(tool_of(hangs), "{}", FOLDER)
    assert text == "[mine failed: it did not finish in time.]"
    assert cancelled == [1]


async def test_a_turn_that_is_cancelled_takes_its_tool_with_it() -> None:
    started, ended_ = asyncio.Event(), asyncio.Event()

    async def hangs(*_: object) -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended_.set()

    task = asyncio.ensure_future(run_tool(tool_of(hangs), "{}", FOLDER))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended_.is_set()


async def test_what_does_not_let_itself_be_cancelled_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin_guard, "_CANCEL_SECONDS", 0.01)
    over = asyncio.Event()
    tasks: list[asyncio.Task[Any] | None] = []
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def stubborn() -> None:
        tasks.append(asyncio.current_task())
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError("too late")

    with pytest.raises(TimeoutError):
        await bounded(stubborn(), seconds=0.01)
    (task,) = tasks
    assert task is not None
    assert not task.done()
    over.set()
    await asyncio.wait({task})
    del task
    tasks.clear()
    gc.collect()  # a task whose error nobody has seen tells of it when it goes
    assert reported == []


async def test_an_error_of_ours_passes_the_guard_as_it_is() -> None:
    async def own() -> Never:
        raise PluginError("own")

    with pytest.raises(PluginError, match="own"):
        await bounded(own(), seconds=1)


@given(st.none() | st.text() | st.integers() | st.lists(st.text()))
def test_results_are_texts_within_bounds(result: object) -> None:
    text = clamped(result)
    assert len(text) <= plugin_run.OUTPUT_CHARACTERS
    match result:
        case None:
            assert text == ""
        case str():
            assert text == result
        case _:
            assert json.loads(text) == result


def test_only_the_beginning_of_a_long_value_is_written() -> None:
    text = clamped(list(range(3_000_000)))
    assert text == json.dumps(list(range(10_000)), separators=(",", ":"))[:32_768] + "\n[shortened]"


def test_a_long_result_is_cut() -> None:
    text = clamped("x" * 100_000)
    assert text == "x" * OUTPUT_CHARACTERS + "\n[shortened]"


# -------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        (ended(Ending.COMPLETED), "final"),
        (ended(Ending.INCOMPLETE), "final"),
        (ended(Ending.COMPLETED, recovered_from=FailureCategory.DEPTH_EXHAUSTED), "budget"),
        (ended(Ending.COMPLETED, recovered_from=FailureCategory.FOLLOW_UP_FAILED), "final"),
        (ended(Ending.FAILED, category=FailureCategory.DEPTH_EXHAUSTED), "budget"),
        (ended(Ending.FAILED, limit="hidden_bytes"), "budget"),
        (ended(Ending.FAILED), "aborted"),
        (ended(Ending.PROVIDER_FAILED), "aborted"),
        (ended(Ending.CLIENT_DISCONNECT), "aborted"),
        (turn(), "aborted"),
    ],
)
def test_why_a_run_stopped(over: Turn, reason: str) -> None:
    assert stopped_reason(over) == reason


def test_the_last_round_is_the_end_of_a_budget() -> None:
    over = ended(Ending.COMPLETED)
    over.rounds.last = True
    assert stopped_reason(over) == "budget"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({}, 0),
        ({"input": "four"}, 4),
        ({"input": [{"role": "user", "content": "four"}, 5, {"content": [{"text": "abc"}, 1]}]}, 7),
        ({"input": [{"type": "function_call_output", "output": "abc"}, {"content": [{}]}]}, 3),
    ],
)
def test_how_long_an_input_is(body: dict[str, Any], count: int) -> None:
    assert input_characters(body) == count
