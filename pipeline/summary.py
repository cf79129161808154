"""An answer to the request for a summary, read as the compaction that the client asked for.

The upstream says its summary as text; what comes out is one ``compaction`` item, sealed. Created
and in progress pass at once, everything in between is kept from the client, and the terminal has
the one item as its output.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.errors import ProtocolError
from pipeline.lifecycle import ITEM_PREFIXES
from pipeline.reader_around import ReaderAround
from pipeline.sse import Fragment, Frame, encode_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.reader import Reader

    Json = dict[str, Any]

_BEGINNINGS: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDINGS: Final = frozenset({"response.completed", "response.incomplete"})
_FAILURES: Final = frozenset({"response.failed", "error"})
_CUT_OFF: Final = "\n\n[The summary ends here: its upstream allowed no more.]"
_ID_BYTES: Final = 24


def summary_of(response: Json) -> str:
    """Return the summary that a response tells.

    One that the upstream's own limit cut off is taken as it is, and says so: the next try would
    not get further.

    Args:
        response: A response that is completed or incomplete.

    Raises:
        ProtocolError: It has no text, or was stopped for what it says.
    """
    output = response.get("output")
    texts = [
        str(part.get("text"))
        for item in (output if isinstance(output, list) else [])
        if isinstance(item, dict) and item.get("type") == "message"
        for part in item.get("content") or []
        if isinstance(part, dict) and part.get("type") == "output_text"
    ]
    text = "\n".join(texts).strip()
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    if not text or reason not in (None, "max_output_tokens"):
        raise ProtocolError(
            "the conversation could not be compacted: the upstream was asked for a summary and "
            f"answered without one ({reason or 'no text'})"
        )
    return text if reason is None else text + _CUT_OFF


class SummaryReader(ReaderAround):
    """Reads a summary as a compaction.

    Args:
        reader: Reads the upstream's answer as Responses events.
        seal: Makes of the summary what the client keeps.
    """

    def __init__(self, reader: Reader, seal: Callable[[str], str]) -> None:
        super().__init__(reader)
        self._seal = seal
        self._number = 0

    def skip(self, _frames: int, _size: int, /) -> bool:
        """Say that it reads everything itself."""
        return False

    def told(self, frames: list[Frame | Fragment]) -> list[Frame | Fragment]:
        """Return what an answer's frames bring to light.

        Raises:
            ProtocolError: There is no summary.
        """
        told: list[Frame | Fragment] = []
        for frame in frames:
            if isinstance(frame, Frame) and frame.data is not None:
                told += self._tell(jsontext.loads(frame.data))
        return told

    def _tell(self, event: Json) -> list[Frame]:
        kind = event["type"]
        if kind in _BEGINNINGS:
            return [self._frame(event)]
        if kind in _FAILURES:
            response = event.get("response")
            bare = {"response": {**response, "output": []}} if isinstance(response, dict) else {}
            return [self._frame({**event, **bare})]
        return self._end(event["response"]) if kind in _ENDINGS else []

    def _end(self, response: Json) -> list[Frame]:
        item = {
            "id": _item_id(str(response.get("id"))),
            "type": "compaction",
            "encrypted_content": self._seal(summary_of(response)),
        }
        done = {"status": "completed", "incomplete_details": None, "output": [item]}
        return [
            self._frame({"type": "response.output_item.added", "output_index": 0, "item": item}),
            self._frame({"type": "response.output_item.done", "output_index": 0, "item": item}),
            self._frame({"type": "response.completed", "response": {**response, **done}}),
        ]

    def _frame(self, event: Json) -> Frame:
        kind = event["type"]
        data = jsontext.dumps({**event, "sequence_number": self._number})
        self._number += 1
        return Frame(encode_event(kind, data), kind, data, sound=True)


def _item_id(response_id: str) -> str:
    digest = hashlib.blake2b(response_id.encode("utf-8", "surrogatepass"), digest_size=_ID_BYTES)
    return f"{ITEM_PREFIXES['compaction']}_{digest.hexdigest()}"
