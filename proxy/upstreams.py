"""The providers: which one a request goes to, under which URL, with which credential."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from proxy.dial import tls_context
from proxy.providers.kinds import KINDS, authorize, find_key, make_provider, root_of
from proxy.upstream import Transport, UpstreamRequest

if TYPE_CHECKING:
    import ssl

    from proxy.config import Config, UpstreamConfig
    from proxy.headers import Headers
    from proxy.providers.base import ProviderRequest
    from proxy.upstream import UpstreamResponse

_PREFIX: Final = re.compile(rb"\A(?:/v1/codex|/backend-api/codex|/v1)?(/.*|)\Z", re.DOTALL)
_CODEX_PREFIXES: Final = (b"/v1/codex/", b"/backend-api/codex/")
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
        kind, base_url = config.kind, config.base_url
        self.provider = make_provider(
            kind, base_url, think=config.think, keep_alive=config.keep_alive
        )
        self._root = root_of(kind, base_url)
        key = config.credential
        self._key = find_key(
            kind,
            base_url,
            configured=None if key is None else key.get_secret_value(),
            environ=os.environ,
        )
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
        if KINDS[self.config.kind].endings:  # their base URL ends in front of the version
            url = self._root.encode() + b"/v1" + rest
        return url + b"?" + query if query else url

    def url_of(self, encoded: ProviderRequest, raw_path: bytes, query: bytes) -> bytes:
        """Return where a turn's request goes: by its own path where it was translated."""
        if self.provider.translates:
            return self._root.encode() + encoded.path
        return self.url(raw_path, query)

    def authorize(self, headers: Headers) -> Headers:
        """Put the credential that it gets in the place of the client's.

        Raises:
            UpstreamError: 401: it needs a key, and there is none.
        """
        config = self.config
        return authorize(self.provider, config.base_url, headers, key=self._key, name=config.name)

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
