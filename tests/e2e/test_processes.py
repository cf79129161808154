"""Two processes on one state directory: what one has kept, the other one knows."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.builders import function_call, message, output, recall_call, user
from tests.e2e import checks
from tests.e2e.client import Exchange
from tests.e2e.conftest import Lab
from tests.e2e.process import Proxy, eventually, free_port
from tests.e2e.replies import says
from tests.upstreams import ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
SHELL = function_call("call_shell", "shell", {"command": "ls"})


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Lab]]:
    """Two proxies with ports of their own and one state directory, before one provider."""
    folder = tmp_path_factory.mktemp("both")
    with ScriptedProvider() as provider:
        url = f"{provider.url}/v1"
        with (
            Proxy(folder / "one", upstream=url) as one,
            Proxy(folder / "two", upstream=url, beside=one) as two,
        ):
            yield Lab(provider, one), Lab(provider, two)


def test_a_hidden_answer_of_one_is_restored_by_the_other(both: tuple[Lab, Lab]) -> None:
    one, two = both
    asked = builders.request()
    with one.post(asked, says(HIDDEN, SHELL)) as exchange:
        assert checks.received(exchange)[-1]["response"]["output"] == [SHELL]
    after = asked | {"input": [*asked["input"], SHELL, output("call_shell", "a b")]}
    with two.post(after, says(message("hi"), response_id="resp_B")) as exchange:
        checks.received(exchange)
    sent = [(item["type"], item.get("call_id")) for item in two.seen().json()["input"][1:]]
    assert sent == [
        ("function_call", "call_hidden_1"),
        ("function_call", "call_shell"),
        ("function_call_output", "call_hidden_1"),
        ("function_call_output", "call_shell"),
    ]


def test_a_response_of_one_is_continued_through_the_other(both: tuple[Lab, Lab]) -> None:
    one, two = both
    first, last = (
        says(HIDDEN, response_id="resp_1"),
        says(message("hi"), response_id="resp_2"),
    )
    with one.post(builders.request(store=True), first, last) as exchange:
        assert checks.received(exchange)[-1]["response"]["id"] == "resp_1"
    more = builders.request(user("And then?"), store=True, previous_response_id="resp_1")
    with two.post(more, says(message("Then this."), response_id="resp_3")) as exchange:
        checks.received(exchange)
    assert two.seen().json()["previous_response_id"] == "resp_2"


def test_what_one_was_told_the_other_finds(both: tuple[Lab, Lab]) -> None:
    one, two = both
    one.proxy.command("recall", "add", "The crane's launch word is marmalade.")
    asks = recall_call("call_hidden_2", {"query": "launch word of the crane"})
    with two.post(builders.request(), says(asks), says(message("hi"))) as exchange:
        checks.received(exchange)
    assert "marmalade" in two.seen().json()["input"][-1]["output"]


def test_one_port_leads_to_both(tmp_path: Path) -> None:
    with ExitStack() as stack:
        provider = stack.enter_context(ScriptedProvider())
        port, url = free_port(), f"{provider.url}/v1"
        one = stack.enter_context(Proxy(tmp_path / "one", upstream=url, shared_port=port))
        two = Proxy(tmp_path / "two", upstream=url, shared_port=port, beside=one)
        stack.enter_context(two)
        # Its port answers already: the first one does.
        eventually(lambda: "listens on" in two.said, "the second one listens")
        # The system deals connections out by chance; that all go to one is as good as excluded.
        for _ in range(64):
            provider.script([says(message("hi"))])
            with Exchange(port, builders.request()) as exchange:
                checks.received(exchange)
            if len({request.header("via") for request in provider.requests}) == 2:
                return
        pytest.fail("all connections went to one process")
