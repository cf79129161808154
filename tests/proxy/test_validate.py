from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lifecycle import Dialect, Rule
from proxy.cli_output import CliError
from proxy.config import Config
from proxy.validate import MOST_BYTES, recordings
from proxy.validate_stream import CLIENTS, Report, inspect
from tests import builders, corpus, strategies
from tests.pipeline.test_turn_sdk import final_response
from tests.proxy.commands import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Event = dict[str, Any]

CONFIG = Config()
HELLO = builders.message("hello you")
CALL = builders.function_call("c1", "shell", {"command": "ls"})


def reports(data: bytes, dialect: Dialect = Dialect.PUBLIC) -> list[Report]:
    limits, budgets = CONFIG.limits.as_limits(), CONFIG.recall.budgets.as_budgets()
    return [
        report
        for recorded in recordings(data, "test")
        for report in inspect(recorded, dialect, limits, budgets)
    ]


def report(*events: Event, framing: builders.Framing = builders.PLAIN) -> Report:
    (only,) = reports(b"".join(builders.frames(events, framing)))
    return only


def rules(found: Report) -> set[Rule]:
    return {rule for rule, _ in found.findings}


def breaking(found: Report) -> set[str]:
    return {client for client in CLIENTS if not found.survives(client)}


def without(events: list[Event], kind: str) -> list[Event]:
    """Leave out the events of a type, and number the rest anew."""
    return builders.numbered(event for event in events if event["type"] != kind)


def changed(events: list[Event], kind: str, **members: Any) -> list[Event]:
    """Change members of the events of a type; None takes one out."""
    return [
        {key: value for key, value in (event | members).items() if value is not None}
        if event["type"] == kind
        else event
        for event in events
    ]


def test_a_sound_stream_has_nothing_to_tell() -> None:
    found = report(*builders.stream(HELLO, CALL))
    assert found.findings == {}
    assert found.terminal == "response.completed"
    assert found.verbatim
    assert breaking(found) == set()


SOUND = builders.stream(HELLO)
TERMINAL = SOUND[-1]["response"]


@pytest.mark.parametrize(
    ("events", "expected", "broken"),
    [
        (SOUND[:-1], {Rule.TERMINAL_MISSING}, {"codex", "sdk", "stream"}),
        ([*SOUND, SOUND[2]], {Rule.AFTER_TERMINAL}, set()),
        (
            without(SOUND, "response.created"),
            {Rule.CREATED_MISSING},
            {"stream"},
        ),
        (
            [{"type": "codex.rate_limits", "rate_limits": {}}, *SOUND],
            {Rule.RATE_LIMITS, Rule.BEFORE_CREATED},
            {"stream"},
        ),
        (
            without(SOUND, "response.output_item.added"),
            {Rule.ADDED_MISSING},
            {"codex", "stream"},
        ),
        (
            without(SOUND, "response.output_item.done"),
            {Rule.DONE_MISSING, Rule.OUTPUT_DIFFERS},
            {"codex"},  # the SDK finds the item in the terminal's output
        ),
        (without(SOUND, "response.content_part.added"), {Rule.PART_MISSING}, {"stream"}),
        (
            [*SOUND[:3], SOUND[2] | {"sequence_number": 3}, *SOUND[3:]],
            {Rule.INDEX_REUSED},
            {"stream"},
        ),
        (
            changed(SOUND, "response.completed", response=TERMINAL | {"output": []}),
            {Rule.OUTPUT_EMPTY},
            {"stream"},
        ),
        (
            changed(SOUND, "response.completed", response=TERMINAL | {"id": "resp_B"}),
            {Rule.RESPONSE_ID_CHANGED},
            {"stream"},
        ),
        (
            changed(
                SOUND,
                "response.completed",
                response=TERMINAL | {"usage": {"input_tokens": 1.0, "output_tokens": 2}},
            ),
            {Rule.USAGE_INCOMPLETE},
            {"codex"},
        ),
        (
            changed(SOUND, "response.output_text.delta", logprobs=None),
            {Rule.LOGPROBS_MISSING},
            set(),
        ),
        (
            changed(SOUND, "response.output_text.done", item_id="msg_x"),
            {Rule.ITEM_ID_ROTATED},
            set(),
        ),
        (
            changed(SOUND, "response.output_text.done", output_index=None),
            {Rule.INDEX_MISSING},
            {"stream"},
        ),
        (
            changed(SOUND, "response.in_progress", sequence_number=None),
            {Rule.SEQUENCE_MISSING},
            set(),
        ),
        (
            changed(SOUND, "response.in_progress", sequence_number=7),
            {Rule.SEQUENCE_GAP},
            set(),
        ),
        (
            changed(SOUND, "response.in_progress", type="response.novel"),
            {Rule.UNKNOWN_EVENT},
            set(),
        ),
        (
            changed(SOUND, "response.completed", type="response.done"),
            {Rule.RESPONSE_DONE},
            {"codex", "sdk", "stream"},
        ),
        (
            changed(builders.stream(CALL), "response.function_call_arguments.done", arguments="{}"),
            {Rule.ARGUMENTS_DISAGREE},
            set(),
        ),
        (
            [*SOUND[:2], {"type": "error", "error": {"message": "m"}}, *SOUND[2:]],
            {Rule.ERROR_NESTED},
            {"sdk", "stream"},
        ),
    ],
)
def test_a_deviation_is_told_by_rule_and_by_who_breaks(
    events: list[Event], expected: set[Rule], broken: set[str]
) -> None:
    found = report(*events)
    assert rules(found) >= expected
    assert breaking(found) >= broken


