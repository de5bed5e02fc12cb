"""Say how one request is steered to less, in neutral terms: what a part makes of a policy, and `routing` goes by.

start       no stronger tier than the cap, if one up to it is open to the request and can answer in time; a failure,
            or a fault in the structure of an answer, still leads to the next tier
confidence  thresholds come down by the ease; from the cap on, any confidence is good enough
beside      no hedge, no second tier at once, no holdout: no money for what may not be needed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Spent(NamedTuple):
    """How much of the request's tightest budget is spent, as a share of 1, what is under way included.

    `cap` is the tier beyond which the last dollars gain least, by the measured quality of the surface's answers; empty
    where that is not known.
    """

    share: float
    cap: str = ""


class Steering(NamedTuple):
    """How one request is steered.

    `share` is how much of its budget is spent. `cap` is the strongest tier that it may start at, for the reason `why`
    and by the key `clause` of the policy; empty where there is no cap. `ease` is the factor of the thresholds at the
    tiers below the cap. `wanted` is the tier at which it would have started; empty where it does.
    """

    share: float
    cap: str
    ease: float
    why: str
    clause: str
    wanted: str = ""

    def ease_at(self, tiers: Sequence[str], tier: str) -> float:
        """Return the factor of a tier's thresholds, one of a policy's `tiers`; 0 takes an answer of any confidence."""
        return 0.0 if self.cap and tiers.index(tier) >= tiers.index(self.cap) else self.ease
