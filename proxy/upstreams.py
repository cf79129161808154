"""The providers: which one a request goes to, under which URL, with which credential.

A client's credential was presented for one provider: the first of the sort that its request goes
to. No other provider ever gets it.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pipeline.errors import RequestError, UpstreamError
from proxy.dial import tls_context
from proxy.upstream import Transport, UpstreamRequest

if TYPE_CHECKING:
    from proxy.config import Config, UpstreamConfig
    from proxy.headers import Headers
    from proxy.upstream import UpstreamResponse

_PREFIX: Final = re.compile(rb"\A(?:/v1/codex|/backend-api/codex|/v1)?(/.*|)\Z", re.DOTALL)
_CODEX_PREFIXES: Final = (b"/v1/codex/", b"/backend-api/codex/")
_CREDENTIALS: Final = frozenset(
    {b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"chatgpt-account-id"}
)
_PERSONAL: Final = _CREDENTIALS | {b"cookie", b"openai-organization", b"openai-project"}
"""What belongs to the client's account at the provider for which its credential was presented."""
_KEYLESS_KINDS: Final = frozenset({"ollama"})
_KEYED_KINDS: Final = frozenset({"anthropic"})
_KEYED_HOSTS: Final = frozenset({"api.openai.com"})
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
    """One provider. Its transport is made when it is first asked for anything.

    Args:
        config: Its configuration.
        presented: Whether clients present their credentials for this one.
    """

    def __init__(self, config: UpstreamConfig, *, presented: bool) -> None:
        self.config = config
        self.presented = presented

    def __repr__(self) -> str:
        return f"<Endpoint {self.config.name} {self.config.kind}>"

    @property
    def name(self) -> str:
        """Its configured name."""
        return self.config.name

    @property
    def has_key(self) -> bool:
        """Whether a key is configured, which then goes in the place of the client's."""
        return self.config.credential is not None

    @property
    def may_need_key(self) -> bool:
        """Whether providers of its kind can ask for a key."""
        return self.config.kind not in _KEYLESS_KINDS

    @property
    def requires_key(self) -> bool:
        """Whether it is known to answer nobody without one."""
        host = urlsplit(self.config.base_url).hostname
        return self.config.kind in _KEYED_KINDS or host in _KEYED_HOSTS

    @cached_property
    def transport(self) -> Transport:
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
        return Transport(
            max_connections=config.max_connections or _NO_BOUND,
            head_seconds=config.timeout_ms / 1000,
            tls=tls,
        )

    def url(self, raw_path: bytes, query: bytes) -> bytes:
        """Return where a request goes: the base URL and what follows our prefix, as it came."""
        match = _PREFIX.match(raw_path)
        rest = match[1] if match is not None else raw_path
        url = self.config.base_url.rstrip("/").encode() + rest
        return url + b"?" + query if query else url

    def authorize(self, headers: Headers) -> Headers:
        """Give a request the credential that this provider may see.

        That is the configured key, where there is one, else the client's if it was presented for
        this provider, else none.
        """
        credential = self.config.credential
        if credential is None and self.presented:
            return headers
        foreign = _CREDENTIALS if self.presented else _PERSONAL
        kept = [one for one in headers if one[0].lower() not in foreign]
        if credential is None:
            return kept
        return [*kept, (b"authorization", f"Bearer {credential.get_secret_value()}".encode())]

    def check_key(self, headers: Headers) -> None:
        """Refuse a request that the provider is known to refuse.

        Args:
            headers: The client's.

        Raises:
            RequestError: 401, it requires a key and neither we nor the client have one.
        """
        if self.has_key or not self.requires_key:
            return
        if not (self.presented and _credentials(headers)):
            raise RequestError(
                f"upstream {self.name} needs a key: set its api_key_env, or send your own",
                status=401,
                code="missing_api_key",
            )

    def caller(self, headers: Headers) -> str | None:
        """Name the client whose credential is used; None where it is our own key.

        Args:
            headers: The client's.
        """
        if self.has_key or not self.presented:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for name, value in _credentials(headers):
            digest.update(b"%d %b %d %b" % (len(name), name, len(value), value))
        return digest.hexdigest()

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


def _credentials(headers: Headers) -> list[tuple[bytes, bytes]]:
    return sorted((name.lower(), value) for name, value in headers if name.lower() in _CREDENTIALS)


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
