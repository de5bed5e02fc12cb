"""Whether a rephrased question goes to the same tier.

A router that ranks by chance keeps a pair together half the time where both tiers get half of the traffic, and nearly
always where one tier gets nearly all of it: so agreement is measured where each tier has a good share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from routing.offline.evaluation.curves import Floats
from routing.offline.evaluation.figures import Interval, share

CUTS = (20, 35, 50, 65, 80)
"""The small tier's share of the traffic at each cut, in percent."""

_LEAST_SHARE = 0.195  # of either tier, for a cut to count: a fifth, give or take the texts at the threshold
_FEWEST_INSIDE = 30


@dataclass(frozen=True, slots=True)
class Assessed:
    """What the classifier says of pairs of texts that ask the same: shapes (pairs, 2)."""

    p_adequate: Floats
    in_domain: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cut:
    """One threshold on p_adequate. `small_share` of the texts reach it; equal scores can make that miss what was asked.

    `same` is the share of pairs whose texts go to one tier; `same_inside`, of pairs that are both in the domain (None
    where these are too few to say).
    """

    asked: int
    threshold: float
    small_share: float
    same: Interval
    same_inside: Interval | None


def cuts(assessed: Assessed, seed: int) -> list[Cut]:
    """Agreement at each of CUTS, with thresholds taken from the pairs' own texts."""
    both_inside = assessed.in_domain.all(axis=1)
    found = []
    for asked in CUTS:
        threshold = float(np.quantile(assessed.p_adequate, 1 - asked / 100, method="higher"))
        small = assessed.p_adequate >= threshold
        same = agreement(small)
        inside = share(same[both_inside], seed) if both_inside.sum() >= _FEWEST_INSIDE else None
        found.append(Cut(asked, threshold, float(small.mean()), share(same, seed), inside))
    return found


def best(found: Sequence[Cut]) -> Cut | None:
    """The cut that keeps most pairs together, of those that leave each tier a fifth of the traffic; None if none do."""
    balanced = [cut for cut in found if _LEAST_SHARE <= cut.small_share <= 1 - _LEAST_SHARE]
    return max(balanced, key=lambda cut: cut.same.value, default=None)


def agreement(tiers: NDArray[np.generic]) -> Floats:
    """1 for each pair (pairs, 2) that goes to one tier, else 0."""
    return np.asarray(tiers[:, 0] == tiers[:, 1], np.float64)
