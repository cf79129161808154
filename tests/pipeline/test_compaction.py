"""What goes into a summary, in which steps, and what stays as it is."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.compaction import (
    HALVINGS,
    PROMPT,
    Summing,
    cuts,
    divide,
    estimate,
    is_fixed,
    summary_message,
    with_trigger,
)
from pipeline.errors import RequestError
from pipeline.jsontext import dumps
from pipeline.request import Request, has_trigger
from tests import builders
from tests.builders import custom_call, function_call, message, output, reasoning, user
from tests.conftest import ROOT

if TYPE_CHECKING:
    from tests.builders import Item

DEVELOPER = {"type": "message", "role": "developer", "content": "Be careful."}
TOOLS = {"type": "additional_tools", "role": "developer", "tools": [builders.CLIENT_TOOL]}
IMAGE = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_image", "image_url": "data:image/png;base64," + "A" * 100_000}],
}


def call(number: int, size: int = 10) -> list[Item]:
    """Return a call and its output."""
    identity = f"call_{number}"
    return [function_call(identity, "shell", {"command": "ls"}), output(identity, "x" * size)]


@st.composite
def histories(draw: st.DrawFn) -> list[Item]:
    """Histories as agents write them: parallel calls, answers late and in any order."""
    items: list[Item] = []
    waiting: list[str] = []
    for number in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["user", "said", "thought", "call", "custom", "late", "fixed"]))
        size = draw(st.integers(0, 3000))
        if kind == "user":
            items.append(user(f"{number} " + "u" * size))
        elif kind == "said":
            items.append(message(f"{number} " + "m" * size))
        elif kind == "thought":
            items += [reasoning(f"thought {number}"), message(f"after {number}")]
        elif kind in ("call", "custom"):
            identity = f"call_{number}"
            made = custom_call(identity, "x", "i") if kind == "custom" else call(number)[0]
            items.append(made)
            waiting.append(identity)
        elif kind == "late" and waiting:
            identity = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            items.append(output(identity, "o" * size))
        elif kind == "fixed":
            items.append(DEVELOPER)
    items += [output(identity, "late") for identity in waiting]
    return items or [user("hello")]


def asked(*items: Item, **members: object) -> Request:
    body = builders.request(*items, **members)
    return Request(dumps(body), body)


def summing(*items: Item, tokens: int = 10_000) -> Summing:
    return Summing(asked(*items), items, prompt="Sum up.", tokens=tokens)


def sent(step: Summing) -> list[Item]:
    """Return the input of a step without what stands around its part of the history."""
    items = step.request().body["input"]
    assert items[-1] == {"type": "message", "role": "user", "content": "Sum up."}
    said = [item for item in items[:-1] if not is_fixed(item)]
    if step.steps:
        assert said[0] == summary_message(step.summary)
        return said[1:]
    return said


def identities(items: list[Item], kinds: str) -> list[str]:
    ends = kinds == "outputs"
    return [
        item["call_id"]
        for item in items
        if "call_id" in item and item["type"].endswith("_output") is ends
    ]


# ------------------------------------------------------------------------------ dividing


@given(histories())
def test_no_cut_parts_what_belongs_together(items: list[Item]) -> None:
    places = cuts(items)
    assert places[-1] == len(items)
    assert places == sorted(set(places))
    for place in places:
        front = items[:place]
        assert set(identities(front, "calls")) == set(identities(front, "outputs"))
        assert place == len(items) or front[-1]["type"] != "reasoning"


@pytest.mark.parametrize(
    ("items", "places"),
    [
        ([], []),
        ([user("a")], [1]),
        ([user("a"), message("b")], [1, 2]),
        ([*call(1), user("a")], [2, 3]),
        ([call(1)[0], call(2)[0], call(1)[1], call(2)[1], user("a")], [4, 5]),
        ([reasoning("r"), call(1)[0], call(1)[1]], [3]),
        ([call(1)[0], user("a")], [1, 2]),  # never answered: nothing waits
        ([output("call_0", "x"), user("a")], [1, 2]),
        (["odd", 7, user("a")], [1, 2, 3]),
    ],
)
def test_cuts(items: list[Any], places: list[int]) -> None:
    assert cuts(items) == places


@given(histories(), st.integers(0, 2000))
def test_what_stays(items: list[Item], tokens: int) -> None:
    division = divide(items, tokens)
    users = [item for item in items if item.get("role") == "user"]
    if division is None:
        return
    rest = items[division.length :]
    assert estimate(rest) <= tokens + len(rest)
    assert division.older
    assert not any(map(is_fixed, division.older))
    shown = [*division.fixed, *division.asked, *rest]
    assert [item for item in shown if is_fixed(item)] == [item for item in items if is_fixed(item)]
    if users:
        assert users[-1] in shown
    assert len(division.older) + len(shown) == len(items)
    assert set(identities(rest, "outputs")) == set(identities(rest, "calls"))


@pytest.mark.parametrize("items", [[user("hello")], [DEVELOPER, user("hello")], [DEVELOPER], []])
def test_nothing_is_older(items: list[Item]) -> None:
    assert divide(items, 0) is None


def test_the_users_message_stays_although_the_work_went_on() -> None:
    items = [DEVELOPER, user("Do it."), *call(1, 4000), *call(2, 4000), *call(3, 40)]
    division = divide(items, 100)
    assert division is not None
    assert division.older == items[2:6]
    assert division.fixed == [DEVELOPER]
    assert division.asked == [user("Do it.")]
    assert division.length == 6


# ------------------------------------------------------------------------------ estimating


def test_four_characters_are_a_token() -> None:
    assert estimate("x" * 400) == 100
    assert estimate("x") == 1
    assert estimate({"text": ["x" * 396]}) == 100
    assert 1_500 < estimate(IMAGE) < 1_600
    assert estimate(None) == estimate(1) == estimate(True) == 1  # noqa: FBT003 - a JSON value


def test_any_depth() -> None:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    assert estimate(value) == 1


# ------------------------------------------------------------------------------ the steps


def test_what_fits_is_one_step() -> None:
    items = [TOOLS, DEVELOPER, user("Do it."), *call(1), message("Done.")]
    request = asked(*items, text={"format": {"type": "json_object"}}, max_output_tokens=16)
    step = Summing(request, items, prompt=PROMPT, tokens=100_000)
    assert step.is_last
    body = step.request().body
    assert body["input"][:-1] == items
    assert body["input"][-1]["content"] == PROMPT
    assert body["tool_choice"] == "none"
    assert "text" not in body
    assert "max_output_tokens" not in body
    kept = ("model", "instructions", "tools", "stream")
    assert {name: body[name] for name in kept} == {name: request.body[name] for name in kept}
    assert json.loads(step.request().text) == body


@given(histories(), st.integers(300, 4000))
def test_every_item_is_told_once_and_in_order(items: list[Item], tokens: int) -> None:
    told: list[Item] = []
    whole = [item for item in items if not is_fixed(item)]
    if not whole:
        return
    step = summing(*items, tokens=tokens)
    while True:
        part = sent(step)
        assert part
        assert set(identities(part, "calls")) == set(identities(part, "outputs"))
        told += part
        if step.is_last:
            break
        step.take(f"summary {step.steps}")
    ids = [item["type"] for item in whole if item["type"] != "reasoning"]
    assert [item["type"] for item in told if item["type"] != "reasoning"] == ids
    assert identities(told, "calls") == identities(whole, "calls")


def test_a_step_has_the_summary_so_far() -> None:
    items = [user("a" * 8000), message("b" * 8000), user("c" * 8000)]
    step = summing(*items, tokens=2500)
    assert sent(step) == items[:1]
    step.take("so far")
    assert step.request().body["input"][0] == summary_message("so far")
    assert sent(step) == items[1:2]
    step.take("further")
    assert step.is_last
    assert step.summary == "further"


def test_halving() -> None:
    items = [user(f"{n:02}" + "x" * 4000) for n in range(32)]
    step = summing(*items, tokens=100_000)
    assert step.is_last
    sizes = [len(sent(step))]
    while step.halve():
        sizes.append(len(sent(step)))
    assert len(sizes) == HALVINGS + 1
    assert sizes[0] == 32
    assert all(1 <= less <= max(more // 2, 1) for more, less in pairwise(sizes))


def test_a_small_step_is_not_halved() -> None:
    assert not summing(user("hello")).halve()


@pytest.mark.parametrize(
    "item",
    [
        user("x" * 100_000),
        message("x" * 100_000),
        output("call_9", "x" * 100_000),
        function_call("call_9", "shell", {"command": "x" * 100_000}),
        custom_call("call_9", "patch", "x" * 100_000),
    ],
    ids=lambda item: item["type"],
)
def test_one_exchange_that_is_too_long_is_shortened(item: Item) -> None:
    step = summing(item, tokens=1000)
    (part,) = sent(step)
    assert estimate(part) < 1500
    assert part["type"] == item["type"]
    assert "characters left out" in json.dumps(part, ensure_ascii=False)
    if "arguments" in part:
        assert json.loads(part["arguments"]).keys() == {"shortened"}


def test_an_image_is_not_shortened() -> None:
    item = {
        "role": "user",
        "content": [*IMAGE["content"], {"type": "input_text", "text": "x" * 9000}],
    }
    (part,) = sent(summing(item, tokens=1000))
    assert part["content"][0] == IMAGE["content"][0]
    assert len(part["content"][1]["text"]) < 9000


@pytest.mark.parametrize("items", [[], [DEVELOPER], [TOOLS, DEVELOPER]])
def test_nothing_to_summarize(items: list[Item]) -> None:
    with pytest.raises(RequestError, match="no conversation to compact"):
        summing(*items)


# ------------------------------------------------------------------------------ requests


@pytest.mark.parametrize(
    ("given_input", "items"),
    [("hello", 1), ([user("hello"), message("hi")], 2), (None, 0)],
)
def test_the_path_of_its_own_says_the_same_as_a_trigger(given_input: Any, items: int) -> None:
    body = {"model": "m", "stream": True, "input": given_input}
    request = with_trigger(Request(dumps(body), body))
    assert has_trigger(request.body)
    assert len(request.body["input"]) == items + 1
    assert "stream" not in request.body
    assert json.loads(request.text) == request.body


def test_the_page_says_what_is_asked() -> None:
    page = (ROOT / "docs" / "compaction.md").read_text(encoding="utf-8")
    assert f"```text\n{PROMPT}\n```" in page
    assert str(HALVINGS) == "5"
    assert "five times" in page
