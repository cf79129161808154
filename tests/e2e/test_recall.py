"""A hidden recall in a streamed turn: what the client sees, what the provider gets."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.builders import item_done, item_events, message, recall_call, terminal, usage, user
from tests.e2e import checks
from tests.e2e.client import CODEX_HEADERS, SDK_HEADERS, Frame
from tests.e2e.replies import says, streamed
from tests.upstreams import Gate

if TYPE_CHECKING:
    from tests.builders import Event
    from tests.e2e.client import Headers
    from tests.e2e.conftest import Lab, StartLab

HIDDEN = recall_call("call_hidden_1", {"query": "the canary's name"})
WORDS = ("call_hidden_1", HIDDEN["id"], "canary")


@pytest.mark.parametrize(
    ("headers", "figures"),
    [
        pytest.param(SDK_HEADERS, (250, 15, 265, 130), id="an SDK sees what was spent"),
        pytest.param(CODEX_HEADERS, (150, 5, 155, 90), id="Codex sees its context"),
    ],
)
def test_one_lifecycle(lab: Lab, headers: Headers, figures: tuple[int, ...]) -> None:
    """Case 1."""
    gate = Gate()
    answer = message("hi")
    first = says(HIDDEN, usage=usage(100, 10, cached=40), before={2: gate})
    second = says(answer, response_id="resp_B", usage=usage(150, 5, cached=90))
    asked = builders.request()
    with lab.post(asked, first, second, headers=headers) as exchange:
        created = exchange.next_event("response.created")
        assert len(lab.provider.requests) == 1
        gate.open()
        frames = list(exchange.frames())
    raw = b"".join(frame.raw for frame in frames)
    events = [created, *checks.written(frames)]
    checks.well_formed(events)
    checks.knows_nothing_of(builders.body([created]) + raw, *WORDS)
    final = events[-1]["response"]
    assert (final["id"], final["output"]) == ("resp_A", [answer])
    assert final["tools"] == created["response"]["tools"] == asked["tools"]
    assert checks.figures(final["usage"]) == figures
    lab.proxy.reaches(1, "recalls_total")
    lab.proxy.reaches(1, "turns_total", outcome="completed")
    _check_requests(lab, asked)


@pytest.mark.parametrize(
    "budget", ["rounds", "executions", "result_bytes", "extra_tokens", "seconds"]
)
def test_a_budget_of_nothing_allows_no_hidden_call(start_lab: StartLab, budget: str) -> None:
    lab = start_lab(config=f"[recall.budgets]\n{budget} = 0\n")
    with lab.post(builders.request(), says(message("hi"))) as exchange:
        list(exchange.frames())
    assert [tool["name"] for tool in lab.seen().json()["tools"]] == ["shell"]


def _check_requests(lab: Lab, asked: dict[str, object]) -> None:
    first, second = (request.json() for request in lab.provider.requests)
    assert [tool["name"] for tool in first["tools"]] == ["shell", "recall"]
    assert first["include"] == ["reasoning.encrypted_content"]
    ours = {"tools", "include"}
    assert {k: v for k, v in first.items() if k not in ours} == {
        k: v for k, v in asked.items() if k not in ours
    }
    assert second | {"input": first["input"]} == first
    *before, call, result = second["input"]
    assert before == first["input"]
    assert call == HIDDEN
    assert (result["type"], result["call_id"]) == ("function_call_output", "call_hidden_1")
    assert isinstance(result["output"], str)


def test_reasoning_goes_back_with_its_ciphertext(shared_lab: Lab) -> None:
    thought = builders.reasoning("Look it up.", encrypted="gAAAA-secret")
    with shared_lab.post(
        builders.request(), says(thought, HIDDEN), says(message("hi"), response_id="resp_B")
    ) as exchange:
        frames = list(exchange.frames())
    events = checks.written(frames)
    checks.well_formed(events)
    checks.knows_nothing_of(b"".join(frame.raw for frame in frames), *WORDS, "gAAAA-secret")
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]
    assert shared_lab.seen().json()["input"][-3:-1] == [thought, HIDDEN]


def test_ciphertext_that_the_client_asked_for_is_its_own(shared_lab: Lab) -> None:
    thought = builders.reasoning("Look it up.", encrypted="gAAAA-own")
    asked = builders.request(include=["reasoning.encrypted_content"])
    with shared_lab.post(asked, says(thought, message("hi"))) as exchange:
        events = checks.received(exchange)
    assert events[-1]["response"]["output"][0] == thought
    assert shared_lab.seen().json()["include"] == ["reasoning.encrypted_content"]


def test_text_before_a_hidden_call_stays_visible(shared_lab: Lab) -> None:
    with shared_lab.post(
        builders.request(),
        says(message("Let me think."), HIDDEN, usage=usage(100, 10)),
        says(message("Done."), response_id="resp_B", usage=usage(150, 5)),
    ) as exchange:
        events = checks.received(exchange)
    assert checks.answer_of(events) == "Let me think.Done."


def test_ids_that_collide_with_an_earlier_hop_are_replaced(shared_lab: Lab) -> None:
    same = message("Again.", id_="msg_same")
    with shared_lab.post(
        builders.request(), says(same, HIDDEN), says(same, response_id="resp_B")
    ) as exchange:
        events = checks.received(exchange)
    assert checks.answer_of(events) == "Again.Again."


def test_several_rounds(shared_lab: Lab) -> None:
    calls = [recall_call(f"call_hidden_{n}", {"query": f"canary {n}"}) for n in range(3)]
    replies = [says(call, response_id=f"resp_{n}") for n, call in enumerate(calls)]
    with shared_lab.post(
        builders.request(), *replies, says(message("hi"), response_id="resp_9")
    ) as exchange:
        frames = list(exchange.frames())
    events = checks.written(frames)
    checks.well_formed(events)
    checks.knows_nothing_of(b"".join(f.raw for f in frames), "call_hidden", "canary")
    assert events[-1]["response"]["id"] == "resp_0"
    for earlier, later in pairwise(request.body for request in shared_lab.provider.requests):
        assert checks.only_inserts(earlier, later)
    inputs = [request.json()["input"] for request in shared_lab.provider.requests]
    for before, after in pairwise(inputs):
        assert after[: len(before)] == before
    assert inputs[-1][1::2] == calls


def test_equal_calls_in_one_hop_are_each_answered(shared_lab: Lab) -> None:
    pair = [recall_call(f"call_hidden_{n}", {"query": "canary"}) for n in (1, 2)]
    with shared_lab.post(
        builders.request(), says(*pair), says(message("hi"), response_id="resp_B")
    ) as exchange:
        checks.received(exchange)
    tail = shared_lab.seen().json()["input"][-4:]
    assert tail[:2] == pair
    assert [item["call_id"] for item in tail[2:]] == ["call_hidden_1", "call_hidden_2"]


def test_wrong_arguments_are_answered_not_failed(shared_lab: Lab) -> None:
    with shared_lab.post(
        builders.request(),
        says(recall_call("call_hidden_1", '{"query": 7')),
        says(message("hi"), response_id="resp_B"),
    ) as exchange:
        checks.received(exchange)
    result = shared_lab.seen().json()["input"][-1]
    assert result["call_id"] == "call_hidden_1"
    assert len(result["output"]) < 2000


def _sparse(call: builders.Item, form: str) -> list[Event]:
    """Announce a call as Codex backends were seen to do."""
    done = {"type": "response.output_item.done", "output_index": 0}
    nameless = call | {"name": "", "call_id": ""}
    match form:
        case "name in the item's done":
            return builders.nameless(item_events(call, 0), arguments_only_in_done=True)
        case "deltas under no name":
            return builders.nameless(item_events(call, 0))
        case "done alone":
            return [item_done(call)]
        case "done alone, with an index":
            return [item_done(call, 0)]
        case "name in the terminal":
            events = builders.nameless(item_events(call, 0))[:-1]
            return [*events, done | {"item": nameless}]
    raise AssertionError(form)


FORMS = [
    "name in the item's done",
    "deltas under no name",
    "done alone",
    "done alone, with an index",
    "name in the terminal",
]


@pytest.mark.parametrize("kind", ["responses", "codex"])
def test_sparse_recalls_are_hidden(start_lab: StartLab, kind: str) -> None:
    """Case 6."""
    lab = start_lab(kind=kind)
    for form in FORMS:
        hop = [*builders.opening(), *_sparse(HIDDEN, form), terminal(output=[HIDDEN])]
        sparse = says(message("hi"), response_id="resp_B", sparse=True)
        with lab.post(builders.request(), streamed(hop), sparse) as exchange:
            frames = list(exchange.frames())
        events = checks.written(frames)
        checks.well_formed(events)
        checks.knows_nothing_of(b"".join(frame.raw for frame in frames), *WORDS)
        assert checks.answer_of(events) == "hi", form
        call, result = lab.seen().json()["input"][-2:]
        assert (call["name"], call["arguments"]) == ("recall", HIDDEN["arguments"]), form
        assert call["call_id"] == result["call_id"] == "call_hidden_1", form


@pytest.mark.parametrize("form", FORMS)
def test_sparse_client_calls_are_released_in_order(shared_lab: Lab, form: str) -> None:
    """Case 6, as a client tool."""
    call = builders.function_call("call_shell", "shell", {"command": "ls"})
    later = message("Running it.")
    hop = [
        *builders.opening(),
        *_sparse(call, form),
        *item_events(later, 1),
        terminal(output=[call, later]),
    ]
    with shared_lab.post(builders.request(), streamed(hop)) as exchange:
        events = checks.received(exchange)
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert [(item.get("name"), item.get("call_id")) for item in done] == [
        ("shell", "call_shell"),
        (None, None),
    ]
    assert done[0]["arguments"] == call["arguments"]
    assert events[-1]["response"]["output"][0]["name"] == "shell"


@pytest.mark.parametrize("tool", ["shell", "recall"])
def test_a_tool_of_the_client_named_recall_is_its_own(shared_lab: Lab, tool: str) -> None:
    """Case 15."""
    own = builders.CLIENT_TOOL | {"name": "recall"}
    asked = builders.request(
        user("hi"),
        builders.function_call("c0", "recall", {"command": "x"}),
        builders.output("c0", "what the client remembers"),
        tools=[builders.CLIENT_TOOL, own],
    )
    text = builders.compact(asked).encode()
    events = builders.stream(builders.function_call("c1", tool, {"command": "x"}), echo=asked)
    with shared_lab.post(text, streamed(events)) as exchange:
        assert exchange.body() == builders.body(events)
    assert shared_lab.seen().body == text


def test_what_names_no_tool_is_only_observed(shared_lab: Lab) -> None:
    asked = builders.request(tools=None, tool_choice=None)
    text = builders.compact(asked).encode()
    events = builders.stream(message("hi"), echo=asked)
    with shared_lab.post(text, streamed(events)) as exchange:
        assert exchange.body() == builders.body(events)
    assert shared_lab.seen().body == text


@pytest.mark.parametrize(
    "members",
    [
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": "none"},
        {"tool_choice": {"type": "function", "name": "shell"}},
        {"conversation": "conv_1"},
        {"background": True, "store": True},
        {"input": [user("hi"), {"type": "compaction_trigger"}]},
    ],
    ids=lambda members: next(iter(members)),
)
def test_where_the_tool_has_no_place_nothing_is_added(
    shared_lab: Lab, members: dict[str, object]
) -> None:
    text = builders.compact(builders.request() | members).encode()
    events = builders.stream(message("hi"))
    with shared_lab.post(text, streamed(events)) as exchange:
        assert exchange.body() == builders.body(events)
    assert shared_lab.seen().body == text


def test_the_header_switches_recall_off(shared_lab: Lab) -> None:
    text = builders.compact(builders.request()).encode()
    headers = (*SDK_HEADERS, ("x-sottovoce-recall", "off"))
    events = builders.stream(message("hi"))
    with shared_lab.post(text, streamed(events), headers=headers) as exchange:
        assert exchange.body() == builders.body(events)
    assert shared_lab.seen().body == text
    assert shared_lab.seen().header("x-sottovoce-recall") is None


def test_the_lite_layout_carries_the_tool_last(shared_lab: Lab) -> None:
    namespace = {"type": "namespace", "name": "functions", "tools": [builders.CLIENT_TOOL]}
    layout = {"type": "additional_tools", "role": "developer", "tools": [namespace]}
    asked = builders.request(layout, user("hi"), tools=None)
    hidden = HIDDEN | {"namespace": "functions"}
    with shared_lab.post(
        asked, says(hidden), says(message("hi"), response_id="resp_B"), headers=CODEX_HEADERS
    ) as exchange:
        frames = [Frame(frame.raw) for frame in exchange.frames()]
    checks.well_formed(checks.written(frames))
    checks.knows_nothing_of(b"".join(frame.raw for frame in frames), *WORDS)
    first, second = (request.json() for request in shared_lab.provider.requests)
    assert "tools" not in first
    assert [tool["name"] for tool in first["input"][0]["tools"]] == ["functions", "recall"]
    assert second["input"][:-2] == first["input"]
    assert second["input"][-2] == hidden
