"""What single values must look like, and which settings don't go together.

The validators raise ``ValueError`` with a sentence that goes behind the key; the rules over more
than one key return problems that name the key, its place and what to do.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from proxy.config_address import Resolve, is_loopback, points_at_us
from proxy.config_errors import Problem
from proxy.config_sources import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from proxy.config import Config
    from proxy.config_tables import UpstreamConfig

TOKEN_PREFIX: Final = "svt_"  # noqa: S105 - how tokens begin, not one of them
_HOW_TO_MAKE_ONE: Final = (
    "python3 -c 'import secrets; print(\"laptop=svt_\" + secrets.token_urlsafe(32))' makes one"
)
_NOT_YET: Final[tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...]] = (
    (("recall", "store"), lambda value: value != "sqlite", "this version keeps memory in sqlite"),
    (("telemetry", "otlp_endpoint"), bool, "this version sends no traces"),
)
"""Keys that exist but have no effect yet: setting one is refused, not ignored."""
_OF_OLLAMA: Final = ("think", "keep_alive")


def valid_host(host: str) -> str:
    """Accept an address or a name to listen on, without brackets, port or scheme."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not re.fullmatch(r"[A-Za-z0-9._:%-]+", bare):
        raise ValueError("expected an address or a name, without scheme or port")
    return bare


def valid_base_url(url: str) -> str:
    """Accept an ``http`` or ``https`` URL that a path can be appended to."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or re.search(r"[\s\x00-\x20\x7f\ud800-\udfff]", url):
        raise ValueError("expected a URL like https://api.openai.com/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL must not hold credentials: name a variable in api_key_env")
    if parts.query or parts.fragment:
        raise ValueError("expected a URL without query and fragment")
    return url.rstrip("/")


def kind_of(url: str) -> str:
    """Tell the kind of an upstream by its URL: the ChatGPT backend's path, or Responses."""
    return "codex" if "/backend-api/codex" in url else "responses"


def valid_name(name: str) -> str:
    """Accept a name that fits into a log line and a metric's label."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", name):
        raise ValueError("expected up to 40 letters, digits, dots, dashes and underscores")
    return name


def valid_variable(name: str | None) -> str | None:
    """Accept the name of an environment variable, and nothing that looks like a secret."""
    if name is not None and (
        not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,79}", name)
        or name.startswith((TOKEN_PREFIX, "sk_"))
    ):
        raise ValueError("expected the name of a variable, not what it holds")
    return name


def read_access_tokens(
    config: Config, environ: Mapping[str, str]
) -> tuple[dict[str, SecretStr], list[Problem]]:
    """Read ``name=svt_…, …`` from the variable that the configuration names.

    Returns:
        The tokens by name, a bare one under ``default``, and what is wrong with them.
    """
    variable = config.server.access_token_env
    if variable is None:
        return {}, []
    tokens: dict[str, SecretStr] = {}
    for entry in filter(None, map(str.strip, environ.get(variable, "").split(","))):
        name, _, token = (
            entry.rpartition("=")
            if not entry.startswith(TOKEN_PREFIX)
            else (
                "default",
                "",
                entry,
            )
        )
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", name):
            return {}, [
                Problem("holds an entry that is not name=svt_…", variable, _HOW_TO_MAKE_ONE)
            ]
        if not re.fullmatch(r"svt_[A-Za-z0-9._~+/=-]+", token):
            message = f"the token {name} does not begin with {TOKEN_PREFIX}"
            return {}, [Problem(message, variable, _HOW_TO_MAKE_ONE)]
        if name in tokens:
            return {}, [Problem(f"two tokens are called {name}", variable)]
        tokens[name] = SecretStr(token)
    if not tokens:
        message = "is named by server.access_token_env and holds no token"
        return {}, [Problem(message, variable, _HOW_TO_MAKE_ONE)]
    return tokens, []


def contradictions(config: Config, environ: Mapping[str, str], resolve: Resolve) -> list[Problem]:
    """Return everything in a configuration that can't work as it stands."""
    return [
        *_not_yet(config),
        *_tenancy(config),
        *_doubles(config),
        *(
            found
            for index, upstream in enumerate(config.upstream)
            for found in _upstream(config, index, upstream, environ)
        ),
        *own_addresses(config, resolve=resolve),
    ]


