"""Limit the cost of hedging to a share of what each surface's served answers cost.

Every answer adds to the surface's budget, every hedge is charged to it: the cost of the losing attempt, and the amount
by which the winner cost more than the first attempt would have. Each worker has its own budgets; as each stays under
the share, all of them together do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.accounting.charges import cost
from gateway.chat.completions import Usage
from gateway.telemetry.ledger import CallAccount, Ledger
from gateway.tiers import Tier
from policies.model import Policy
from routing.load.budgets import SpendBudget


class HedgeBudgets:
    """Hold the budget of each surface that hedges; a budget is made on first use."""

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self._budgets: dict[str, tuple[float, SpendBudget]] = {}

    def may_hedge(self, policy: Policy) -> bool:
        """Return whether the budget of the policy's surface allows one more hedge; False without a hedge section."""
        hedge = policy.escalate.hedge
        return hedge is not None and self._of(policy.surface, hedge.max_extra_spend).may_spend()

    def book(self, ledger: Ledger) -> None:
        """Add a finished request's cost to its surface's budget and charge its hedge; `ledger.calls` must be set.

        Requests of surfaces that do not hedge change nothing.
        """
        entry = self._budgets.get(ledger.surface)
        if entry is None:
            return
        budget = entry[1]
        budget.earn(ledger.cost_usd - ledger.wasted_usd)
        if ledger.hedged:
            budget.spend(ledger.wasted_usd + self._dearer(ledger.calls or ()))

    def _of(self, surface: str, share: float) -> SpendBudget:
        entry = self._budgets.get(surface)
        if entry is None or entry[0] != share:
            entry = self._budgets[surface] = (share, SpendBudget(share))
        return entry[1]

    def _dearer(self, calls: Sequence[CallAccount]) -> float:
        """Return by how many US dollars the served calls cost more than the same tokens at the first call's tier."""
        if not calls or not calls[0].wasted:
            return 0.0
        price = self._tiers[calls[0].tier].price
        served = [call for call in calls if not call.wasted]
        spent = sum(call.cost_usd for call in served)
        same = sum(cost(price, Usage(call.tokens_in, call.tokens_out)) for call in served)
        return max(0.0, spent - same)
