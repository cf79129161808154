"""The out-of-tree corpus: Responses streams that real providers sent. Read only, never copied.

It lies where ``tests/conftest.py`` finds it. Tests take a stream by ``@corpus.each`` and are
skipped, with that said, where the folder is absent::

    @corpus.each
    def test_something(recorded: corpus.Recorded) -> None: ...
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.conftest import CORPUS_VARIABLE, corpus_folder

if TYPE_CHECKING:
    from pathlib import Path


class Recorded(NamedTuple):
    """One response as a provider streamed it."""

    name: str
    """Its file; ``#2`` and so on where the file holds several responses."""
    body: bytes
    """The SSE body: as sent, or framed from a file of JSON lines."""
    events: list[dict[str, Any]]
    """Its events, read without any code of ours; ``[DONE]`` is none."""
    request: dict[str, Any] | None
    """The request that produced it, where it is known."""
    catalogued: dict[str, Any]
    """What the corpus says of the file: model, terminal, items, flags."""


@cache
def recordings() -> tuple[Recorded, ...]:
    """Return every Responses stream of the corpus, none if it is absent."""
    folder = corpus_folder()
    if folder is None:
        return ()
    entries = json.loads((folder / "catalogue.json").read_bytes())
    return tuple(recorded for entry in entries for recorded in _read(folder, entry))


def _read(folder: Path, entry: dict[str, Any]) -> list[Recorded]:
    path = folder / entry["file"]
    request_path = path.with_name(path.stem + ".request.json")
    request = json.loads(request_path.read_bytes()) if request_path.is_file() else None
    if path.suffix != ".jsonl":
        body = path.read_bytes()
        return [Recorded(entry["file"], body, _events(body), request, entry)]
    return [
        Recorded(
            entry["file"] if number == 1 else f"{entry['file']}#{number}",
            b"".join(_frame(line) for line in lines),
            [json.loads(line) for line in lines],
            request if number == 1 else None,
            entry,
        )
        for number, lines in enumerate(_responses(path.read_bytes()), start=1)
    ]


def _events(body: bytes) -> list[dict[str, Any]]:
    data = (line[5:].strip() for line in body.split(b"\n") if line.startswith(b"data:"))
    return [json.loads(text) for text in data if text != b"[DONE]"]


def _responses(text: bytes) -> list[list[bytes]]:
    """Split JSON lines into responses: each begins with its ``response.created``."""
    responses: list[list[bytes]] = []
    for line in filter(None, text.splitlines()):
        if not responses or json.loads(line)["type"] == "response.created":
            responses.append([])
        responses[-1].append(line)
    return responses


def _frame(line: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (json.loads(line)["type"].encode(), line)


def _parameters() -> list[Any]:
    if found := recordings():
        return [pytest.param(recorded, id=recorded.name) for recorded in found]
    reason = f"no recorded streams here (set {CORPUS_VARIABLE} to their folder)"
    return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=reason))]


each = pytest.mark.parametrize("recorded", _parameters())
"""Runs a test once per recorded stream."""
