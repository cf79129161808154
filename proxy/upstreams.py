"""The providers: which one a request goes to, under which URL, with which credential."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from proxy.dial import tls_context
from proxy.upstream import Transport, UpstreamRequest

if TYPE_CHECKING:
    import ssl

    from proxy.config import Config, UpstreamConfig
    from proxy.headers import Headers
    from proxy.upstream import UpstreamResponse

_PREFIX: Final = re.compile(rb"\A(?:/v1/codex|/backend-api/codex|/v1)?(/.*|)\Z", re.DOTALL)
_CODEX_PREFIXES: Final = (b"/v1/codex/", b"/backend-api/codex/")
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"chatgpt-account-id"})
_NO_BOUND: Final = 1 << 20


def is_codex_path(raw_path: bytes) -> bool:
    """Say whether a path is one of the ChatGPT-style ones."""
    return raw_path.startswith(_CODEX_PREFIXES)


def _tls(config: UpstreamConfig) -> ssl.SSLContext | None:
    """Return what TLS is checked with, None for the system's authorities."""
    if config.ca_file is None and config.cert_file is None:
        return None
    return tls_context(ca_file=config.ca_file, certificate=config.cert_file, key=config.key_file)


class Endpoint:
    """One provider.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        self.config = config
        self.transport = Transport(
            max_connections=config.max_connections or _NO_BOUND,
            head_seconds=config.timeout_ms / 1000,
            tls=_tls(config),
        )

    def __repr__(self) -> str:
        return f"<Endpoint {self.config.name} {self.config.kind}>"

    def url(self, raw_path: bytes, query: bytes) -> bytes:
        """Return where a request goes: the base URL and what follows our prefix, as it came."""
        match = _PREFIX.match(raw_path)
        rest = match[1] if match is not None else raw_path
        url = self.config.base_url.rstrip("/").encode() + rest
        return url + b"?" + query if query else url

    def authorize(self, headers: Headers) -> Headers:
        """Put the configured key, where there is one, in the place of the client's credential."""
        credential = self.config.credential
        if credential is None:
            return headers
        kept = [one for one in headers if one[0].lower() not in _CREDENTIALS]
        return [*kept, (b"authorization", f"Bearer {credential.get_secret_value()}".encode())]

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request; return its answer at the head.

        Raises:
            UpstreamError: It was refused, reset, or had no head in time.
        """
        return await self.transport.open(request)


class Upstreams:
    """All providers, and which of them a request goes to."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._endpoints = {one.name: Endpoint(one) for one in config.upstream}

    def choose(self, *, codex: bool) -> Endpoint:
        """Return the provider for a request.

        Args:
            codex: It came on a Codex path or with a ``chatgpt-account-id``.
        """
        return self._endpoints[self._config.upstream_for(codex=codex).name]

    async def close(self) -> None:
        """Close all connections."""
        for endpoint in self._endpoints.values():
            await endpoint.transport.close()