def own_addresses(config: Config, *, resolve: Resolve) -> list[Problem]:
    """Return a problem for each upstream that is the address we listen on.

    Args:
        config: Its host and port are compared with its upstreams; port 0 is none yet.
        resolve: Name resolution.
    """
    server = config.server
    return [
        _problem(
            config,
            f"upstream {upstream.name} ({upstream.base_url}) is this proxy's own address",
            *("upstream", index, "base_url"),
            hint="point it at the provider, as in --upstream https://api.openai.com/v1; "
            "only clients are pointed at the proxy",
        )
        for index, upstream in enumerate(config.upstream)
        if server.port
        and points_at_us(upstream.base_url, host=server.host, port=server.port, resolve=resolve)
    ]


def exposure(config: Config) -> list[Problem]:
    """Return what keeps ``serve`` from listening beyond loopback, if it is asked to."""
    host = config.server.host
    if is_loopback(host):
        return []
    found: list[Problem] = []
    if config.source("server", "host").origin is not Origin.FLAG:
        message = f"{host} is beyond loopback, which only a flag can ask for"
        found.append(
            _problem(config, message, "server", "host", hint=f"sottovoce serve --host {host}")
        )
    if not config.access_tokens:
        hint = f"set server.access_token_env to a variable with name=svt_…; {_HOW_TO_MAKE_ONE}"
        message = f"listening on {host}, beyond loopback, needs an access token"
        found.append(_problem(config, message, "server", "host", hint=hint))
    return found


def overruled(config: Config) -> list[Problem]:
    """Return which settings another one makes useless: worth a warning, and no error."""
    return [
        _problem(
            config,
            f"upstream.{index}.api_key_env: has no effect beside api_key",
            "upstream",
            index,
            "api_key_env",
        )
        for index, upstream in enumerate(config.upstream)
        if upstream.api_key is not None and upstream.api_key_env is not None
    ]


def _not_yet(config: Config) -> Iterator[Problem]:
    for path, is_set, message in _NOT_YET:
        value: Any = config
        for part in path:
            value = getattr(value, part)
        if is_set(value):
            yield _problem(config, f"{'.'.join(path)}: {message}", *path)


def _tenancy(config: Config) -> Iterator[Problem]:
    given = config.source("server", "tenancy").origin is not Origin.DEFAULT
    if given and config.server.tenancy == "token" and not config.access_tokens:
        hint = 'set server.access_token_env, or tenancy = "single" or "credential"'
        message = "server.tenancy: token needs access tokens"
        yield _problem(config, message, "server", "tenancy", hint=hint)


def _doubles(config: Config) -> Iterator[Problem]:
    names = [upstream.name for upstream in config.upstream]
    for name, count in Counter(names).items():
        if count > 1:
            last = len(names) - 1 - names[::-1].index(name)
            message = f"{count} upstreams have the name {name}; tell them apart with name ="
            yield _problem(config, message, "upstream", last, "name")


def _upstream(
    config: Config, index: int, upstream: UpstreamConfig, environ: Mapping[str, str]
) -> Iterator[Problem]:
    key = f"upstream.{index}"
    for name in _OF_OLLAMA:
        if upstream.kind != "ollama" and getattr(upstream, name) is not None:
            message = f"{key}.{name}: has no effect on kind {upstream.kind}, only on ollama"
            yield _problem(config, message, "upstream", index, name)
    named = upstream.api_key_env
    if named is not None and upstream.api_key is None and not environ.get(named):
        message = f"{key}.api_key_env: the variable {named} is not set"
        yield _problem(config, message, "upstream", index, "api_key_env")
    if upstream.key_file is not None and upstream.cert_file is None:
        message = f"{key}.key_file: is of no use without cert_file"
        yield _problem(config, message, "upstream", index, "key_file")
    for name in ("ca_file", "cert_file", "key_file"):
        path = getattr(upstream, name)
        if path is not None and not path.is_file():
            yield _problem(
                config, f"{key}.{name}: there is no file {path}", "upstream", index, name
            )


def _problem(config: Config, message: str, *path: str | int, hint: str | None = None) -> Problem:
    return Problem(message, config.where(*path), hint)
