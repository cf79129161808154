"""How a turn's requests are put to an upstream, and how its answers are read.

Which upstream that is, the router finds out: until one has answered, a turn's request may be put
to several, to each in its own dialect, under its own model name, with its own credential.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Unpack

from pipeline import jsontext
from pipeline.reader_around import ReaderAround
from pipeline.sse import Fragment, Frame, encode_event
from proxy import headers as h
from proxy.chat.native import encoding
from proxy.chat.reading import CHAT_KIND, chat_reader
from proxy.providers.kinds import make_provider
from proxy.upstream import UpstreamRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.limits import Limits
    from pipeline.reader import Reader, ReaderFactory, Reading, StreamMode
    from pipeline.request import Request
    from proxy.chat.native import NativeRequest
    from proxy.providers.base import ProviderRequest
    from proxy.route import Route
    from proxy.services import Services
    from proxy.turns import Exchange
    from proxy.upstreams import Endpoint


class Speech:
    """Puts the requests of one turn, and reads what is answered.

    Args:
        services: What the process owns.
        exchange: The client's request.

    Attributes:
        rewritten: The requests are no longer what the client wrote with something added.
    """

    def __init__(self, services: Services, exchange: Exchange) -> None:
        self.rewritten = False
        self._services = services
        self._exchange = exchange
        self._told: set[str] = set()

    def meant(self, _: Endpoint, request: Request, /) -> Request:
        """Return what an upstream is asked where a turn asks this."""
        return request

    def encode(self, endpoint: Endpoint, request: Request, mode: StreamMode) -> UpstreamRequest:
        """Return a hop's request as it is put to an upstream.

        Raises:
            RequestError: It requires what the upstream lacks.
            UpstreamError: The upstream needs a key, and there is none.
        """
        exchange = self._exchange
        if self.renames(endpoint):
            request = request.with_members({"model": endpoint.config.model})
        native = exchange.native
        if native is not None and not self.rewritten and native.suits(endpoint.config.kind):
            return self._as_it_came(endpoint, native, request, mode)
        if native is not None and native.refusal is not None:
            raise native.refusal.at([endpoint.config.kind])
        encoded = endpoint.provider.encode(request, mode)
        if endpoint.name not in self._told:  # once for a turn: its hops repeat what they offer
            self._told.add(endpoint.name)
            self._tell(endpoint, encoded)
        return UpstreamRequest(
            "POST",
            endpoint.url_of(encoded, exchange.raw_path, exchange.query),
            h.replaced(endpoint.authorize(self._headers(endpoint)), encoded.headers),
            encoded.body,
        )

    def _headers(self, endpoint: Endpoint) -> h.Headers:
        """Return what an upstream gets of the client's headers."""
        headers, via = self._exchange.headers, self._services.via
        if endpoint.provider.translates:
            return h.to_translated(headers, via=via)
        return h.to_upstream(headers, body_decoded=True, via=via)

    def _tell(self, endpoint: Endpoint, encoded: ProviderRequest) -> None:
        """Count what the upstream does without."""
        native = self._exchange.native
        left_out = encoded.left_out
        if native is not None and native.left_out:
            left_out = Counter(left_out) + Counter(native.left_out)
        if left_out:
            self._services.metrics.left_out(endpoint.config.kind, left_out.items())

    def _as_it_came(
        self, endpoint: Endpoint, native: NativeRequest, request: Request, mode: StreamMode
    ) -> UpstreamRequest:
        """Return the request of a chat client for an upstream that serves chat completions."""
        provider = make_provider(CHAT_KIND, endpoint.config.base_url)
        body = native.put(request, encoding(lambda asked: provider.encode(asked, mode).body))
        headers = h.to_upstream(self._exchange.headers, body_decoded=True, via=self._services.via)
        url = endpoint.url(native.raw_path, self._exchange.query)
        return UpstreamRequest("POST", url, endpoint.authorize(headers), body)

    def same_dialect(self, endpoint: Endpoint) -> bool:
        """Say whether an upstream speaks as the client does."""
        native = self._exchange.native
        if native is not None:
            return native.suits(endpoint.config.kind)
        return not endpoint.provider.translates

    def renames(self, endpoint: Endpoint) -> bool:
        """Say whether an upstream is asked for another model than the client's."""
        model = endpoint.config.model
        return model is not None and model != self._exchange.request.body.get("model")

    def reader(
        self,
        endpoint: Endpoint,
        request: Request,
        mode: StreamMode,
        limits: Limits,
        **how: Unpack[Reading],
    ) -> Reader:
        """Return a reader for an upstream's answer; see ``pipeline.reader.ReaderFactory``."""
        created_at = int(self._exchange.started)
        if self._exchange.native is not None and self.same_dialect(endpoint):
            return chat_reader(request, mode, limits, created_at=created_at, **how)
        return endpoint.provider.reader(request, mode, limits, created_at=created_at, **how)

    def reader_of(self, route: Route) -> ReaderFactory:
        """Return what makes readers for the answers that come along a route."""

        def make(
            request: Request, mode: StreamMode, limits: Limits, /, **how: Unpack[Reading]
        ) -> Reader:
            made: dict[str, Reader] = {}  # whoever was asked and answers needs no second one

            def bound() -> Reader:
                endpoint = route.endpoint
                if endpoint.name not in made:
                    reader = self.reader(endpoint, request, mode, limits, **how)
                    renames = self.renames(endpoint)
                    made[endpoint.name] = RenamingReader(reader) if renames else reader
                return made[endpoint.name]

            # Where only one can answer, it is known beforehand who will.
            return bound() if len(route.line) == 1 else RoutedReader(how["phase"], bound)

        return make


class RenamingReader(ReaderAround):
    """Reads what an upstream answers that was asked for another model than the client's.

    Its responses may repeat the headers of the answer. Clients take another model than theirs in
    ``openai-model`` for an alarm, so it is taken out there as well.
    """

    def told(self, frames: list[Frame | Fragment]) -> list[Frame | Fragment]:
        """Return frames without the model in the headers that they repeat."""
        return [_without_model(frame) for frame in frames]


def _without_model(frame: Frame | Fragment) -> Frame | Fragment:
    if isinstance(frame, Fragment) or b'"headers"' not in (frame.data or b""):
        return frame
    data = frame.data or b""
    try:
        event = jsontext.loads(data)
    except ValueError:
        return frame
    match event:
        case {"response": {"headers": dict() as headers}}:
            gone = [name for name in headers if name.lower() == "openai-model"]
        case _:
            gone = []
    if not gone:
        return frame
    told = jsontext.drop_members(data, event, gone, ("response", "headers"))
    kind = str(frame.event or event.get("type") or "")
    raw = told if frame.raw == data else encode_event(kind, told)
    return Frame(raw, frame.event, told, sound=True)


class RoutedReader(ReaderAround):
    """Reads the answer of whatever upstream gives it: its head is there before it is read.

    Args:
        phase: What the messages of errors begin with.
        make: Returns a reader of the upstream that answers by now.
    """

    def __init__(self, phase: str, make: Callable[[], Reader]) -> None:
        super().__init__(make())
        self.phase = phase
        self._make = make

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head, None where the header is absent."""
        self._reader = self._make()
        super().head(content_type)
