"""What is remembered across turns, and by whom: history, memory, tenants."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests import builders
from tests.builders import message, reasoning, recall_call, user
from tests.e2e import checks
from tests.e2e.client import CODEX_HEADERS, SDK_HEADERS
from tests.e2e.process import Proxy
from tests.e2e.replies import says, streamed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.builders import Item
    from tests.e2e.client import Headers
    from tests.e2e.conftest import Lab, StartLab
    from tests.upstreams import Received, Steps

HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
ANSWER = message("hi")
FACT = "The launch word of the harbour crane is marmalade."


def as_client(name: str, *extra: tuple[str, str]) -> Headers:
    """Return the headers of a client with a credential of its own."""
    return (("authorization", f"Bearer sk-{name}"), *extra)


def recalled_turn(
    lab: Lab, *first: Item, headers: Headers = SDK_HEADERS, **members: object
) -> dict[str, Any]:
    """Run a turn with a hidden call; return the request that came after it."""
    asked = builders.request() | members
    items = first or (HIDDEN,)
    with lab.post(
        asked, says(*items), says(ANSWER, response_id="resp_B"), headers=headers
    ) as exchange:
        output = checks.received(exchange)[-1]["response"]["output"]
    return asked | {"input": [*asked["input"], *output, user("And then?")]}


def sent_after(lab: Lab, asked: dict[str, Any], headers: Headers = SDK_HEADERS) -> dict[str, Any]:
    """Send a request that is answered at once; return what the provider got."""
    with lab.post(asked, says(message("Then this.")), headers=headers) as exchange:
        assert exchange.status == 200
        exchange.body()
    return lab.seen().json()


# ----------------------------------------------------------------------------------- history


@pytest.mark.parametrize(
    ("headers", "members"),
    [
        pytest.param(SDK_HEADERS, {}, id="as before"),
        pytest.param((*SDK_HEADERS, ("x-sottovoce-recall", "off")), {}, id="recall off"),
        pytest.param(SDK_HEADERS, {"tools": [], "tool_choice": "auto"}, id="no tools"),
        pytest.param(
            (*CODEX_HEADERS, ("x-codex-turn-metadata", '{"request_kind":"compaction"}')),
            {"tools": []},
            id="a compaction",
        ),
    ],
)
def test_the_hidden_pair_is_put_back(
    lab: Lab, headers: Headers, members: dict[str, object]
) -> None:
    """Case 13."""
    asked = recalled_turn(lab) | members
    before = lab.seen()
    after = sent_after(lab, asked, headers)
    kept = before.json()["input"]
    assert after["input"] == [*kept, ANSWER, user("And then?")]
    pair = b",".join(_text_of(before, item) for item in kept[-2:])
    assert pair in lab.seen().body


def _text_of(received: Received, item: Item) -> bytes:
    """Return an item's own text in a request, in whichever way it was written."""
    for separators in ((",", ":"), (", ", ": ")):
        text = json.dumps(item, ensure_ascii=False, separators=separators).encode()
        if text in received.body:
            return text
    raise AssertionError("the item's text is not plain JSON")


def test_a_restart_forgets_nothing(start_lab: StartLab, tmp_path: Path) -> None:
    lab = start_lab()
    asked = recalled_turn(lab)
    kept = lab.seen().json()["input"]
    lab.proxy.__exit__()
    again = Proxy(tmp_path / "again", upstream=f"{lab.provider.url}/v1")
    again.state = lab.proxy.state
    again._arguments = [*lab.proxy._arguments[:2], str(again.port), *lab.proxy._arguments[3:]]
    with again:
        after = sent_after(type(lab)(lab.provider, again), asked)
    assert after["input"] == [*kept, ANSWER, user("And then?")]


def test_withheld_ciphertext_goes_back_into_its_item(lab: Lab) -> None:
    thought = reasoning("Look it up.", encrypted="gAAAA-withheld")
    asked = recalled_turn(lab, thought, HIDDEN)
    assert "gAAAA-withheld" not in json.dumps(asked)
    kept = lab.seen().json()["input"]
    assert sent_after(lab, asked)["input"][: len(kept)] == kept


def test_an_edited_history_gets_nothing_back(lab: Lab) -> None:
    asked = recalled_turn(lab)
    asked["input"] = [user("Something else."), message("ho"), user("And then?")]
    assert sent_after(lab, asked)["input"] == asked["input"]


def test_previous_response_id_leads_to_the_last_hop(lab: Lab) -> None:
    recalled_turn(lab, store=True)
    asked = builders.request(user("And then?"), store=True, previous_response_id="resp_A")
    assert sent_after(lab, asked)["previous_response_id"] == "resp_B"


def test_a_foreign_previous_response_id_passes(lab: Lab) -> None:
    asked = builders.request(user("And then?"), store=True, previous_response_id="resp_elsewhere")
    assert sent_after(lab, asked)["previous_response_id"] == "resp_elsewhere"


# ------------------------------------------------------------------------------------ memory


