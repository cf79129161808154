"""Responses of upstreams that keep none, for clients that continue them by their id.

``previous_response_id`` means that the provider has the history. An upstream of another dialect has
nothing, so the history is kept here: what the client sent and what it saw, as texts, for the
newest responses of this process. A request that continues one gets all of it in front of its own
input, as if the client had sent it; what memory hides in it is restored like in any other history.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from pipeline.history import Insertion
from pipeline.jsonspans import document_span, member_elements
from pipeline.jsontext import drop_members, dumps
from pipeline.request import Request, with_array_input
from pipeline.restore import restore

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST: Final = 200
"""Responses that are kept; the one that was not used for longest goes first."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all of them together."""


class Remembered:
    """The histories of responses, each under the tenant and the id that its client knows.

    Args:
        most: How many are kept.
        most_bytes: How many bytes of texts.
    """

    def __init__(self, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._size = 0
        self._items: OrderedDict[tuple[str, str], tuple[bytes, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<Remembered {len(self)} responses, {self._size} bytes>"

    def put(
        self, tenant: str, response_id: str, asked: Request, output: Iterable[dict[str, Any]]
    ) -> None:
        """Keep a response.

        Args:
            tenant: Whose it is.
            response_id: The id that the client knows.
            asked: The client's request, what it continues included.
            output: The items that the client saw.
        """
        texts = (*_input_texts(asked), *(dumps(item) for item in output))
        self._drop((tenant, response_id))
        self._items[tenant, response_id] = texts
        self._size += sum(map(len, texts))
        while len(self._items) > self._most or self._size > self._most_bytes:
            self._drop(next(iter(self._items)))

    def resume(self, tenant: str, request: Request) -> Request:
        """Return a request with the history of the response that it continues, if that is kept.

        Args:
            tenant: Whose request it is.
            request: The client's; unchanged where there is nothing to put into it.
        """
        previous = request.body.get("previous_response_id")
        texts = self._items.get((tenant, previous)) if isinstance(previous, str) else None
        if texts is None:
            return request
        self._items.move_to_end((tenant, str(previous)))
        resumed = restore(request, [Insertion(0, texts)] if texts else [])
        text = drop_members(resumed.text, resumed.body, ["previous_response_id"])
        body = {key: one for key, one in resumed.body.items() if key != "previous_response_id"}
        return Request(text, body)

    def _drop(self, key: tuple[str, str]) -> None:
        self._size -= sum(map(len, self._items.pop(key, ())))


def _input_texts(request: Request) -> list[bytes]:
    request = with_array_input(request)
    text = request.text
    spans = member_elements(text, document_span(text).start, request.body, "input")
    return [text[start:end] for start, end in spans]
