"""What of a provider's stored responses a tenant may see: the ledger asked, the answer edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from pipeline import jsontext
from pipeline.history import keys_if_hidden
from pipeline.shown import Concealed, declared_names, shown_response
from pipeline.sse import Fragment, SSEDecoder, encode_event

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pipeline.jsonspans import Json
    from pipeline.request import HiddenTool
    from recall.joins import Joins


class Disclosure:
    """Edits what a provider stores into what its client may see.

    Args:
        joins: What turns left.
        tenant: Whose responses they are.
        tools: Every tool that we may have declared.
    """

    def __init__(self, joins: Joins, tenant: str, tools: Sequence[HiddenTool]) -> None:
        self._joins = joins
        self._tenant = tenant
        self._tools = tools

    def __repr__(self) -> str:
        return f"<Disclosure to {self._tenant}>"

    @property
    def names(self) -> frozenset[str]:
        """What our tools are named."""
        return frozenset(tool.name for tool in self._tools)

    def declared_in(self, response: dict[str, Any]) -> set[str]:
        """Return the names of our tools that a response was offered."""
        return declared_names(response, self._tools)

    async def concealed(self, items: Iterable[Json], names: Collection[str] = ()) -> Concealed:
        """Return what is hidden of items: what the ledger knows, and calls of these names."""
        keys = keys_if_hidden(items)
        groups = await self._joins.find_groups(self._tenant, keys) if keys else []
        return Concealed(groups, names)

    async def continues(self, response: dict[str, Any]) -> tuple[str, str] | None:
        """Return the id of the response before one as the client knows it, and the provider's.

        None where they are the same, or where there is none.
        """
        sent = response.get("previous_response_id")
        if not isinstance(sent, str):
            return None
        known = await self._joins.find_public_id(self._tenant, sent)
        return None if known is None else (known, sent)

    async def response(self, data: bytes, names: Collection[str] = ()) -> bytes:
        """Return the body of a response as it is stored, as its client may see it.

        Args:
            data: The body.
            names: What tools of ours are named that it is known to have been offered.
        """
        value = _object(data)
        if value is None:
            return data
        output = value.get("output")
        declared = self.declared_in(value).union(names)
        shown, _ = shown_response(
            data,
            value,
            names=declared,
            concealed=await self.concealed(output if isinstance(output, list) else (), declared),
            continues=await self.continues(value),
        )
        return shown

    async def page(self, data: bytes, names: Collection[str] = ()) -> tuple[bytes, str | None]:
        """Return a page of input items without hidden ones.

        Args:
            data: The page.
            names: Calls of these names are hidden, whatever the ledger says.

        Returns:
            The page; and where it is empty, so that a client would take it for the last one, the
            id behind which the provider has more.
        """
        value = _object(data)
        items = None if value is None else value.get("data")
        if value is None or not isinstance(items, list):
            return data, None
        shown, page = (await self.concealed(items, names)).shown(data, value, "data")
        if page is value:
            return data, None
        ids = [item.get("id") for item in page["data"] if isinstance(item, dict)]
        edges = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
        changes = {
            key: jsontext.dumps(edge)
            for key, edge in edges.items()
            if key in page and page[key] != edge
        }
        more = None
        if not ids and value.get("has_more") is True and isinstance(items[-1], dict):
            more = items[-1].get("id")
        shown = jsontext.set_members(shown, page, changes) if changes else shown
        return shown, more if isinstance(more, str) else None


class StoredStream:
    """A stored response that is streamed once more.

    Args:
        disclosure: What of it may be seen.
        event_bytes: The largest event that is looked into.
        frames: How many events.
    """

    def __init__(self, disclosure: Disclosure, *, event_bytes: int, frames: int) -> None:
        self._disclosure = disclosure
        self._decoder = SSEDecoder(event_bytes=event_bytes, frames=frames, relay_oversize=True)

    async def feed(self, data: bytes | None) -> bytes:
        """Return what of it can go on; None ends it."""
        decoder = self._decoder
        frames = decoder.finish() if data is None else decoder.feed(data)
        out: list[bytes] = []
        for frame in frames:
            if isinstance(frame, Fragment) or not frame.data:
                out.append(frame.raw)
                continue
            out.append(await self._shown(frame.raw, frame.event, frame.data))
        return b"".join(out)

    async def _shown(self, raw: bytes, name: str | None, data: bytes) -> bytes:
        event = _object(data)
        response = None if event is None else event.get("response")
        if event is None or not isinstance(response, dict):
            return raw
        text = jsontext.dumps(response)
        shown = await self._disclosure.response(text)
        if shown is text:
            return raw
        whole = jsontext.set_members(data, event, {"response": shown})
        return encode_event(str(event.get("type") or name), whole)


def after(query: bytes, identity: str) -> bytes:
    """Return the query for the page behind an item."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    kept = [(name, value) for name, value in pairs if name != "after"]
    return urlencode([*kept, ("after", identity)]).encode()


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = jsontext.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
