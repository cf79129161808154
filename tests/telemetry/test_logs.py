from __future__ import annotations

import io
import json
import logging
import os
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from telemetry.capture import Door, Keeping, Loss, TurnRecord, capture_empty_completion
from telemetry.logs import (
    REFUSED_UPGRADE,
    SAID_BETTER,
    LogFormat,
    _ChannelHandler,
    configure_logging,
    escape_controls,
    is_worth_a_line,
    log_record,
    write_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUND = 30.0


TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Writes(io.StringIO):
    """Counts how often it is written to."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Give the process its own logging back: it is global, and other tests look at it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]


def test_json_lines_where_nobody_looks() -> None:
    stream = io.StringIO()
    channel = configure_logging(log_format=LogFormat.AUTO, stream=stream)
    structlog.get_logger("proxy.app").info("started", port=7688, key=None)
    structlog.get_logger("proxy.app").debug("never told")
    assert channel.close(BOUND)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "started",
        "level": "info",
        "logger": "proxy.app",
        "port": 7688,
        "key": None,
    }


def test_lines_for_people_on_a_terminal() -> None:
    stream = Terminal()
    channel = configure_logging(log_format=LogFormat.AUTO, stream=stream)
    structlog.get_logger("x").warning("look", at="this")
    assert channel.close(BOUND)
    assert "look" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_the_format_can_be_forced_either_way() -> None:
    stream = io.StringIO()
    channel = configure_logging(log_format=LogFormat.CONSOLE, stream=stream)
    structlog.get_logger("x").warning("look")
    assert channel.close(BOUND)
    assert not stream.getvalue().startswith("{")
    terminal = Terminal()
    channel = configure_logging(log_format=LogFormat.JSON, stream=terminal)
    structlog.get_logger("x").warning("look")
    assert channel.close(BOUND)
    assert lines(terminal)[0]["event"] == "look"


@pytest.mark.parametrize("log_format", [LogFormat.JSON, LogFormat.CONSOLE])
def test_secrets_are_redacted_in_fields_messages_and_tracebacks(log_format: LogFormat) -> None:
    stream = io.StringIO()
    channel = configure_logging(log_format=log_format, stream=stream)
    log = structlog.get_logger("x")
    log.info("Bearer abcdefghij", authorization="opaque", deep={"api_key": "opaque"})
    try:
        int("sk-abcdefghijklmnop")
    except ValueError:
        log.exception("failed")
    logging.getLogger("third.party").error("with svt_%s", "0123456789")
    assert channel.close(BOUND)
    text = stream.getvalue()
    assert "ValueError" in text
    assert "[redacted]" in text
    for secret in ("abcdefghij", "opaque", "0123456789"):
        assert secret not in text


def test_the_standard_library_is_routed_and_uvicorn_is_quiet() -> None:
    stream = io.StringIO()
    channel = configure_logging(log_format=LogFormat.JSON, stream=stream)
    logging.getLogger("uvicorn.error").info("Started server process [1]")
    logging.getLogger("uvicorn.access").error("GET / 200")
    for message in REFUSED_UPGRADE | SAID_BETTER:
        logging.getLogger("uvicorn.error").error(message)
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("uvicorn.error").error("Exception in ASGI application")
    assert channel.close(BOUND)
    assert [(line["logger"], line["event"]) for line in lines(stream)] == [
        ("uvicorn.error", "Exception in ASGI application")
    ]


def test_a_record_whose_arguments_do_not_fit_is_told_without_them() -> None:
    stream = io.StringIO()
    channel = configure_logging(log_format=LogFormat.JSON, stream=stream)
    record = logging.LogRecord("odd", logging.ERROR, __file__, 1, "%d", ("no number",), None)
    _ChannelHandler(channel).handle(record)
    assert channel.close(BOUND)
    assert lines(stream)[0]["event"] == "%d"


def test_configuring_twice_writes_each_line_once() -> None:
    stream = io.StringIO()
    configure_logging(log_format=LogFormat.JSON, stream=stream).close(BOUND)
    channel = configure_logging(log_format=LogFormat.JSON, stream=stream)
    logging.getLogger("x").error("once")
    assert channel.close(BOUND)
    assert len(lines(stream)) == 1


def test_an_empty_completion_is_a_warning_line() -> None:
    stream = io.StringIO()
    channel = configure_logging(log_format=LogFormat.JSON, stream=stream)
    door = Door({"log": log_record})
    capture_empty_completion(
        door,
        protocol="codex",
        model="m",
        session="s",
        stop_reason="stop",
        output_tokens=0,
        recall_depth=1,
    )
    assert door.close(BOUND)
    assert channel.close(BOUND)
    (line,) = lines(stream)
    del line["timestamp"]
    assert line == {
        "event": "empty completion → client",
        "level": "warning",
        "logger": "telemetry",
        "protocol": "codex",
        "model": "m",
        "session": "s",
        "stop_reason": "stop",
        "output_tokens": 0,
        "recall_depth": 1,
    }


def test_a_turn_is_one_line_and_a_failed_one_a_warning() -> None:
    stream = io.StringIO()
    channel = configure_logging(log_format=LogFormat.JSON, stream=stream)
    log_record(TurnRecord(turn="t1", outcome="completed", seconds=0.12345, attempts=2))
    log_record(TurnRecord(turn="t2", outcome="failed", category="principal_limit"))
    assert stream.getvalue() == ""
    write_records()
    assert channel.close(BOUND)
    first, second = lines(stream)
    assert (first["level"], first["turn"], first["seconds"]) == ("info", "t1", 0.123)
    assert first["attempts"] == 2
    assert (second["level"], second["category"]) == ("warning", "principal_limit")


TEXTS = st.text() | st.sampled_from(
    [
        *(
            "",
            "m",
            "gpt-5.1-codex",
            "0197c0de-1111-7222-8333-0123456789ab",
            "\ud83d",
            "a\x1b[2J\nb",
        ),
        *("sk-abcdefghijklmnop", "Bearer abcdefghij", "a\nsvt_0123456789", 'api_key="a b"'),
    ]
)


@given(
    st.builds(
        TurnRecord,
        turn=TEXTS,
        outcome=TEXTS,
        category=st.none() | TEXTS,
        limit=st.none() | TEXTS,
        truncated=st.none() | TEXTS,
        protocol=TEXTS,
        upstream=TEXTS,
        model=st.none() | TEXTS,
        session=st.none() | TEXTS,
        status=st.none() | st.integers(),
        seconds=st.none() | st.floats(0, 1000),
    ),
    st.sampled_from([LogFormat.JSON, LogFormat.CONSOLE]),
)
def test_a_turns_line_is_what_a_log_call_makes(record: TurnRecord, log_format: LogFormat) -> None:
    names = ("turn", "outcome", "category", "limit", "protocol", "upstream", "model", "session")
    fields = {name: getattr(record, name) for name in (*names, "status")}
    fields["limit"] = record.limit or record.truncated
    fields |= {"hops": record.hops, "attempts": record.attempts, "recalls": record.recalls}
    fields["seconds"] = None if record.seconds is None else round(record.seconds, 3)
    told = {name: value for name, value in fields.items() if value not in (None, "")}
    stream = io.StringIO()
    channel = configure_logging(log_format=log_format, stream=stream)
    log = structlog.get_logger("telemetry")
    log.log(logging.INFO if record.category is None else logging.WARNING, "turn", **told)
    assert channel.close(BOUND)
    log_record(record)
    write_records()
    called, made = (TIMESTAMP.sub("", line) for line in stream.getvalue().split("\n")[:-1])
    assert made == called


def test_lines_that_are_not_told_are_not_made() -> None:
    stream = io.StringIO()
    channel = configure_logging(log_format=LogFormat.JSON, stream=stream, level=logging.WARNING)
    log_record(TurnRecord(turn="t1", outcome="completed"))
    log_record(TurnRecord(turn="t2", outcome="failed", category="principal_limit"))
    write_records()
    assert channel.close(BOUND)
    assert [line["turn"] for line in lines(stream)] == ["t2"]


def test_a_turn_is_told_by_whatever_logging_there_is() -> None:
    with capture_logs() as logs:
        log_record(TurnRecord(turn="t1", outcome="completed"))
        write_records()
    assert [(line["event"], line["log_level"], line["turn"]) for line in logs] == [
        ("turn", "info", "t1")
    ]


def test_the_lines_of_records_that_come_close_together_are_one_write() -> None:
    stream = Writes()
    channel = configure_logging(log_format=LogFormat.JSON, stream=stream)
    door = Door({"log": Keeping(log_record, write_records)})
    for number in range(10):
        door.post(TurnRecord(turn=f"t{number}", outcome="completed"))
    assert door.close(BOUND)
    assert channel.close(BOUND)
    assert [line["turn"] for line in lines(stream)] == [f"t{number}" for number in range(10)]
    assert stream.writes == 1


def test_a_line_that_can_not_be_written_is_counted_and_not_kept() -> None:
    stream = Writes()
    configure_logging(log_format=LogFormat.JSON, stream=stream)
    door = Door({"log": Keeping(log_record, write_records)})
    stream.close()
    door.post(TurnRecord(turn="t1", outcome="completed"))
    assert door.close(BOUND)
    assert door.losses()["log", Loss.RAISED] == 1
    write_records()


def test_a_pipe_that_nobody_reads_holds_up_no_log_call() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        channel = configure_logging(log_format=LogFormat.JSON, stream=stream)
        log = structlog.get_logger("x")
        for _ in range(3000):
            log.info("x" * 400)
        assert channel.losses()[Loss.DROPPED] > 0
        received = threading.Thread(target=_read_all, args=(reader,))
        received.start()
        assert channel.close(BOUND)
    received.join(BOUND)


def _read_all(descriptor: int) -> None:
    with os.fdopen(descriptor, "rb") as pipe:
        pipe.read()


def test_control_characters_are_escaped_on_a_terminal() -> None:
    event = escape_controls(None, "info", {"event": "a\x1b[2J\nb\x9b", "n": 1, "exception": "a\nb"})
    assert event == {"event": "a\\x1b[2J\\x0ab\\x9b", "n": 1, "exception": "a\nb"}


def test_only_refused_upgrades_are_dropped() -> None:
    record = logging.makeLogRecord({"msg": "ASGI callable returned without sending handshake."})
    assert not is_worth_a_line(record)
    assert is_worth_a_line(logging.makeLogRecord({"msg": "something else"}))
    assert is_worth_a_line(logging.makeLogRecord({"msg": ValueError("as a message")}))


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda key: key != "event"),
        st.text() | st.integers() | st.binary() | st.lists(st.text() | st.none()) | st.floats(),
    ),
    st.sampled_from([LogFormat.JSON, LogFormat.CONSOLE]),
)
def test_any_field_makes_one_line(fields: dict[str, Any], log_format: LogFormat) -> None:
    stream = io.StringIO()
    channel = configure_logging(log_format=log_format, stream=stream)
    structlog.get_logger("x").info("event", **fields)
    assert channel.close(BOUND)
    assert channel.losses() == {Loss.RAISED: 0, Loss.DROPPED: 0}
    assert stream.getvalue().endswith("\n")
    if log_format is LogFormat.JSON:
        assert len(lines(stream)) == 1
