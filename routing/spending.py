"""Say how a request is steered whose budget runs out, by the policy's `spending`: what `routing.decide` goes by.

start       no stronger tier than the cap, if one up to it is open to the request and can answer in time; a failure,
            or a fault in the structure of an answer, still leads to the next tier
confidence  thresholds come down, linearly from `steer_from` to the end of the budget; from the cap on, any
            confidence is good enough
beside      no hedge, no second tier at once, no holdout: no money for what may not be needed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from policies.quantities import percent

if TYPE_CHECKING:
    from policies.model import Policy


class Spent(NamedTuple):
    """How much of the request's tightest budget is spent, as a share of 1, what is under way included.

    `cap` is the tier beyond which the last dollars gain least, by the measured quality of the surface's answers; empty
    where that is not known.
    """

    share: float
    cap: str = ""


class Steering(NamedTuple):
    """How one request is steered.

    `cap` is the strongest tier that it may start at; empty where there is no cap. `ease` is the factor of the
    thresholds at the tiers below the cap. `wanted` is the tier at which it would have started; empty where it does.
    """

    share: float
    cap: str
    ease: float
    wanted: str = ""

    def ease_at(self, policy: Policy, tier: str) -> float:
        """Return the factor of a tier's thresholds; 0 takes an answer of any confidence."""
        return 0.0 if self.cap and policy.tiers.index(tier) >= policy.tiers.index(self.cap) else self.ease

    def why(self, policy: Policy, spent: Spent) -> str:
        """Return why the request starts at no stronger tier than the cap."""
        known = not policy.spending.is_measured or spent.cap == self.cap
        basis = "" if known else ", the tier below the strongest, as what more gains is not known"
        return f"{percent(self.share)} of the budget is spent: capped at {self.cap}{basis}"


def steering_of(policy: Policy, spent: Spent | None) -> Steering | None:
    """Return how a request is steered of whose budget so much is spent; None where it is not."""
    rules = policy.spending
    if spent is None or spent.share < rules.steer_from:
        return None
    return Steering(spent.share, rules.cap_on(policy.ladder, spent.cap), rules.ease(spent.share))


def measured_cap(ladder: Sequence[str], quality: Mapping[str, float], usd: Mapping[str, float]) -> str:
    """Return the tier from which the strongest of the ladder gains least for each dollar that it costs more.

    `quality` is that of the tiers' answers, 0..1, `usd` what a tier's call costs. A tier of which either is missing is
    left out. The strongest itself where no weaker one costs less; empty where it is missing, or all others are.
    """
    known = [name for name in ladder if name in quality and name in usd]
    if len(known) < 2 or known[-1] != ladder[-1]:
        return ""
    strongest = known.pop()
    gained = {
        name: (quality[strongest] - quality[name]) / (usd[strongest] - usd[name])
        for name in known
        if usd[name] < usd[strongest]
    }
    return min(gained, key=gained.__getitem__) if gained else strongest
