"""What hedging may cost: per surface a share of what its answers cost, earned with every answer and spent by hedges.

A hedge costs what its loser cost, and what the winner cost more than the first attempt would have. Kept per worker:
each earns and spends for itself, so all of them together stay under the share too.
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
    """The budgets of the surfaces that hedge, made as they are first asked for."""

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self._budgets: dict[str, tuple[float, SpendBudget]] = {}

    def may_hedge(self, policy: Policy) -> bool:
        """Whether that policy's surface can afford one more."""
        hedge = policy.escalate.hedge
        return hedge is not None and self._of(policy.surface, hedge.max_extra_spend).may_spend()

    def book(self, ledger: Ledger) -> None:
        """Takes a finished request, its calls accounted for, of a surface that hedges; any other changes nothing."""
        known = self._budgets.get(ledger.surface)
        if known is None:
            return
        budget = known[1]
        budget.earn(ledger.cost_usd - ledger.wasted_usd)
        if ledger.hedged:
            budget.spend(ledger.wasted_usd + self._dearer(ledger.calls or ()))

    def _of(self, surface: str, share: float) -> SpendBudget:
        known = self._budgets.get(surface)
        if known is None or known[0] != share:
            known = self._budgets[surface] = (share, SpendBudget(share))
        return known[1]

    def _dearer(self, calls: Sequence[CallAccount]) -> float:
        """By how much the served calls cost more than the first one's tier would have asked for the same tokens."""
        if not calls or not calls[0].wasted:
            return 0.0
        price = self._tiers[calls[0].tier].price
        served = [call for call in calls if not call.wasted]
        spent = sum(call.cost_usd for call in served)
        same = sum(cost(price, Usage(call.tokens_in, call.tokens_out)) for call in served)
        return max(0.0, spent - same)
