"""Structured logs: lines for people on a terminal, JSON lines otherwise, always on stderr.

::

    structlog logger ─┐
    stdlib logging ───┴─ event dict ── Channel "stderr" ── redact ── render ──┬── write
    Door ── Channel "log" ── a turn's record ── redact ── render ─────────────┘

A log call only collects: name, level, time and the formatted exception. Redaction, rendering and
writing happen on the channel's thread, so a terminal that is held, or a pipe that nobody reads,
can't hold up a turn. Lines that come close together are one write. The door's records are on such
a thread already: a second one would cost a turn more than its line does.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from enum import StrEnum
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Final

import orjson
import structlog

from telemetry.capture import Channel, EmptyCompletion, Record, TranscriptLines, TurnRecord
from telemetry.redact import redact, redact_value, redact_word

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structlog.typing import EventDict, Processor, WrappedLogger

REFUSED_UPGRADE: Final = frozenset(
    {
        "Unsupported upgrade request.",
        (
            "No supported WebSocket library detected. "
            "Please use \"pip install 'uvicorn[standard]'\", "
            "or install 'websockets' or 'wsproto' manually."
        ),
        "ASGI callable returned without completing handshake.",
        "ASGI callable returned without sending handshake.",
    }
)
"""What uvicorn logs as an error for every websocket upgrade that was answered with a refusal."""
SAID_BETTER: Final = frozenset({"Application startup failed. Exiting."})
"""What uvicorn says without the reason, which the command then tells."""

_NAME: Final = "telemetry"
log = structlog.get_logger(_NAME)

_QUIET: Final = ("uvicorn", "uvicorn.error", "uvicorn.asgi", "uvicorn.access")
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


class LogFormat(StrEnum):
    """How log lines are rendered; ``auto`` looks at whether stderr is a terminal."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


