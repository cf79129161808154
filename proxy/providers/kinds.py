"""The kinds of upstreams: their provider, their default address, their credential.

=================  =========================================  ==========================
kind               default base URL                           default variable
=================  =========================================  ==========================
``responses``      ``https://api.openai.com/v1``              none
``codex``          ``https://chatgpt.com/backend-api/codex``  none
``openai_compat``  ``https://api.openai.com/v1``              ``OPENAI_API_KEY``, there
``anthropic``      ``https://api.anthropic.com``              ``ANTHROPIC_API_KEY``
``ollama``         ``http://localhost:11434``                 ``OLLAMA_API_KEY``
=================  =========================================  ==========================

A configured key comes before the variable of its kind, and both before what the client presents.
A client's credential goes on only where it can be meant for that upstream: its ChatGPT token is
nobody else's, and Anthropic gets what looks like a key of Anthropic. OpenAI's own host and
Anthropic need a key; without one nothing is sent at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from pipeline.errors import UpstreamError
from proxy.providers.anthropic import AnthropicProvider
from proxy.providers.chat import OPENAI_HOST, ChatProvider
from proxy.providers.codex import CodexProvider
from proxy.providers.ollama import OllamaProvider
from proxy.providers.responses import ResponsesProvider

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proxy.providers.base import Headers, Provider

MISSING_KEY: Final = "missing_api_key"
"""The code of the error for an upstream that needs a key and has none."""


class Kind(NamedTuple):
    """What is known of a kind."""

    base_url: str
    variable: str | None
    """The variable that holds a key where none is configured."""
    endings: tuple[str, ...]
    """What a base URL may end with and the paths of the provider bring themselves."""


KINDS: Final[dict[str, Kind]] = {
    "responses": Kind("https://api.openai.com/v1", None, ()),
    "codex": Kind("https://chatgpt.com/backend-api/codex", None, ()),
    "openai_compat": Kind("https://api.openai.com/v1", "OPENAI_API_KEY", ()),
    "anthropic": Kind("https://api.anthropic.com", "ANTHROPIC_API_KEY", ("/v1",)),
    "ollama": Kind("http://localhost:11434", "OLLAMA_API_KEY", ("/v1", "/api")),
}
_CREDENTIALS: Final = frozenset(
    {b"authorization", b"x-api-key", b"api-key", b"chatgpt-account-id", b"cookie"}
)
_ANTHROPIC_KEY: Final = b"sk-ant-"
_BEARER: Final = b"bearer "


def make_provider(
    kind: str,
    base_url: str,
    *,
    think: bool | str | None = None,
    keep_alive: int | str | None = None,
) -> Provider:
    """Return the provider of an upstream.

    Args:
        kind: One of ``KINDS``.
        base_url: Where it is.
        think: How an Ollama model thinks.
        keep_alive: How long Ollama keeps it loaded.
    """
    match kind:
        case "codex":
            return CodexProvider()
        case "openai_compat":
            return ChatProvider(base_url)
        case "anthropic":
            return AnthropicProvider()
        case "ollama":
            return OllamaProvider(think=think, keep_alive=keep_alive)
        case _:
            return ResponsesProvider()


def default_base_url(kind: str) -> str:
    """Return where an upstream of a kind is, unless somebody says otherwise."""
    return KINDS[kind].base_url


def root_of(kind: str, base_url: str) -> str:
    """Return what the provider's paths are appended to: a base URL without what they bring."""
    root = base_url.rstrip("/")
    for ending in KINDS[kind].endings:
        if root.endswith(ending):
            return root.removesuffix(ending)
    return root


# --- Credentials ------------------------------------------------------------------------------


def find_key(
    kind: str, base_url: str, *, configured: str | None, environ: Mapping[str, str]
) -> str | None:
    """Return the key that is sent to an upstream instead of the client's own.

    Args:
        kind: Its kind.
        base_url: Where it is: a variable for OpenAI is for no other host.
        configured: ``api_key``, else what ``api_key_env`` names.
        environ: The environment.
    """
    if configured:
        return configured
    variable = KINDS[kind].variable
    if variable is None or (kind == "openai_compat" and not _is_openai(base_url)):
        return None
    return environ.get(variable) or None


def needs_key(kind: str, base_url: str) -> bool:
    """Say whether nothing may be sent to an upstream without a key."""
    return kind == "anthropic" or (kind == "openai_compat" and _is_openai(base_url))


def _is_openai(base_url: str) -> bool:
    return urlsplit(base_url).hostname == OPENAI_HOST


def presented_key(kind: str, headers: Headers) -> str | None:
    """Return the key that a client presents and an upstream of another dialect may see.

    Args:
        kind: The upstream's.
        headers: The client's, lower-case names.
    """
    known = {name.lower(): value for name, value in headers}
    bearer = known.get(b"authorization", b"")
    token = bearer[len(_BEARER) :].strip() if bearer[: len(_BEARER)].lower() == _BEARER else b""
    match kind:
        case "anthropic":
            keys = [known.get(b"x-api-key", b""), token]
            token = next((key for key in keys if key.startswith(_ANTHROPIC_KEY)), b"")
        case "openai_compat":
            # With an account's id the token is one of ChatGPT's, and no key.
            token = b"" if b"chatgpt-account-id" in known else token
        case _:
            token = b""
    return token.decode("latin-1") or None


def authorize(
    provider: Provider, base_url: str, headers: Headers, *, key: str | None, name: str
) -> Headers:
    """Return headers with the credential that an upstream gets, and no other.

    Args:
        provider: Its provider.
        base_url: Where it is.
        headers: Those of the request, the client's credential among them.
        key: What ``find_key`` found.
        name: What the upstream is called.

    Raises:
        UpstreamError: 401: it needs a key, and there is none.
    """
    if key is None and provider.translates:
        key = presented_key(provider.kind, headers)
    if key is None and not provider.translates:
        return headers
    if key is None and needs_key(provider.kind, base_url):
        variable = KINDS[provider.kind].variable
        raise UpstreamError(
            f"upstream {name} ({provider.kind}) needs an API key and has none; set {variable}, "
            "or api_key_env in its configuration",
            status=401,
            code=MISSING_KEY,
        )
    kept = [one for one in headers if one[0].lower() not in _CREDENTIALS]
    return kept if key is None else [*kept, *provider.credential_headers(key)]
