"""Conversations that grow: what a request repeats of the one before is read once, and no worse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.jsontext import dumps
from tests import builders
from tests.builders import function_call, message, output, reasoning, recall_call, user
from tests.e2e import checks
from tests.e2e.client import SDK_HEADERS
from tests.e2e.replies import says

if TYPE_CHECKING:
    from collections.abc import Callable

    import openai

    from tests.builders import Item
    from tests.e2e.client import Headers
    from tests.e2e.conftest import Lab, StartLab

LONG = "a line of a file that some tool has read\n" * 200
SHELL = function_call("call_shell_1", "shell", {"command": "cat"})


def spelled_by_python(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def session(name: str) -> Headers:
    return [*SDK_HEADERS, ("x-sottovoce-session", name)]


class Conversation:
    """A client that keeps its history, and what the provider got of it.

    Args:
        lab: Where it talks.
        spell: How it writes requests.
        headers: What it sends with them.
    """

    def __init__(
        self, lab: Lab, spell: Callable[[dict[str, Any]], bytes], headers: Headers = SDK_HEADERS
    ) -> None:
        self.asked: list[bytes] = []
        self.got: list[bytes] = []
        self._lab = lab
        self._spell = spell
        self._headers = headers
        self._history: list[Item] = []

    def turn(self, *new: Item, says_: list[list[Item]], **members: object) -> None:
        """Ask something; the provider answers hop by hop."""
        self._history += new
        body = self._spell(builders.request(*self._history, **members))
        hops = [says(*items, response_id=f"resp_{id(items)}") for items in says_]
        before = len(self._lab.provider.requests)
        with self._lab.post(body, *hops, headers=self._headers) as exchange:
            final = checks.received(exchange)[-1]
        assert final["type"] == "response.completed"
        self.asked.append(body)
        self.got.append(self._lab.provider.requests[before].body)
        self._history += final["response"]["output"]


def talk(conversation: Conversation) -> None:
    """Have turns of every kind: hidden calls first, in the middle, beside the client's, none."""
    hidden = [recall_call(f"call_hidden_{number}", {"query": "canary"}) for number in range(4)]
    thought = reasoning("hm", encrypted="cipher")
    conversation.turn(user("hello"), user(LONG), says_=[[hidden[0]], [message("hi")]])
    conversation.turn(user("and"), says_=[[thought, hidden[1], SHELL]])
    conversation.turn(
        output("call_shell_1", LONG), says_=[[message("a"), hidden[2]], [message("b")]]
    )
    conversation.turn(user("more"), user("\ud83d"), says_=[[message("c")]], metadata={"turn": "2"})
    conversation.turn(user("then"), says_=[[hidden[3]], [message("d")]], metadata={"turn": "2"})
    conversation.turn(user("end"), says_=[[message("e")]], metadata={"turn": "3"})


@pytest.mark.parametrize("spell", [dumps, spelled_by_python], ids=["compact", "spaced"])
def test_the_provider_gets_what_it_gets_of_each_request_alone(
    lab: Lab, spell: Callable[[dict[str, Any]], bytes]
) -> None:
    conversation = Conversation(lab, spell)
    talk(conversation)
    sizes = [len(asked) for asked in conversation.asked]
    repeated = sum(sizes[:-1])
    known = lab.proxy.metric("request_bytes_total", read="known")
    assert repeated * 0.9 < known < repeated
    assert known + lab.proxy.metric("request_bytes_total", read="parsed") == sum(sizes)
    for number, asked in enumerate(conversation.asked):
        before = len(lab.provider.requests)
        reply = says(message("again"), response_id=f"resp_again_{number}")
        with lab.post(asked, reply, headers=session(f"alone {number}")) as exchange:
            checks.received(exchange)
        assert lab.provider.requests[before].body == conversation.got[number]
    assert lab.proxy.metric("request_bytes_total", read="known") == known


def test_of_what_is_not_to_be_stored_nothing_is_kept(lab: Lab) -> None:
    talk(Conversation(lab, dumps, [*SDK_HEADERS, ("x-sottovoce-no-store", "1")]))
    assert lab.proxy.metric("request_bytes_total", read="known") == 0
    assert lab.proxy.metric("request_bytes_total", read="parsed") > 0


def test_nobody_is_spared_what_another_one_sent(start_lab: StartLab) -> None:
    lab = start_lab(config='[server]\ntenancy = "credential"\n')
    asked = builders.request(user(LONG))
    for credential in ("one", "two"):
        headers = [("authorization", f"Bearer {credential}")]
        with lab.post(asked, says(message("hi")), headers=headers) as exchange:
            checks.received(exchange)
        assert lab.proxy.metric("request_bytes_total", read="known") == 0
    with lab.post(asked, says(message("hi")), headers=headers) as exchange:
        checks.received(exchange)
    assert lab.proxy.metric("request_bytes_total", read="known") > len(LONG)


def test_a_next_request_that_is_broken_is_refused_like_any(shared_lab: Lab) -> None:
    whole = dumps(builders.request(user(LONG)))
    with shared_lab.post(whole, says(message("hi"))) as exchange:
        checks.received(exchange)
    for broken in (whole[:-1], whole[: whole.index(b'],"tools"')], whole + b"}"):
        with shared_lab.post(broken) as exchange:
            assert exchange.status == 400
            assert "could not be parsed as JSON" in exchange.json()["error"]["message"]
    with shared_lab.post(whole, says(message("hi"))) as exchange:
        checks.received(exchange)


def test_requests_of_the_sdk_repeat_what_is_known(shared_lab: Lab, client: openai.OpenAI) -> None:
    tools: Any = [builders.CLIENT_TOOL]
    history: Any = [user(LONG)]
    before = shared_lab.proxy.metric("request_bytes_total", read="known")
    for number in range(3):
        shared_lab.provider.script([says(message("hi"), response_id=f"r_{number}")])
        with client.responses.create(model="m", input=history, tools=tools, stream=True) as events:
            final: Any = list(events)[-1]
        history += [item.to_dict() for item in final.response.output]
        history.append(user(f"and {number}"))
    known = shared_lab.proxy.metric("request_bytes_total", read="known") - before
    assert known > 2 * len(LONG)
