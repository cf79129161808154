"""The providers: which one a request goes to, under which URL, with which credential.

A client's credential was presented for one provider: the first of the sort that its request goes
to. No other provider ever gets it.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pipeline.errors import UpstreamError
from proxy.dial import tls_context
from proxy.providers.kinds import KINDS, authorize, find_key, make_provider, root_of
from proxy.upstream import Transport, UpstreamRequest

if TYPE_CHECKING:
    from proxy.config import Config
    from proxy.config_tables import UpstreamConfig
    from proxy.headers import Headers
    from proxy.httpx_transport import HttpxTransport
    from proxy.providers.base import ProviderRequest
    from proxy.upstream import UpstreamResponse, UpstreamTransport

_PREFIX: Final = re.compile(rb"\A(?:/v1/codex|/backend-api/codex|/v1)?(/.*|)\Z", re.DOTALL)
_CODEX_PREFIXES: Final = (b"/v1/codex/", b"/backend-api/codex/")
_PERSONAL: Final = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"chatgpt-account-id",
        b"cookie",
        b"openai-organization",
        b"openai-project",
    }
)
"""What belongs to the client's account at the provider for which its credential was presented."""
_NO_BOUND: Final = 1 << 20


def is_codex_path(raw_path: bytes) -> bool:
    """Say whether a path is one of the ChatGPT-style ones."""
    return raw_path.startswith(_CODEX_PREFIXES)


def _tls(config: UpstreamConfig) -> ssl.SSLContext | None:
    """Return what TLS is checked with, None for the system's authorities."""
    if config.ca_file is None and config.cert_file is None:
        return None
    return tls_context(ca_file=config.ca_file, certificate=config.cert_file, key=config.key_file)


def _transport_class(config: UpstreamConfig) -> type[Transport | HttpxTransport]:
    """Return what sends its requests; called at start, as importing httpx takes its time."""
    if config.transport == "own":
        return Transport
    from proxy.httpx_transport import HttpxTransport  # noqa: PLC0415 - only where it is wanted

    return HttpxTransport


class Endpoint:
    """One provider. Its transport is made when it is first asked for anything.

    Args:
        config: Its configuration.
        presented: Whether clients present their credentials for this one.

    Attributes:
        name: Its configured name.
    """

    def __init__(self, config: UpstreamConfig, *, presented: bool) -> None:
        self.config = config
        self.name = config.name
        self.presented = presented
        kind, base_url = config.kind, config.base_url
        self.provider = make_provider(
            kind, base_url, think=config.think, keep_alive=config.keep_alive
        )
        self._transport_class = _transport_class(config)
        self._root = root_of(kind, base_url).encode()
        # Where the base URL ends in front of the version, the paths of clients bring it.
        versioned = bool(KINDS[kind].endings)
        self._base = self._root + b"/v1" if versioned else base_url.rstrip("/").encode()
        key = config.credential
        self._key = find_key(
            kind,
            base_url,
            configured=None if key is None else key.get_secret_value(),
            environ=os.environ,
        )

    def __repr__(self) -> str:
        return f"<Endpoint {self.config.name} {self.config.kind}>"

    @property
    def has_key(self) -> bool:
        """Whether we have a key for it, which then goes in the place of the client's."""
        return self._key is not None

    @property
    def may_take_over(self) -> bool:
        """Whether it can take a request whose credential was not presented for it."""
        return self.has_key or self.config.kind == "ollama"

    @cached_property
    def transport(self) -> UpstreamTransport:
        """The connections to it.

        Raises:
            UpstreamError: Its certificates can't be read.
        """
        config = self.config
        try:
            tls = _tls(config)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise UpstreamError(
                f"upstream {config.name} can't be used: its certificates can't be read",
                status=500,
            ) from error
        return self._transport_class(
            max_connections=config.max_connections or _NO_BOUND,
            head_seconds=config.timeout_ms / 1000,
            tls=tls,
        )

    def url(self, raw_path: bytes, query: bytes) -> bytes:
        """Return where a request goes: the base URL and what follows our prefix, as it came."""
        match = _PREFIX.match(raw_path)
        rest = match[1] if match is not None else raw_path
        return b"%b%b?%b" % (self._base, rest, query) if query else self._base + rest

    def url_of(self, encoded: ProviderRequest, raw_path: bytes, query: bytes) -> bytes:
        """Return where a turn's request goes: by its own path where it was translated."""
        if self.provider.translates:
            return self._root + encoded.path
        return self.url(raw_path, query)

    def authorize(self, headers: Headers) -> Headers:
        """Give a request the credential that this provider may see.

        That is our own key for it, where there is one, else the client's if it was presented for
        this provider, else none.

        Raises:
            UpstreamError: 401: it needs a key, and there is none.
        """
        if not self.presented:
            headers = [one for one in headers if one[0].lower() not in _PERSONAL]
        config = self.config
        return authorize(self.provider, config.base_url, headers, key=self._key, name=config.name)

    def caller(self, headers: Headers) -> str | None:
        """Name the client whose credential is used; None where it is our own key.

        Args:
            headers: The client's.
        """
        if self.has_key or not self.presented:
            return None
        personal = sorted(
            [(name, value) for one, value in headers if (name := one.lower()) in _PERSONAL]
        )
        told = [b"%d %b %d %b" % (len(name), name, len(value), value) for name, value in personal]
        return hashlib.blake2b(b"".join(told), digest_size=16).hexdigest()

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request; return its answer at the head.

        Raises:
            UpstreamError: It was refused, reset, had no head in time, or can't be used at all.
        """
        return await self.transport.open(request)

    async def close(self) -> None:
        """Close its connections, if there ever were any."""
        if "transport" in self.__dict__:
            await self.transport.close()


class Upstreams:
    """All providers, and which of them a request may go to."""

    def __init__(self, config: Config) -> None:
        groups = {codex: config.upstreams_for(codex=codex) for codex in (True, False)}
        meant = {group[0].name for group in groups.values()}
        self._endpoints = {
            one.name: Endpoint(one, presented=one.name in meant) for one in config.upstream
        }
        self._groups = {
            codex: tuple(self._endpoints[one.name] for one in group)
            for codex, group in groups.items()
        }

    def __repr__(self) -> str:
        return f"<Upstreams {list(self._endpoints.values())}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Their configured names."""
        return tuple(self._endpoints)

    def group(self, *, codex: bool) -> tuple[Endpoint, ...]:
        """Return the providers for a request, in the order of the configuration; never empty.

        Args:
            codex: It came on a Codex path or with a ``chatgpt-account-id``.
        """
        return self._groups[codex]

    def choose(self, *, codex: bool) -> Endpoint:
        """Return the provider that a request is meant for."""
        return self._groups[codex][0]

    async def close(self) -> None:
        """Close all connections."""
        for endpoint in self._endpoints.values():
            await endpoint.close()
