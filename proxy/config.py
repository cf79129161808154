"""The configuration: how it is put together, and where each of its values came from.

::

    default  <  sottovoce.toml  <  SOTTOVOCE_SECTION__KEY  <  flag

Which keys there are, and what they mean, is in ``config_tables``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import platformdirs
from pydantic import Field, PrivateAttr, SecretStr, Strict, ValidationError

from proxy.config_address import Resolve, resolve_host
from proxy.config_errors import ConfigError, Problem, Schema, describe_errors
from proxy.config_rules import contradictions, overruled, read_access_tokens
from proxy.config_sources import (
    DEFAULT,
    Layers,
    Origin,
    Source,
    add_environment,
    add_file,
    add_flags,
    find_file,
    judge_strangers,
)
from proxy.config_tables import (
    CODEX_URL,
    LimitsConfig,
    RecallConfig,
    Section,
    ServerConfig,
    SessionsConfig,
    TelemetryConfig,
    Texts,
    UpstreamConfig,
    default_upstreams,
)

if TYPE_CHECKING:
    from proxy.config_toml import KeyPath


def user_config_dir() -> Path:
    """Return where the user's own ``sottovoce.toml`` is looked for."""
    return platformdirs.user_config_path("sottovoce", appauthor=False)


class Config(Section):
    """The whole configuration; ``load_config`` makes one, ``Config()`` is the defaults."""

    plugins: Texts = Field(default=(), description="files of plugins")
    server: ServerConfig = Field(default_factory=ServerConfig)
    recall: RecallConfig = Field(default_factory=RecallConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    sessions: SessionsConfig = Field(default_factory=SessionsConfig)
    upstream: Annotated[tuple[UpstreamConfig, ...], Strict(strict=False), Field(min_length=1)] = (
        Field(default_factory=default_upstreams)
    )

    _layers: Layers = PrivateAttr(default_factory=Layers)
    _access_tokens: Mapping[str, SecretStr] = PrivateAttr(default_factory=dict)

    @property
    def file(self) -> Path | None:
        """The file that was read, if any."""
        return self._layers.file

    @property
    def memory_file(self) -> Path:
        """Where the memory lives: one file in the state directory."""
        return self.server.state_dir / "memory.db"

    @property
    def access_tokens(self) -> Mapping[str, SecretStr]:
        """The access tokens by name; empty where none are asked for."""
        return MappingProxyType(dict(self._access_tokens))

    @property
    def warnings(self) -> Sequence[Problem]:
        """What changes nothing and was probably meant to."""
        return (*self._layers.warnings, *overruled(self))

    def take_layers(self, layers: Layers) -> None:
        """Remember where every value comes from."""
        self._layers = layers

    def take_access_tokens(self, tokens: Mapping[str, SecretStr]) -> None:
        """Keep the tokens that the environment has."""
        self._access_tokens = tokens

    def source(self, *path: str | int) -> Source:
        """Return where the value of a key comes from: ``config.source("server", "port")``."""
        return self._layers.source(path)

    def where(self, *path: str | int) -> str | None:
        """Return the place to look at for a key, ``None`` if nobody gave it or its table."""
        return self._layers.where(path)

    def upstreams_for(self, *, codex: bool) -> tuple[UpstreamConfig, ...]:
        """Return the upstreams that a request may go to, in order; there is at least one.

        Args:
            codex: Whether it came on a Codex path or with a ``chatgpt-account-id``. Such a request
                goes to upstreams of kind ``codex``, any other to those of other kinds; where there
                is none of the wanted sort, it goes to the others.
        """
        wanted = tuple(found for found in self.upstream if (found.kind == "codex") == codex)
        return wanted or self.upstream

    def upstream_for(self, *, codex: bool) -> UpstreamConfig:
        """Return the upstream that a request is meant for: the first of ``upstreams_for``."""
        return self.upstreams_for(codex=codex)[0]


SCHEMA: Final = Schema(Config)


def load_config(
    *,
    config_file: Path | None = None,
    flags: Mapping[KeyPath, object] | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    resolve: Resolve = resolve_host,
) -> Config:
    """Put the configuration together and check that the proxy can serve with it.

    Args:
        config_file: This and the next three as in ``read_config``.
        flags: By key.
        environ: The environment.
        directory: The working directory.
        resolve: Name resolution, asked only to find out whether an upstream is ourselves.

    Raises:
        ConfigError: With everything that is wrong.
    """
    environ = os.environ if environ is None else environ
    config = read_config(config_file=config_file, flags=flags, environ=environ, directory=directory)
    tokens, problems = read_access_tokens(config, environ)
    config = _completed(config, environ, tokens)
    problems += contradictions(config, environ, resolve)
    if problems:
        raise ConfigError(problems)
    return config


def read_config(
    *,
    config_file: Path | None = None,
    flags: Mapping[KeyPath, object] | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Config:
    """Put the configuration together, each value checked for itself and no secret looked up.

    Args:
        config_file: The file to read; ``None`` looks in the working directory and then in the
            user's configuration directory, and does without one.
        flags: Values from the command line by key; ``("upstream",)`` is the URL of an upstream
            that replaces all others. ``None`` values count as not given.
        environ: The environment, the process's own by default.
        directory: The working directory.

    Raises:
        ConfigError: With every value that is wrong.
    """
    environ = os.environ if environ is None else environ
    layers = Layers()
    path = config_file or find_file(directory or Path.cwd(), user_config_dir())
    if path is not None:
        add_file(layers, path)
    add_environment(layers, environ, SCHEMA)
    add_flags(layers, flags or {})
    judge_strangers(layers, environ, SCHEMA)
    config = _with_tenancy(_validated(layers, environ), layers)
    config.take_layers(layers)
    return config


def _validated(layers: Layers, environ: Mapping[str, str]) -> Config:
    tree = dict(layers.tree)
    openai_url = environ.get("OPENAI_BASE_URL")
    if "upstream" not in tree and openai_url:
        tree["upstream"] = [
            {"name": "openai", "kind": "responses", "base_url": openai_url},
            {"name": "codex", "kind": "codex", "base_url": CODEX_URL},
        ]
        layers.sources["upstream", 0, "base_url"] = Source(Origin.ENVIRONMENT, "OPENAI_BASE_URL")
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        problems = describe_errors(error.errors(), SCHEMA, layers.where)
        raise ConfigError([*layers.problems, *problems]) from None
    if layers.problems:
        raise ConfigError(layers.problems)
    return config


def _with_tenancy(config: Config, layers: Layers) -> Config:
    """Fill in the tenancy's default, which depends on whether access tokens are asked for."""
    tenancy, tokens = ("server", "tenancy"), ("server", "access_token_env")
    if config.server.access_token_env is None or layers.source(tenancy) != DEFAULT:
        return config
    layers.sources[tenancy] = Source(Origin.DEFAULT, f"default with {layers.source(tokens)}")
    server = config.server.model_copy(update={"tenancy": "token"})
    return config.model_copy(update={"server": server})


def _completed(
    config: Config, environ: Mapping[str, str], tokens: Mapping[str, SecretStr]
) -> Config:
    """Add the secrets."""
    for upstream in config.upstream:
        upstream.take_key(environ)
    config.take_access_tokens(tokens)
    return config
