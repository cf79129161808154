"""What every test shares: profiles, the async backend, the corpus, a clean environment."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
CODEX_VARIABLE = "SOTTOVOCE_CODEX"
CORPUS_VARIABLE = "SOTTOVOCE_TRACES"
FOREIGN = ("OPENAI_", "ANTHROPIC_", "OLLAMA_", "SOTTOVOCE_")
"""How variables begin that are the user's own settings and keys."""

# A deadline would assert performance, and the first example of a test pays for its imports.
settings.register_profile(
    "fast", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "deep", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start.

    Where the tests themselves run in the background of a shell, SIGINT is ignored, and whatever
    they start would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why the tests that need the real Codex CLI are skipped where it is absent."""
    reason = missing_codex()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("codex"):
            item.add_marker(pytest.mark.skip(reason=reason))


def missing_codex() -> str | None:
    """Return why the Codex CLI can't be used, or None when it is there."""
    named = os.environ.get(CODEX_VARIABLE)
    if not named:
        return f"{CODEX_VARIABLE} is not set: run `make e2e-codex`"
    if not os.access(named, os.X_OK):
        return f"{CODEX_VARIABLE} names no program ({named}): run `make e2e-codex`"
    return None


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run under asyncio, as uvicorn does."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _own_environment() -> Iterator[None]:
    """Keep the user's own configuration, credentials and proxies out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            foreign = name.startswith(FOREIGN) or name.lower().endswith("_proxy")
            if foreign and name not in {CODEX_VARIABLE, CORPUS_VARIABLE}:
                patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of recorded streams; tests over it skip where it is absent."""
    folder = corpus_folder()
    if folder is None:
        pytest.skip(f"no recorded streams here (set {CORPUS_VARIABLE} to their folder)")
    return folder


def corpus_folder() -> Path | None:
    """Return the recordings' folder: from the environment, else `shared/traces` beside us."""
    named = os.environ.get(CORPUS_VARIABLE)
    places = [Path(named)] if named else [up / "shared" / "traces" for up in ROOT.parents]
    return next((place for place in places if (place / "catalogue.json").is_file()), None)