@pytest.mark.parametrize(
    ("name", "expected", "broken"),
    [
        ("no event lines", {Rule.EVENT_LINE_MISSING}, set()),
        ("crlf", {Rule.FRAMING}, set()),
        ("cr", {Rule.FRAMING}, {"codex"}),
        ("no space", set(), set()),
        ("several data lines", {Rule.FRAMING}, set()),
        ("comments", set(), set()),
        ("id and retry", set(), set()),
        ("bom", {Rule.FRAMING}, {"codex"}),
        ("no last blank line", {Rule.FRAMING}, {"codex"}),
        ("all at once", {Rule.FRAMING}, {"codex"}),
    ],
)
def test_framing_is_looked_at(name: str, expected: set[Rule], broken: set[str]) -> None:
    found = report(*SOUND, framing=builders.FRAMINGS[name])
    assert rules(found) == expected
    assert breaking(found) == broken
    assert found.terminal == "response.completed"


def test_named_data_that_is_not_json_breaks_the_sdk() -> None:
    (found,) = reports(b"event: ping\ndata: pong\n\n" + builders.body(SOUND))
    assert breaking(found) == {"sdk", "stream"}


@pytest.mark.parametrize(
    ("junk", "expected"),
    [
        (b"data: [DONE]\n\n", Rule.DONE_MARKER),
        (b"data:\n\n", Rule.EMPTY_DATA),
        (b"event: response.output_text.delta\ndata: {\n\n", Rule.MALFORMED_JSON),
        (b"event: ping\ndata: pong\n\n", Rule.NOT_JSON),
        (b'event: response.in_progress\ndata: {"type":"response.queued"}\n\n', Rule.TYPE_MISMATCH),
        (b'event: response.created\ndata: {"type":"response.created"}\n\n', Rule.MALFORMED_EVENT),
    ],
)
def test_junk_is_told_and_the_rest_still_checked(junk: bytes, expected: Rule) -> None:
    head, *rest = builders.frames(SOUND)
    (found,) = reports(b"".join([head, junk, *rest]))
    assert rules(found) - {Rule.SEQUENCE_MISSING} == {expected}
    assert found.terminal == "response.completed"
    assert {(each.event, each.line) for each in found.findings.values()} == {(2, 4)}


def test_native_is_no_fault_of_its_dialect_even_in_strict_mode() -> None:
    body = b"".join(builders.frames(builders.stream(HELLO, sparse=True)))
    for dialect, rejected in ((Dialect.PUBLIC, True), (Dialect.CODEX, False)):
        (found,) = reports(body, dialect)
        assert rules(found) >= {Rule.LONE_DONE, Rule.INDEX_MISSING, Rule.OUTPUT_EMPTY}
        assert found.rejected(dialect, strict=True) is rejected
        assert not found.rejected(dialect, strict=False)