def remember(lab: Lab, headers: Headers) -> None:
    """Have a conversation in which the fact is said."""
    asked = builders.request(user(FACT))
    with lab.post(asked, says(message("I'll keep that in mind.")), headers=headers) as exchange:
        checks.received(exchange)
    lab.proxy.reaches(2, "ingested_entries_total")


def found(lab: Lab, headers: Headers, query: str = "harbour crane launch word") -> str:
    """Let the model ask its memory; return what it was told."""
    call = recall_call("call_hidden_9", {"query": query})
    with lab.post(
        builders.request(user("What was it?")),
        says(call),
        says(message("So."), response_id="resp_B"),
        headers=headers,
    ) as exchange:
        frames = list(exchange.frames())
    checks.well_formed(checks.written(frames))
    checks.knows_nothing_of(b"".join(f.raw for f in frames), "call_hidden_9", "marmalade")
    result = lab.seen().json()["input"][-1]
    assert result["call_id"] == "call_hidden_9"
    assert isinstance(result["output"], str)
    return result["output"]


def test_one_conversation_is_found_by_another(lab: Lab) -> None:
    remember(lab, (*SDK_HEADERS, ("x-sottovoce-session", "monday")))
    later = (*SDK_HEADERS, ("x-sottovoce-session", "tuesday"))
    assert "marmalade" in found(lab, later)
    assert "marmalade" not in found(lab, later, "zebra stripes")


def test_what_was_added_by_hand_is_found_by_a_client(lab: Lab) -> None:
    lab.proxy.command("recall", "add", FACT)
    assert "marmalade" in found(lab, SDK_HEADERS)
    assert "marmalade" in lab.proxy.command("recall", "search", "harbour crane")


def test_what_is_not_to_be_stored_is_not(lab: Lab) -> None:
    headers = (*SDK_HEADERS, ("x-sottovoce-no-store", "1"))
    with lab.post(
        builders.request(user(FACT)), says(message("As you like.")), headers=headers
    ) as exchange:
        checks.received(exchange)
    lab.is_idle()
    assert "marmalade" not in found(lab, SDK_HEADERS)


def test_our_own_results_are_not_stored_again(lab: Lab) -> None:
    lab.proxy.command("recall", "add", FACT)
    asked = recalled_turn(lab, recall_call("call_hidden_1", {"query": "harbour crane"}))
    assert "marmalade" in lab.seen().body.decode()
    sent_after(lab, asked)
    lab.is_idle()
    listed = lab.proxy.command("recall", "list", "--json")
    assert listed.count("marmalade") == 1


def test_quota_and_usage_are_each_users_own(start_lab: StartLab) -> None:
    lab = start_lab(config='[server]\ntenancy = "credential"\n')
    alice, bob = as_client("alice"), as_client("bob")
    windows = [
        {"type": "codex.rate_limits", "rate_limits": {"primary": {"used_percent": used}}}
        for used in (10, 20)
    ]
    first = builders.stream(HIDDEN, usage=builders.usage(100, 10))
    second = builders.stream(ANSWER, response_id="resp_B", usage=builders.usage(150, 5))
    with lab.post(
        builders.request(),
        streamed([windows[0], *first]),
        streamed([windows[1], *second]),
        headers=alice,
    ) as exchange:
        checks.received(exchange)
    lab.is_idle()

    def shown(headers: Headers) -> dict[str, Any]:
        with lab.proxy.get("/usage", headers) as exchange:
            return exchange.json()

    mine = shown(alice)
    assert mine["usage"]["total"] == builders.usage(250, 15)
    (newest,) = mine["quota"].values()
    assert newest["rate_limits"]["primary"]["used_percent"] == 20
    assert shown(bob) == {
        "schema_version": 1,
        "turns": 0,
        "usage": {"total": None, "last": None},
        "quota": {},
    }


def test_two_users_behind_one_proxy(start_lab: StartLab) -> None:
    """Case 17: cookies, memory and history of one are nothing to the other."""
    lab = start_lab(config='[server]\ntenancy = "credential"\n', host="localhost")
    alice, bob = as_client("alice"), as_client("bob")
    cookie = [("set-cookie", "session=alice; Path=/")]

    def with_cookie(received: Received) -> Steps:
        return says(message("I'll keep that in mind."), headers=cookie)(received)

    with lab.post(builders.request(user(FACT)), with_cookie, headers=alice) as exchange:
        checks.received(exchange)
        assert "set-cookie" not in exchange.headers
    lab.proxy.reaches(2, "ingested_entries_total")
    asked = recalled_turn(lab, headers=alice)
    kept = lab.seen().json()["input"]

    assert "marmalade" not in found(lab, bob)
    assert lab.seen().header("cookie") is None
    assert lab.seen().header("authorization") == b"Bearer sk-bob"
    assert sent_after(lab, asked, bob)["input"] == asked["input"]
    assert sent_after(lab, asked, alice)["input"][: len(kept)] == kept
    assert "marmalade" in found(lab, alice)
    assert all(request.header("cookie") is None for request in lab.provider.requests)
