"""``/v1/responses/{id}``: what the provider stores, as the client saw it.

Of a response that consulted memory the provider stores one for each hop, with the hidden calls in
them. A client that asks for the id it knows gets them as the one that it saw; what it deletes or
cancels is deleted or cancelled for every hop. Any other response is the provider's own, but our
tools may be declared in it, and hidden items of earlier turns are part of its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from pipeline import jsontext
from pipeline.errors import RequestError, UpstreamError
from pipeline.shown import shown_response
from pipeline.usage import add_usage
from proxy import headers as h
from proxy.answer import Answer
from proxy.disclosure import StoredStream, after
from proxy.upstream import UpstreamRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.limits import Limits
    from proxy.disclosure import Disclosure
    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.upstreams import Endpoint
    from recall.ledger import ResponseIds

    Json = dict[str, Any]

_BODY_BYTES: Final = 64 * 1024 * 1024
_INPUT_ITEMS: Final = b"/input_items"
_LONE: Final = frozenset(
    {("GET", b""), ("DELETE", b""), ("POST", b"/cancel"), ("GET", _INPUT_ITEMS)}
)
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
        disclosure: What of it its client may see.
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
        disclosure: Disclosure,
    ) -> None:
        self._cleanse = cleanse
        self._disclosure = disclosure
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
                worst = self._worst(answers)
                body = worst.body
                if worst.status < 300:
                    body = await self._disclosure.response(body, self._disclosure.names)
                await self._tell(_Answer(worst.status, worst.headers, body), channel)
            case "GET", b"/input_items":
                await self._tell(await self._input_items(query), channel)
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
        await self._tell(_with_value(answers[-1], await self._joined(hops)), channel)

    async def _input_items(self, query: bytes) -> _Answer:
        """Return what the client sent: the input of the first hop."""
        disclosure, first = self._disclosure, self._behind.hops[0]
        answer = await self._ask("GET", first, query)
        while answer.status < 300:
            page, more = await disclosure.page(answer.body, disclosure.names)
            if more is None or query == (further := after(query, more)):
                return _Answer(answer.status, answer.headers, page)
            answer = await self._ask("GET", first, query := further)
        return answer

    async def _joined(self, hops: list[Json]) -> Json:
        """Return the responses of all hops as one.

        Which tools were ours their declarations say, else the hidden calls that are known; and
        where neither does, each that is named like one: something was hidden here.
        """
        disclosure = self._disclosure
        items = [item for hop in hops for item in hop["output"]]
        concealed = await disclosure.concealed(items)
        declared = {name for hop in hops for name in disclosure.declared_in(hop)}
        names = declared | concealed.names(items) or disclosure.names
        concealed = await disclosure.concealed(items, names)
        usage: Json | None = None
        for hop in hops:
            reported = hop.get("usage")
            usage = add_usage(usage, reported if isinstance(reported, dict) else None)
        whole: Json = dict(hops[-1])
        whole |= {name: hops[0][name] for name in _OF_FIRST if name in hops[0]}
        whole["id"] = self._public_id
        whole["output"] = items
        whole["usage"] = usage
        _, shown = shown_response(
            jsontext.dumps(whole),
            whole,
            names=names,
            concealed=concealed,
            continues=await disclosure.continues(whole),
        )
        return shown

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
    return _Answer(answer.status, answer.headers, jsontext.dumps(value))


class LoneResponse:
    """A response of which no call was hidden: the provider's own, without what we declared.

    Args:
        disclosure: What of it its client may see.
        rest: What follows the id in the path.
        endpoint: The provider.
        headers: What goes to it.
        limits: How much of it is looked into.
        cleanse: Takes our own secrets out of an error.
    """

    def __init__(
        self,
        disclosure: Disclosure,
        rest: bytes,
        *,
        endpoint: Endpoint,
        headers: Headers,
        limits: Limits,
        cleanse: Callable[[bytes], bytes],
    ) -> None:
        self._disclosure = disclosure
        self._rest = rest
        self._endpoint = endpoint
        self._headers = headers
        self._limits = limits
        self._cleanse = cleanse

    @staticmethod
    def answers(method: str, rest: bytes) -> bool:
        """Tell whether a request has an answer in which anything of ours may stand."""
        return (method, rest) in _LONE

    async def answer(self, method: str, raw_path: bytes, query: bytes, channel: Channel) -> None:
        """Answer one request about it.

        Raises:
            UpstreamError: The provider was not there.
        """
        answer = await self._ask(method, raw_path, query)
        try:
            kind = (answer.content_type or "").partition(";")[0].strip().lower()
            if not answer.successful:
                await answer.cleanse(self._cleanse, limit=self._limits.error_bytes)
                await self._pass_on(answer, channel)
            elif kind == "text/event-stream":
                await self._stream(answer, channel)
            else:
                body = await self._shown(answer, method, raw_path, query)
                await _send_whole(answer, body, channel)
        finally:
            await answer.close()

    async def _ask(self, method: str, raw_path: bytes, query: bytes) -> Answer:
        url = self._endpoint.url(raw_path, query)
        response = await self._endpoint.open(UpstreamRequest(method, url, self._headers))
        answer = Answer(response)
        if answer.successful:
            answer.decode(limit=_BODY_BYTES)
        return answer

    async def _shown(self, answer: Answer, method: str, raw_path: bytes, query: bytes) -> bytes:
        body = await answer.read_all(_BODY_BYTES)
        if self._rest != _INPUT_ITEMS:
            return await self._disclosure.response(body)
        page, more = await self._disclosure.page(body)
        while more is not None:
            following = await self._ask(method, raw_path, after(query, more))
            try:
                if not following.successful:
                    break
                page, newer = await self._disclosure.page(await following.read_all(_BODY_BYTES))
            finally:
                await following.close()
            more = newer if newer != more else None
        return page

    async def _stream(self, answer: Answer, channel: Channel) -> None:
        limits = self._limits
        stream = StoredStream(
            self._disclosure, event_bytes=limits.event_bytes, frames=limits.frames
        )
        await channel.start(answer.status, _without_length(answer.headers))
        while (data := await answer.read()) is not None:
            if shown := await stream.feed(data):
                await channel.send(shown, more=True)
        await channel.send(await stream.feed(None), more=False)

    async def _pass_on(self, answer: Answer, channel: Channel) -> None:
        await channel.start(answer.status, h.to_client(answer.headers))
        while (data := await answer.read()) is not None:
            await channel.send(data, more=True)
        await channel.send(b"", more=False)


async def _send_whole(answer: Answer, body: bytes, channel: Channel) -> None:
    headers = _without_length(answer.headers)
    headers.append((b"content-length", str(len(body)).encode()))
    await channel.start(answer.status, headers)
    await channel.send(body, more=False)


def _without_length(headers: Headers) -> Headers:
    return [one for one in h.to_client(headers) if one[0].lower() != b"content-length"]
