"""The ChatGPT Codex backend: Responses, but always streamed, and sparse in its own way.

How it deviates is ``pipeline.dialect``'s business.
"""

from __future__ import annotations

from pipeline.reader import StreamMode
from proxy.providers.responses import ResponsesProvider


class CodexProvider(ResponsesProvider):
    """The backend that Codex with a ChatGPT account speaks to."""

    kind = "codex"

    def mode(self, *, streamed: bool) -> StreamMode:
        """Return a stream: it refuses everything else."""
        del streamed
        return StreamMode.SSE
