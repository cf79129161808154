"""A scripted provider and the real proxy in front of it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.e2e.client import SDK_HEADERS, Exchange
from tests.e2e.process import Proxy
from tests.upstreams import ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import openai

    from tests.e2e.client import Headers
    from tests.upstreams import Received, Reply


@dataclass(frozen=True, slots=True)
class Lab:
    """A provider, a proxy before it, and the talk between a client and them."""

    provider: ScriptedProvider
    proxy: Proxy

    def post(
        self,
        body: bytes | dict[str, Any],
        *replies: Reply,
        headers: Headers = SDK_HEADERS,
        target: str = "/v1/responses",
    ) -> Exchange:
        """Send a request for which the provider has these replies."""
        self.provider.script(replies)
        return Exchange(self.proxy.port, body, headers=headers, target=target)

    def seen(self, number: int = -1) -> Received:
        """Return a request that the provider received."""
        return self.provider.requests[number]

    def is_idle(self) -> None:
        """Wait until nothing runs any more: no turn, and no request at the provider."""
        self.proxy.reaches(0, "turns_in_flight")


class StartLab(Protocol):
    """Start a lab; ``config`` may name its provider as ``{url}``."""

    def __call__(
        self,
        *,
        kind: str = "responses",
        config: str = "",
        environment: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> Lab: ...


@pytest.fixture
def start_lab(tmp_path: Path) -> Iterator[StartLab]:
    """Start labs that end with the test: the proxy first, then what it speaks to."""
    with ExitStack() as stack:

        def start(
            *,
            kind: str = "responses",
            config: str = "",
            environment: Mapping[str, str] | None = None,
            host: str = "127.0.0.1",
        ) -> Lab:
            provider = stack.enter_context(ScriptedProvider())
            url = f"http://{host}:{provider.port}/v1"
            named = "[[upstream]]" in config
            proxy = Proxy(
                tmp_path / f"proxy-{provider.port}",
                upstream=None if named else url,
                kind=kind,
                config=config.replace("{url}", url),
                environment=environment,
            )
            return Lab(provider, stack.enter_context(proxy))

        yield start


@pytest.fixture
def lab(start_lab: StartLab) -> Lab:
    """A lab with the default configuration."""
    return start_lab()


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One process for the tests of a module that leave nothing behind."""
    folder = tmp_path_factory.mktemp("shared") / "proxy"
    with (
        ScriptedProvider() as provider,
        Proxy(folder, upstream=f"{provider.url}/v1") as proxy,
    ):
        yield Lab(provider, proxy)


@pytest.fixture
def shared_lab(module_lab: Lab) -> Iterator[Lab]:
    """The module's lab with a script and a record of its own."""
    yield module_lab
    provider = module_lab.provider
    provider.default = None
    provider._replies.clear()
    provider.requests.clear()


@pytest.fixture
def client(shared_lab: Lab) -> Iterator[openai.OpenAI]:
    """A client of the official SDK at the module's lab."""
    with shared_lab.proxy.sdk() as sdk:
        yield sdk