def configure_logging(
    *, log_format: LogFormat, stream: IO[str], level: int = logging.INFO
) -> Channel[EventDict]:
    """Route every log of the process, the standard library's too, to one channel.

    Args:
        log_format: How to render.
        stream: Where lines go; its file descriptor is written to directly where it has one.
        level: The lowest level of our own loggers. Others speak from a warning on.

    Returns:
        The channel, to be closed at the end so that the last lines get out.
    """
    on_terminal = stream.isatty()
    console = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and on_terminal)
    renderers, write = _renderers(console=console, colors=on_terminal), _writer(stream)
    lines = _Lines([redact_event, *renderers], write)
    channel = Channel("stderr", lines, flush=lines.flush)
    structlog.configure(
        processors=_collectors(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_Loggers(channel, _Lines(renderers, write), level),
        cache_logger_on_first_use=False,
    )
    _route_standard_logging(_ChannelHandler(channel))
    return channel


def log_record(record: Record) -> None:
    """Log a record: the sink ``log`` of the door. A turn's line is kept for `write_records`."""
    match record:
        case EmptyCompletion():
            log.warning(
                "empty completion → client",
                protocol=record.protocol,
                model=record.model,
                session=record.session,
                stop_reason=record.stop_reason,
                output_tokens=record.output_tokens,
                recall_depth=record.recall_depth,
            )
        case TurnRecord():
            _log_turn(record)
        case TranscriptLines():
            pass  # content is for no log


def write_records() -> None:
    """Write the lines of records that are kept, at once: what the door calls behind the last."""
    loggers = structlog.get_config()["logger_factory"]
    if isinstance(loggers, _Loggers):
        loggers.records.flush()


def redact_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Take the secrets out of an event: the processor in front of every renderer."""
    cleaned = redact_value(event)
    return cleaned if isinstance(cleaned, dict) else {}


def escape_controls(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters, so that nobody's text can move a cursor or fake a line."""
    return {
        key: value.translate(_ESCAPES) if isinstance(value, str) and key != "exception" else value
        for key, value in event.items()
    }


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Tell whether uvicorn's record is one: a refused websocket upgrade is no error of ours."""
    return record.msg not in REFUSED_UPGRADE | SAID_BETTER


def _log_turn(record: TurnRecord) -> None:
    """Make a turn's line: what the processors would make of a log call, at a fifth of the cost."""
    level, name = (
        (logging.INFO, "info") if record.category is None else (logging.WARNING, "warning")
    )
    event = _told(record)
    loggers = structlog.get_config()["logger_factory"]
    if not isinstance(loggers, _Loggers):  # somebody else's logging: it has its own processors
        log.log(level, "turn", **event)
    elif level >= loggers.level:
        event |= {"event": "turn", "logger": _NAME, "level": name, "timestamp": _now()}
        loggers.records(event)


def _now() -> str:
    """Return what structlog stamps events with; half as dear as ``isoformat``."""
    return orjson.dumps(datetime.now(UTC), option=orjson.OPT_UTC_Z)[1:-1].decode()


def _told(record: TurnRecord) -> dict[str, object]:
    """Return what a turn's line says of it, without secrets, whoever wrote the texts."""
    category, limit = record.category, record.limit or record.truncated
    fields = {
        "turn": redact(record.turn),
        "outcome": redact_word(record.outcome),
        "category": category and redact_word(category),
        "limit": limit and redact_word(limit),
        "protocol": redact_word(record.protocol),
        "upstream": redact_word(record.upstream),
        "model": record.model and redact_word(record.model),
        "session": record.session and redact(record.session),
        "status": record.status,
        "hops": record.hops,
        "attempts": record.attempts,
        "recalls": record.recalls,
        "seconds": None if record.seconds is None else round(record.seconds, 3),
    }
    return {name: value for name, value in fields.items() if value is not None and value != ""}


def _collectors() -> list[Processor]:
    """Return what runs where the log call is made."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _as_arguments,
    ]


def _renderers(*, console: bool, colors: bool) -> list[Processor]:
    """Return what runs behind the redaction; the last one makes the line."""
    if console:
        render = structlog.dev.ConsoleRenderer(colors=colors and not os.environ.get("NO_COLOR"))
        return [escape_controls, render]
    return [_to_json]


def _to_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # lone surrogates, integers beyond 64 bits
        return json.dumps(event, default=str)


def _as_arguments(
    _logger: WrappedLogger, _method: str, event: EventDict
) -> tuple[tuple[EventDict], dict[str, Any]]:
    return (event,), {}


class _Lines:
    """The sink: an event becomes a line, and some lines one write."""

    def __init__(self, processors: Sequence[Processor], write: Callable[[str], object]) -> None:
        self._processors = processors
        self._write = write
        self._lines: list[str] = []

    def __call__(self, event: EventDict) -> None:
        line: Any = event
        for processor in self._processors:
            line = processor(None, str(event.get("level", "info")), line)
        self._lines.append(f"{line}\n")

    def flush(self) -> None:
        """Write what is kept, or lose it: it is not kept for another try."""
        lines, self._lines = self._lines, []
        if lines:
            self._write("".join(lines))


class _Logger:
    """What structlog's loggers wrap: every method hands the event to the channel."""

    def __init__(self, name: str, channel: Channel[EventDict]) -> None:
        self.name = name
        self._channel = channel

    def msg(self, event: EventDict) -> None:
        self._channel.put(event)

    debug = info = warning = error = critical = exception = msg


class _Loggers:
    """The factory that structlog asks for a logger, and what else our logging is made of.

    Args:
        channel: Takes the events.
        records: Makes lines of the door's records, which are redacted already.
        level: The lowest level that is told.
    """

    def __init__(self, channel: Channel[EventDict], records: _Lines, level: int) -> None:
        self._channel = channel
        self.records = records
        self.level = level

    def __call__(self, *names: object) -> _Logger:
        return _Logger(str(names[0]) if names else "sottovoce", self._channel)


class _ChannelHandler(logging.Handler):
    """Turns the records of the standard library into the same events."""

    def __init__(self, channel: Channel[EventDict]) -> None:
        super().__init__()
        self._channel = channel
        self._stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)

    def emit(self, record: logging.LogRecord) -> None:
        event: EventDict = {
            "event": _message(record),
            "logger": record.name,
            "level": record.levelname.lower(),
        }
        if record.exc_info:
            event["exc_info"] = record.exc_info
            event = structlog.processors.format_exc_info(None, "error", event)
        self._channel.put(self._stamp(None, "info", event))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # arguments that don't fit: the text still tells
        return str(record.msg)


def _route_standard_logging(handler: logging.Handler) -> None:
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old, _ChannelHandler):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    for name in _QUIET:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").disabled = True
    errors = logging.getLogger("uvicorn.error")
    if is_worth_a_line not in errors.filters:
        errors.addFilter(is_worth_a_line)


def _writer(stream: IO[str]) -> Callable[[str], object]:
    """Return what writes lines past the stream's buffer, whose lock could outlive the thread.

    Two threads write. What one of them writes stands together.
    """
    lock = Lock()
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):
        descriptor = None

    def write(lines: str) -> None:
        with lock:
            if descriptor is None:
                stream.write(lines)
            else:
                _write_all(descriptor, lines.encode("utf-8", "backslashreplace"))

    return write


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
