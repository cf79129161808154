"""The newest quota windows and the usage of each tenant, for ``/usage``. In memory only."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline.usage import add_usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.outcome import TurnOutcome

_TENANTS: Final = 1000
_BUCKETS: Final = 64


@dataclass(slots=True)
class _Account:
    turns: int = 0
    spent: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    quota: dict[str, dict[str, Any]] = field(default_factory=dict)


class UsageBoard:
    """Figures by tenant; the tenant that was silent for longest is forgotten first."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def add(self, tenant: str, outcome: TurnOutcome, quota: Mapping[str, dict[str, Any]]) -> None:
        """Add a turn.

        Args:
            tenant: Whose it was.
            outcome: How it ended; its usage counts also where it failed.
            quota: The newest quota record of each bucket that it brought.
        """
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
        else:
            self._accounts.move_to_end(tenant)
        account.turns += 1
        account.spent = add_usage(account.spent, outcome.spent)
        account.last = outcome.spent or account.last
        for bucket, record in quota.items():
            account.quota.pop(bucket, None)  # the newest stands last, and goes last
            account.quota[bucket] = record
        while len(account.quota) > _BUCKETS:
            del account.quota[next(iter(account.quota))]
        if len(self._accounts) > _TENANTS:
            self._accounts.popitem(last=False)

    def show(self, tenant: str) -> dict[str, Any]:
        """Return a tenant's figures: its turns, tokens, and the newest window of each bucket."""
        account = self._accounts.get(tenant, _Account())
        return {
            "schema_version": 1,
            "turns": account.turns,
            "usage": {"total": account.spent, "last": account.last},
            "quota": account.quota,
        }