def test_a_second_response_is_reported_apart() -> None:
    body = b"".join(builders.frames([*SOUND, *builders.stream(HELLO, response_id="resp_B")]))
    first, second = reports(body)
    assert first.findings == second.findings == {}
    assert first.events == second.events == len(SOUND)


def test_what_is_no_recording_is_one_error() -> None:
    with pytest.raises(CliError, match="test:1: no event"):
        reports(b'{"id":"resp_1","object":"response"}')
    with pytest.raises(CliError, match="test:2: "):
        reports(b'{"fixture":1,"about":"x"}\n{"neither":1}\n')


@corpus.each
def test_no_recorded_stream_is_rejected(recorded: corpus.Recorded) -> None:
    for dialect in Dialect:
        (found,) = reports(recorded.body, dialect)
        assert not found.rejected(dialect, strict=False), found.findings
        assert found.events == len(recorded.events)
        numbered = all(type(event.get("sequence_number")) is int for event in recorded.events)
        assert (Rule.SEQUENCE_MISSING in rules(found)) is not numbered


EVENTS = [*builders.stream(builders.reasoning("r"), HELLO, CALL), *SOUND]
MUTATED = st.lists(
    st.one_of(
        st.sampled_from(EVENTS),
        st.builds(
            lambda event, key, value: event | {key: value},
            st.sampled_from(EVENTS),
            st.sampled_from(
                ["type", "output_index", "item_id", "item", "response", "delta", "part"]
            ),
            st.none() | st.integers() | st.text() | st.just({}) | st.just([]) | st.just({"id": 5}),
        ),
    ),
    max_size=12,
)


@given(MUTATED)
def test_no_stream_makes_it_fail(events: list[Event]) -> None:
    body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in [EVENTS[0], *events])
    for dialect in Dialect:
        for found in reports(body, dialect):
            assert found.terminal is not None or Rule.TERMINAL_MISSING in rules(found)


@given(st.binary())
def test_no_bytes_make_it_fail(data: bytes) -> None:
    assert reports(b": " + data)


# The command.


def test_the_command_tells_people(tmp_path: Path) -> None:
    (tmp_path / "good.sse").write_bytes(b"".join(builders.frames(SOUND)))
    code, out, said = run(tmp_path, "validate", "good.sse")
    assert (code, said) == (0, "")
    assert out.splitlines() == [
        f"response 1: {len(SOUND)} events, response.completed",
        "  nothing deviates",
        "  Codex survives",
        "  OpenAI SDK, create(stream=True) survives",
        "  OpenAI SDK, responses.stream() survives",
        "  through the proxy: byte for byte",
    ]
    body = b"".join(builders.frames(SOUND[:-1]))
    code, out, _ = run(tmp_path, "validate", "-", stdin=body.decode())
    assert code == 1
    assert "reject terminal_missing: stream ended without a terminal event" in out
    assert "  Codex breaks: terminal_missing\n" in out
    assert "  through the proxy: not at all\n" in out


def test_strict_mode_rejects_what_is_repaired(tmp_path: Path) -> None:
    body = b"".join(builders.frames(SOUND, builders.FRAMINGS["crlf"])).decode()
    (tmp_path / "crlf.sse").write_bytes(body.encode())
    assert run(tmp_path, "validate", "crlf.sse")[0] == 0
    assert run(tmp_path, "validate", "crlf.sse", "--strict")[0] == 1


def test_json_has_a_schema_version(tmp_path: Path) -> None:
    (tmp_path / "x.sse").write_bytes(b"".join(builders.frames(without(SOUND, "response.created"))))
    code, out, _ = run(tmp_path, "validate", "x.sse", "--json", "--dialect", "codex")
    told = json.loads(out)
    assert code == 0
    assert (told["schema_version"], told["dialect"], told["mode"]) == (1, "codex", "tolerant")
    (response,) = told["responses"]
    assert response["ok"] is True
    assert response["verbatim"] is False
    assert response["survives"] == {"codex": True, "sdk": True, "stream": False}
    finding = response["findings"][0]
    assert (finding["rule"], finding["event"], finding["line"]) == ("created_missing", 1, 1)
    assert finding["breaks"] == ["stream"]


