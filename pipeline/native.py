"""What a compiler of the pipeline has to be told of a class; nothing to an interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: bool) -> Callable[[type], type]:
        """Return what leaves a class as it is."""
        return lambda described: described
