"""Who may take a turn: its conversation, its credential, the circuit; and healed requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipeline.errors import UpstreamError
from pipeline.taxonomy import ErrorKind
from proxy.homes import Homes, response_key
from tests import builders, clock
from tests.routing import (
    BEARER,
    GOOD,
    HEALTHY,
    NAMES,
    OPENING,
    REQUEST,
    SSE,
    Call,
    Lab,
    answer,
    failing,
    request,
    streamed,
    whole,
)

# --- who may take a turn ------------------------------------------------------------------------


def test_every_hop_stays_where_the_first_one_was_answered() -> None:
    async def play() -> None:
        lab = Lab(
            {"one": [answer(401)], "two": [HEALTHY, answer(503), UpstreamError("x"), answer(429)]}
        )
        route = lab.route()
        await route.open(REQUEST, SSE)
        found = await route.open(REQUEST, SSE)
        assert found.status == 429
        assert lab.asked == [("one", 0), ("two", 0), ("two", 0), ("two", 1250), ("two", 3750)]

    clock.run(play())


def test_a_later_hop_is_not_looked_into() -> None:
    async def play() -> None:
        lab = Lab({"one": [HEALTHY, streamed(failing("server_is_overloaded"))], "two": [HEALTHY]})
        route = lab.route()
        await route.open(REQUEST, SSE)
        assert await whole(await route.open(REQUEST, SSE)) == b"".join(
            failing("server_is_overloaded")
        )
        assert lab.names == ["one", "one"]

    clock.run(play())


def test_a_conversation_stays_with_its_upstream() -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(401), HEALTHY], "two": [HEALTHY]})
        await lab.post(session="a")
        await lab.post(session="a")
        await lab.post(session="b")
        assert lab.names == ["one", "two", "two", "one"]

    clock.run(play())


def test_a_conversation_moves_when_its_upstream_fails() -> None:
    async def play() -> None:
        lab = Lab(
            {"one": [answer(401), HEALTHY], "two": [HEALTHY, answer(401)], "three": [HEALTHY]}
        )
        for _ in range(3):
            await lab.post()
        assert lab.names == ["one", "two", "two", "one", "one"]

    clock.run(play())


def test_a_response_is_continued_where_it_was_made() -> None:
    async def play() -> None:
        lab = Lab({"one": [HEALTHY], "two": [answer(401)]})
        lab.router.homes.put(response_key("local", "resp_1"), "two")
        body = builders.request(previous_response_id="resp_1")
        await lab.post(body, session="s2")
        assert lab.names == ["two"]  # nobody else knows it, so nobody else is asked
        await lab.post(builders.request(conversation="conv_1"), session="s3")
        assert lab.names == ["two", "one"]

    clock.run(play())


def test_homes_are_bounded() -> None:
    homes = Homes(2)
    for name in ("a", "b", "a", "c"):
        homes.put(name, name)
    assert len(homes) == 2
    assert homes.find(["b"]) is None
    assert homes.find(["b", "a"]) == "a"


CODEX = {"one": {"kind": "codex"}, "two": {"kind": "responses"}, "three": {"kind": "codex"}}


@pytest.mark.parametrize(
    ("codex", "asked"), [(True, ["one", "three"]), (False, ["two"])], ids=["codex", "others"]
)
def test_a_request_never_leaves_its_sort_of_upstreams(asked: list[str], *, codex: bool) -> None:
    async def play() -> None:
        lab = Lab({name: [answer(401)] for name in NAMES}, CODEX)
        await lab.post(codex=codex)
        assert lab.names == asked

    clock.run(play())


@pytest.mark.parametrize("codex", [True, False])
def test_where_there_is_one_sort_it_takes_everything(*, codex: bool) -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(401)], "two": [HEALTHY]})
        await lab.post(codex=codex)
        assert lab.names == ["one", "two"]

    clock.run(play())


# --- credentials --------------------------------------------------------------------------------


def own(call: Call) -> dict[bytes, bytes]:
    return dict(call.headers)


KEYLESS: dict[str, Any] = {"api_key": ""}


def test_the_clients_credential_goes_only_where_it_was_presented() -> None:
    async def play() -> None:
        lab = Lab({name: [answer(401)] for name in NAMES}, {"one": KEYLESS, "two": KEYLESS})
        await lab.post()
        assert lab.names == ["one", "three"]
        assert own(lab.calls[0]) == {b"authorization": b"Bearer sk-client", b"cookie": b"a=1"}
        assert own(lab.calls[1]) == {b"authorization": b"Bearer sk-three"}

    clock.run(play())


def test_a_configured_key_takes_its_place() -> None:
    async def play() -> None:
        lab = Lab({"one": [HEALTHY]})
        await lab.post()
        assert own(lab.calls[0]) == {b"authorization": b"Bearer sk-one"}

    clock.run(play())


def test_an_upstream_without_a_key_is_skipped_unless_it_needs_none() -> None:
    async def play() -> None:
        lab = Lab(
            {name: [answer(401)] for name in NAMES},
            {"two": KEYLESS, "three": {**KEYLESS, "kind": "ollama"}},
        )
        await lab.post()
        assert lab.names == ["one", "three"]
        assert own(lab.calls[1]) == {}

    clock.run(play())


OFFICIAL = {"kind": "openai_compat", "base_url": "https://api.openai.com/v1", **KEYLESS}
CLAUDE = {"kind": "anthropic", **KEYLESS}


@pytest.mark.parametrize(
    ("config", "key"), [(OFFICIAL, b"sk-1"), (CLAUDE, b"sk-ant-1")], ids=["openai", "anthropic"]
)
def test_a_missing_key_fails_before_any_request(config: dict[str, Any], key: bytes) -> None:
    async def play() -> None:
        lab = Lab({"one": [HEALTHY], "two": [HEALTHY]}, {"one": config})
        route = lab.route(headers=[])
        assert await whole(await route.open(REQUEST, SSE)) == b"".join(GOOD)
        assert (lab.names, route.attempts) == (["two"], 1)
        assert route.failure is not None
        assert route.failure.kind is ErrorKind.AUTH
        await lab.post(session="other", headers=[(b"authorization", b"Bearer " + key)])
        assert lab.names == ["two", "one"]
        alone = Lab({"one": [HEALTHY]}, {"one": config})
        with pytest.raises(UpstreamError, match="needs an API key") as caught:
            await alone.post(headers=[])
        assert caught.value.status == 401

    clock.run(play())


def test_a_missing_key_is_fatal_nowhere_else() -> None:
    async def play() -> None:
        lab = Lab({"one": [HEALTHY]}, {"one": KEYLESS})
        await lab.post(headers=[])
        assert lab.names == ["one"]

    clock.run(play())


def test_an_upstream_that_can_not_be_built() -> None:
    async def play() -> None:
        lab = Lab({"one": [HEALTHY], "two": [HEALTHY]}, {"one": {"ca_file": "/nowhere/ca.pem"}})
        del lab.router.upstreams.group(codex=False)[0].__dict__["transport"]
        await lab.post()
        assert lab.names == ["two"]
        assert lab.metric("failovers_total", upstream="one", kind="unknown") == 1

    clock.run(play())


# --- healing ------------------------------------------------------------------------------------

USER = builders.user("hi")
SEALED = builders.reasoning("", encrypted="gAAA")
REFUSED = {"error": {"message": "The encrypted content gAAA could not be verified.", "code": None}}
CODED = {"error": {"message": "no", "code": "invalid_encrypted_content"}}
ORPHANED = {
    "error": {
        "message": f"Item '{SEALED['id']}' of type 'reasoning' was provided without its required "
        "following item."
    }
}


@pytest.mark.parametrize("body", [REFUSED, CODED, ORPHANED], ids=["words", "code", "orphan"])
def test_a_refused_history_is_healed_once(body: object) -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(400, body), HEALTHY], "two": [HEALTHY]})
        route = lab.route()
        asked = request(builders.request(USER, SEALED))
        assert await whole(await route.open(asked, SSE)) == b"".join(GOOD)
        assert lab.asked == [("one", 0), ("one", 0)]
        assert [call.body["input"] for call in lab.calls] == [[USER, SEALED], [USER]]
        assert route.failure is None
        # The next hop repeats the history, with what came since.
        later = builders.reasoning("", encrypted="gBBB") | {"id": "rs_later"}
        await route.open(request(builders.request(USER, SEALED, later)), SSE)
        assert lab.calls[-1].body["input"] == [USER, later]

    clock.run(play())


@pytest.mark.parametrize("body", [REFUSED, ORPHANED], ids=["ciphertext", "orphan"])
def test_what_healing_does_not_help_fails_over(body: object) -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(400, body)], "two": [HEALTHY]})
        await lab.post(builders.request(USER, SEALED))
        assert lab.asked == [("one", 0), ("one", 0), ("two", 0)]
        assert lab.calls[-1].body["input"] == [USER]
        nothing = Lab({"one": [answer(400, body)], "two": [HEALTHY]})
        await nothing.post(builders.request(USER))
        assert nothing.names == ["one", "two"]

    clock.run(play())


def test_healing_inside_a_200() -> None:
    async def play() -> None:
        lab = Lab(
            {"one": [streamed(failing("invalid_encrypted_content")), HEALTHY], "two": [HEALTHY]}
        )
        await lab.post(builders.request(USER, SEALED))
        assert lab.names == ["one", "one"]
        assert lab.calls[-1].body["input"] == [USER]

    clock.run(play())


def test_healing_is_no_attempt_in_place() -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(503), answer(400, CODED), answer(503), HEALTHY]})
        await lab.post(builders.request(USER, SEALED))
        assert lab.asked == [("one", 0), ("one", 1250), ("one", 1250), ("one", 3750)]

    clock.run(play())


# --- the circuit --------------------------------------------------------------------------------


def test_after_five_failures_it_is_skipped_for_a_while() -> None:
    async def play() -> None:
        lab = Lab({"one": [*[answer(500)] * 6, HEALTHY], "two": [HEALTHY]})
        await lab.post(session="a")
        assert lab.router.circuit_states() == {"one": "closed", "two": "closed"}
        await lab.post(session="b")
        assert lab.names == [*["one"] * 3, "two", *["one"] * 3, "two"]
        assert lab.router.circuit_states() == {"one": "open", "two": "closed"}
        labels = {"upstream": "one", "state": "open"}
        assert lab.metric("upstream_circuit", **labels) == 1
        lab.calls.clear()
        await lab.post(session="c")
        assert lab.names == ["two"]
        await asyncio.sleep(30)
        assert lab.router.circuit_states()["one"] == "trial"
        await lab.post(session="d")
        assert lab.names == ["two", "one"]
        assert lab.router.circuit_states()["one"] == "closed"

    clock.run(play())


def test_a_trial_is_one_attempt() -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(500)], "two": [HEALTHY]})
        for session in "ab":
            await lab.post(session=session)
        await asyncio.sleep(30)
        lab.calls.clear()
        began = clock.milliseconds()
        await lab.post(session="c")
        assert lab.asked == [("one", began), ("two", began)]
        assert lab.router.circuit_states()["one"] == "open"

    clock.run(play())


def test_the_only_upstream_is_always_asked() -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(500)]})
        for _ in range(3):
            await lab.post()
        assert len(lab.calls) == 9
        assert lab.router.circuit_states()["one"] == "open"

    clock.run(play())


def test_an_upstream_that_is_shut_could_not_take_over() -> None:
    """So nothing is held back for it."""

    async def play() -> None:
        lab = Lab({"one": [answer(500), HEALTHY], "two": [answer(500)]})
        for number in range(2):
            lab.transports["one"].replies = [answer(500)]
            await lab.post(session=str(number))
        await asyncio.sleep(1)
        lab.transports["one"].replies = [streamed(OPENING, 9.0)]
        assert lab.router.circuit_states() == {"one": "open", "two": "open"}
        began = clock.milliseconds()
        await lab.route(session="x").open(REQUEST, SSE)
        assert clock.milliseconds() == began

    clock.run(play())


def test_one_clients_bad_key_is_not_the_others_trouble() -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(401)], "two": [HEALTHY]}, {"one": KEYLESS})
        mallory = [(b"authorization", b"Bearer bad")]
        for number in range(5):
            await lab.post(session=str(number), headers=mallory)
        lab.calls.clear()
        await lab.post(session="x", headers=mallory)
        assert lab.names == ["two"]
        await lab.post(session="y", headers=[BEARER])
        assert lab.names == ["two", "one", "two"]

    clock.run(play())
