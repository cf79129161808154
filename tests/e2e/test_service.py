"""What is served beside turns: readiness, and answers to who asks in the wrong way or place."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests import builders
from tests.builders import message
from tests.e2e import checks
from tests.e2e.process import eventually
from tests.e2e.replies import says

if TYPE_CHECKING:
    from tests.e2e.conftest import Lab


def readiness(lab: Lab) -> tuple[int, dict[str, Any]]:
    with lab.proxy.get("/readyz") as exchange:
        return exchange.status, exchange.json()


def turn(lab: Lab, text: str) -> None:
    with lab.post(builders.request(text), says(message("hi"))) as exchange:
        checks.received(exchange)


def test_a_memory_that_can_not_be_written_is_not_ready_until_it_can(lab: Lab) -> None:
    assert readiness(lab)[0] == 200
    memory = lab.proxy.state / "memory.db"
    with closing(sqlite3.connect(memory, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        turn(lab, "remember one")
        turn(lab, "remember two")
        eventually(lambda: readiness(lab)[0] == 503, "not ready")
        lab.proxy.reaches(2, "ingest_failures_total")
        status, told = readiness(lab)
        assert (status, told["status"]) == (503, "not_ready")
        assert told["detail"] == "the memory can't be used: another process holds it locked"
        assert told["hint"].startswith("end the process")
        assert told["upstreams"]
        assert str(lab.proxy.state) not in json.dumps(told)
        other.execute("ROLLBACK")
    eventually(lambda: readiness(lab)[0] == 200, "ready again")
    lab.proxy.tells("memory works again")
    lines = [line for line in lab.proxy.said.splitlines() if "memory not written" in line]
    (line,) = map(json.loads, lines)
    assert line["cause"] == "another process holds it locked"
    assert line["hint"]
    assert line["file"] == str(memory)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("DELETE", "/readyz", {"GET", "HEAD"}),
        ("PUT", "/metrics", {"GET", "HEAD"}),
        ("POST", "/usage", {"GET", "HEAD"}),
        ("POST", "/api/turns/x/activity", {"GET", "HEAD"}),
        ("GET", "/v1/responses", {"POST"}),
        ("DELETE", "/responses", {"POST"}),
        ("OPTIONS", "/v1/codex/responses", {"POST"}),
        ("PUT", "/backend-api/codex/responses", {"POST"}),
    ],
)
def test_a_wrong_method_is_told_with_the_right_one(
    shared_lab: Lab, method: str, path: str, allowed: set[str]
) -> None:
    with shared_lab.proxy.ask(method, path) as exchange:
        assert exchange.status == 405
        assert set(exchange.headers["allow"].split(", ")) == allowed
        assert exchange.headers["content-type"] == "application/json"
        error = exchange.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "method_not_allowed"
    way = min(allowed)
    assert error["message"].startswith(f"{method} is not answered at {path}: use {way}")


@pytest.mark.parametrize("path", ["/", "/nothing", "/healthz/", "/api/nothing", "/v2/responses"])
def test_a_wrong_path_is_told_with_a_next_step(shared_lab: Lab, path: str) -> None:
    for method in ("GET", "POST"):
        with shared_lab.proxy.ask(method, path) as exchange:
            assert exchange.status == 404
            assert exchange.headers["content-type"] == "application/json"
            error = exchange.json()["error"]
        assert error["code"] == "not_found"
        assert error["message"] == (
            f"nothing is served at {path}; OpenAI clients use the base URL …/v1"
        )