def test_events_as_json_lines_and_fixtures_are_recordings_too(tmp_path: Path) -> None:
    lines = [json.dumps(event) for event in SOUND]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    assert "nothing deviates" in run(tmp_path, "validate", "events.jsonl")[1]
    records = [
        '{"fixture":1,"about":"two hops"}',
        '{"in":"request","body":{}}',
        '{"in":"head"}',
        *(f'{{"in":"event","event":{line}}}' for line in lines),
        '{"in":"end"}',
        '{"in":"head"}',
        *(f'{{"in":"event","event":{line}}}' for line in lines[:-1]),
        '{"in":"end"}',
    ]
    (tmp_path / "fixture.jsonl").write_text("\n".join(records) + "\n")
    code, out, _ = run(tmp_path, "validate", "fixture.jsonl", "--json")
    first, second = json.loads(out)["responses"]
    assert code == 1
    assert first["findings"] == []
    assert second["findings"][0]["rule"] == "terminal_missing"
    assert second["findings"][0]["line"] == len(records) - 1


@pytest.mark.parametrize(
    ("source", "words"), [("none.sse", "can't be read: No such file"), (".", "can't be read")]
)
def test_what_can_not_be_read_is_one_error(tmp_path: Path, source: str, words: str) -> None:
    code, out, said = run(tmp_path, "validate", source)
    assert (code, out) == (1, "")
    assert words in said


def test_an_empty_and_a_huge_source_are_refused(tmp_path: Path) -> None:
    assert "is empty" in run(tmp_path, "validate", "-", stdin=" \n")[2]
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    assert "is larger than" in run(tmp_path, "validate", "huge")[2]
    (tmp_path / "event").write_bytes(b"data: " + b"x" * CONFIG.limits.event_bytes + b"\n\n")
    assert "SSE event exceeded" in run(tmp_path, "validate", "event")[2]


@contextmanager
def serving(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/stream?api_key=hush"
        server.shutdown()
        thread.join()


def test_a_url_is_fetched(tmp_path: Path) -> None:
    with serving(200, b"".join(builders.frames(SOUND))) as url:
        code, out, _ = run(tmp_path, "validate", url)
    assert (code, "nothing deviates" in out) == (0, True)
    with serving(404, b"") as url:
        code, _, said = run(tmp_path, "validate", url)
    assert code == 1
    assert said.endswith(
        " answered 404\nhint: check the address; it must answer without a credential\n"
    )
    assert "hush" not in said
    code, _, said = run(tmp_path, "validate", url)
    assert code == 1
    assert "can't be fetched" in said


def is_survived(events: list[Event]) -> bool:
    """Let the SDK itself read a stream."""
    try:
        final_response(b"".join(builders.frames(events)))
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError):
        return False
    return True


@given(st.data())
def test_the_sdk_survives_what_it_is_said_to_survive(data: st.DataObject) -> None:
    items = data.draw(strategies.outputs(1, recall=False, client=data.draw(st.booleans())))
    events = data.draw(strategies.lossy(data.draw(strategies.hop_events(items))))
    assert ("stream" not in breaking(report(*events))) is is_survived(events)


def test_an_item_that_only_the_terminal_closes_is_read_by_the_sdk() -> None:
    events = without(SOUND, "response.output_item.done")
    assert is_survived(events)
    assert breaking(report(*events)) == {"codex"}
    cut = changed(events, "response.completed", response=TERMINAL | {"output": []})
    assert not is_survived(cut)
    assert breaking(report(*cut)) == {"codex", "stream"}


def test_what_a_delta_breaks_on_is_said_of_the_item() -> None:
    call = builders.stream(CALL)
    bare = {key: one for key, one in CALL.items() if key != "arguments"}
    events = changed(call, "response.output_item.added", item=bare)
    (found,) = report(*events).findings.values()
    assert (found.rule, found.breaks) == (Rule.ITEM_INCOMPLETE, {"stream"})
    calm = without(events, "response.function_call_arguments.delta")
    assert "stream" not in breaking(report(*calm))
