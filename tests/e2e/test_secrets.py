"""A provider repeats the key that it was sent: the client must not learn it."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests import builders
from tests.builders import item_events, message, numbered, opening
from tests.e2e.client import SDK_HEADERS
from tests.e2e.replies import streamed
from tests.upstreams import Stall, chunk, head, response

if TYPE_CHECKING:
    from tests.e2e.client import Exchange
    from tests.e2e.conftest import Lab, StartLab
    from tests.upstreams import Reply

KEY: Final = 'zone/secret-of-the-operator+"4711"'
TOKEN: Final = "svt_of_somebody_else_4711"
CONFIG: Final = """
[server]
access_token_env = "TOKENS"
[[upstream]]
name = "narrow"
kind = "responses"
base_url = "{url}"
api_key_env = "KEY"
"""
HEADERS: Final = (("authorization", "Bearer svt_of_mine_12345678"), *SDK_HEADERS[1:])
QUOTES: Final = {
    "plain": f"Incorrect API key provided: {KEY}.",
    "behind its scheme": f"Refused: Bearer {KEY}",
    "a token": f"Who is {TOKEN}?",
}
PLAIN: Final = builders.request(tools=None, tool_choice=None)
each_quote = pytest.mark.parametrize("quote", QUOTES.values(), ids=QUOTES)


@pytest.fixture
def lab(start_lab: StartLab) -> Lab:
    tokens = f"mine=svt_of_mine_12345678,other={TOKEN}"
    return start_lab(config=CONFIG, environment={"KEY": KEY, "TOKENS": tokens})


def knows_nothing(exchange: Exchange) -> str:
    data = exchange.body().decode()
    assert "4711" not in data
    assert "[redacted]" in data
    return data


def refusals(quote: str) -> list[bytes]:
    """Return an error's body as different providers write it down."""
    body = {"error": {"message": quote, "type": "invalid_request_error", "code": "bad"}}
    return [
        json.dumps(body).encode(),
        json.dumps(body, indent=2).replace("/", "\\/").encode(),
        json.dumps({"detail": json.dumps(body)}).encode(),
        f"<html>{quote}</html>".encode(),
    ]


@each_quote
@pytest.mark.parametrize("target", ["/v1/responses", "/v1/embeddings", "/v1/chat/completions"])
def test_an_error_that_is_passed_on(lab: Lab, quote: str, target: str) -> None:
    asked: dict[str, Any] = dict(PLAIN)
    if target == "/v1/chat/completions":
        asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    for body in refusals(quote):
        pieces = [chunk(body[i : i + 40]) for i in range(0, len(body), 40)]
        parts: Reply = [
            head(401, [("content-type", "text/x"), ("transfer-encoding", "chunked")]),
            *pieces,
            chunk(b""),
        ]
        for reply in (response(401, body), parts):
            with lab.post(asked, reply, headers=HEADERS, target=target) as exchange:
                assert exchange.status == 401
                knows_nothing(exchange)


@each_quote
def test_an_error_of_a_path_that_only_passes(lab: Lab, quote: str) -> None:
    for target in ("/v1/models", "/v1/models?client_version=1"):
        for body in refusals(quote):
            for reply in (
                response(401, body),
                response(401, gzip.compress(body), headers=[("content-encoding", "gzip")]),
            ):
                lab.provider.script([reply])
                with lab.proxy.get(target, headers=HEADERS) as exchange:
                    assert exchange.status == 401
                    assert "content-encoding" not in exchange.headers
                    knows_nothing(exchange)


def test_without_a_secret_in_it_an_error_passes_as_it_came(lab: Lab) -> None:
    body = b'{ "error" : {"message":"sk-a-key-of-the-clients-own is wrong"} }\n'
    packed = gzip.compress(body)
    encoded = [("content-encoding", "gzip"), ("x-mine", "1")]
    lab.provider.script([response(401, packed, headers=encoded), response(401, body)])
    with lab.proxy.get("/v1/models", headers=HEADERS) as exchange:
        assert exchange.body() == packed
        assert exchange.headers["content-length"] == str(len(packed))
        assert exchange.headers["content-encoding"] == "gzip"
    with lab.proxy.get("/v1/models", headers=HEADERS) as exchange:
        assert exchange.body() == body
    with lab.post(PLAIN, response(401, body), headers=HEADERS) as exchange:
        assert exchange.body() == body


def test_a_long_error_of_a_path_that_only_passes_is_passed_on(lab: Lab) -> None:
    long = b"x" * 300_000
    lab.provider.script([response(500, long)])
    with lab.proxy.get("/v1/models", headers=HEADERS) as exchange:
        assert exchange.body() == long
    lab.provider.script(
        [[head(500, [("transfer-encoding", "chunked")]), *[chunk(b"x" * 30_000)] * 4, Stall()]]
    )
    with lab.proxy.get("/v1/models", headers=HEADERS) as exchange:
        assert exchange.status == 500


@each_quote
@pytest.mark.parametrize("tools", [True, False], ids=["with tools", "observed"])
def test_what_a_stream_says_of_its_failure(lab: Lab, quote: str, *, tools: bool) -> None:
    asked = builders.request() if tools else PLAIN
    error = {"type": "error", "code": "bad", "message": quote, "param": None}
    nested = {"type": "error", "error": {"code": "bad", "message": quote}}
    begun = [*opening(), *item_events(message("visible"), 0)]
    for end in ([error], [nested], [builders.failed("bad", quote)]):
        events = numbered([*begun, *end])
        with lab.post(asked, streamed(events), headers=HEADERS) as exchange:
            data = knows_nothing(exchange)
        assert data.count("event: response.failed\n") == 1
        assert [line for line in data.splitlines() if line.startswith("data: ")][-1].count("bad")


@each_quote
def test_what_json_says_of_its_failure(lab: Lab, quote: str) -> None:
    failed = builders.failed("bad", quote)["response"]
    reply = response(
        200, json.dumps(failed).encode(), headers=[("content-type", "application/json")]
    )
    with lab.post(PLAIN | {"stream": False}, reply, headers=HEADERS) as exchange:
        knows_nothing(exchange)
