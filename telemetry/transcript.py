"""Transcripts: what was said in a conversation, one JSONL file each, for the user's own eyes.

A line is a meta record or a message::

    {"type": "run_start", "at": …, "turn": …, "session": …, …}
    {"type": "message", "at": …, "turn": …, "item": {…}}
    {"type": "run_end" | "budget_exhausted", "at": …, "turn": …, "outcome": …, …}

Files are only ever appended to, one write a record, so that a process that dies leaves whole lines
behind, and can be read by their owner alone. Writing is best effort: this sink stands behind the
door, where a full disk costs a count and no turn.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pipeline import jsontext
from telemetry.capture import TranscriptLines

if TYPE_CHECKING:
    from pathlib import Path

    from telemetry.capture import Record


class Transcripts:
    """Writes transcripts: the sink ``transcripts`` of the door.

    Args:
        folder: Where they are; made when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, record: Record) -> None:
        """Append what a record holds to its conversation's file.

        Raises:
            OSError: It can't be written; the door counts that.
        """
        if not isinstance(record, TranscriptLines):
            return
        text = b"".join(jsontext.dumps(line) + b"\n" for line in record.lines)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{record.conversation}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            file.write(text)
