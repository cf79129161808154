"""``/v1/responses/{id}`` of a response that consulted memory: made of several, shown as one.

The provider stores one response for each hop, with the hidden calls in it. A client that asks for
the id it knows gets them as the one that it saw; what it deletes or cancels is deleted or
cancelled for every hop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard
from urllib.parse import parse_qs

from pipeline import jsontext
from pipeline.errors import RequestError, UpstreamError
from pipeline.usage import add_usage
from proxy import headers as h
from proxy.services import RECALL
from proxy.upstream import UpstreamRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.upstreams import Endpoint
    from recall.ledger import ResponseIds

    Json = dict[str, Any]

_BODY_BYTES: Final = 64 * 1024 * 1024
_OF_FIRST: Final = ("created_at", "previous_response_id", "max_output_tokens", "tool_choice")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Headers
    body: bytes

    @property
    def value(self) -> Any:
        try:
            return jsontext.loads(self.body)
        except ValueError:
            return None


class StoredResponse:
    """One response as its client knows it.

    Args:
        public_id: The id that the client knows.
        behind: The upstream's ids.
        rest: What follows the id in the path: empty, ``/input_items``, ``/cancel``.
        endpoint: The provider.
        headers: What goes to it.
        prefix: The path up to the id.
        cleanse: Takes our own secrets out of an error.
    """

    def __init__(
        self,
        public_id: str,
        behind: ResponseIds,
        rest: bytes,
        *,
        endpoint: Endpoint,
        headers: Headers,
        prefix: bytes,
        cleanse: Callable[[bytes], bytes],
    ) -> None:
        self._cleanse = cleanse
        self._public_id = public_id
        self._behind = behind
        self._rest = rest
        self._endpoint = endpoint
        self._headers = headers
        self._prefix = prefix

    async def answer(self, method: str, query: bytes, channel: Channel) -> None:
        """Answer one request about it.

        Raises:
            RequestError: It asks for what a spliced response can't give.
            UpstreamError: The provider was not there.
        """
        match method, self._rest:
            case "GET", b"":
                if parse_qs(query.decode("latin-1")).get("stream") == ["true"]:
                    raise RequestError(
                        "this response consulted memory, so its stream can't be resumed: fetch it "
                        "without stream=true",
                        code="unsupported_parameter",
                    )
                await self._show(await self._of_each_hop("GET", query), channel)
            case "POST", b"/cancel":
                await self._show(await self._of_each_hop("POST", query), channel)
            case "DELETE", b"":
                answers = await self._of_each_hop("DELETE", query)
                await self._tell(self._worst(answers), channel)
            case "GET", b"/input_items":
                # What the client sent is the input of the first hop.
                answer = await self._ask("GET", self._behind.hops[0], query)
                await self._tell(_with_value(answer, _without_hidden_page(answer.value)), channel)
            case _:
                raise RequestError(
                    f"{method} is not served for a response that consulted memory",
                    status=405,
                    code="method_not_allowed",
                )

    async def _of_each_hop(self, method: str, query: bytes) -> list[_Answer]:
        return [await self._ask(method, hop, query) for hop in self._behind.hops]

    async def _ask(self, method: str, hop: str, query: bytes) -> _Answer:
        path = self._prefix + hop.encode() + self._rest
        url = self._endpoint.url(path, query)
        response = await self._endpoint.open(UpstreamRequest(method, url, self._headers))
        try:
            response.decode(limit=_BODY_BYTES)
            body = await response.read_body(_BODY_BYTES)
        finally:
            await response.close()
        if response.status >= 300:
            body = self._cleanse(body)
        return _Answer(response.status, response.headers, body)

    async def _show(self, answers: list[_Answer], channel: Channel) -> None:
        """Show the responses of all hops as the one that the client saw."""
        worst = self._worst(answers)
        if worst.status >= 300:
            await self._tell(worst, channel)
            return
        hops = [answer.value for answer in answers]
        if not all(isinstance(hop, dict) and isinstance(hop.get("output"), list) for hop in hops):
            raise UpstreamError("the upstream's stored response can't be read")
        await self._tell(_with_value(answers[-1], self._joined(hops)), channel)

    def _joined(self, hops: list[Json]) -> Json:
        usage: Json | None = None
        for hop in hops:
            reported = hop.get("usage")
            usage = add_usage(usage, reported if isinstance(reported, dict) else None)
        whole: Json = dict(hops[-1])
        whole |= {name: hops[0][name] for name in _OF_FIRST if name in hops[0]}
        whole["id"] = self._public_id
        whole["output"] = [item for hop in hops for item in _visible(hop["output"])]
        whole["usage"] = usage
        if isinstance(whole.get("tools"), list):
            whole["tools"] = [t for t in whole["tools"] if not _is_named(t)]
        return whole

    @staticmethod
    def _worst(answers: list[_Answer]) -> _Answer:
        """Return the first answer that is an error, else the last."""
        return next((one for one in answers if one.status >= 300), answers[-1])

    async def _tell(self, answer: _Answer, channel: Channel) -> None:
        """Send an answer under the id that the client knows."""
        body = answer.body
        for hop in self._behind.hops:
            body = body.replace(hop.encode(), self._public_id.encode())
        dropped = {b"content-length", b"content-encoding"}
        headers = [one for one in h.to_client(answer.headers) if one[0].lower() not in dropped]
        headers.append((b"content-length", str(len(body)).encode()))
        await channel.start(answer.status, headers)
        await channel.send(body, more=False)


def _with_value(answer: _Answer, value: object) -> _Answer:
    return (
        answer if value is None else _Answer(answer.status, answer.headers, jsontext.dumps(value))
    )


def _without_hidden_page(page: object) -> Json | None:
    """Return a page of input items without hidden pairs of earlier turns."""
    if not isinstance(page, dict) or not isinstance(page.get("data"), list):
        return None
    items = _visible(page["data"])
    ids = [item["id"] for item in items if isinstance(item, dict) and "id" in item]
    edges = {"first_id": ids[0], "last_id": ids[-1]} if ids else {}
    return {**page, "data": items, **{k: v for k, v in edges.items() if k in page}}


def _visible(items: list[Any]) -> list[Any]:
    hidden = {item.get("call_id") for item in items if _is_call(item)}
    return [
        item
        for item in items
        if not _is_call(item) and not (_is_output(item) and item.get("call_id") in hidden)
    ]


def _is_named(value: object) -> TypeGuard[Json]:
    return isinstance(value, dict) and value.get("name") == RECALL.name


def _is_call(item: object) -> bool:
    return _is_named(item) and str(item.get("type")).endswith("_call")


def _is_output(item: object) -> bool:
    return isinstance(item, dict) and str(item.get("type")).endswith("_call_output")
