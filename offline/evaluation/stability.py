"""Measure whether a paraphrased question goes to the same tier.

A router that ranks by chance keeps a pair together half the time where both tiers get half of the traffic, and nearly
always where one tier gets nearly all of it: so agreement is measured where each tier has a substantial share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline.evaluation.curves import Floats
from offline.evaluation.figures import Interval, share

CUTS = (20, 35, 50, 65, 80)
"""The small tier's target share of the traffic at each cut, in percent."""

_LEAST_SHARE = 0.195  # of either tier, for a cut to count: a fifth, with tolerance for texts at the threshold
_FEWEST_INSIDE = 30


@dataclass(frozen=True, slots=True)
class Assessed:
    """The classifier's results for pairs of paraphrases: shapes (pairs, 2)."""

    p_adequate: Floats
    in_domain: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cut:
    """One threshold on p_adequate, for a target share of `asked` percent of the texts.

    `small_share` is the share that reaches it, which can differ where scores are equal. `same` is the share of pairs
    whose texts go to one tier; `same_inside` is that of pairs with both texts in the domain (None if they are too few).
    """

    asked: int
    threshold: float
    small_share: float
    same: Interval
    same_inside: Interval | None


def cuts(assessed: Assessed, seed: int) -> list[Cut]:
    """Measure agreement at each of CUTS, with thresholds from the pairs' own texts."""
    both_inside = assessed.in_domain.all(axis=1)
    results = []
    for asked in CUTS:
        threshold = float(np.quantile(assessed.p_adequate, 1 - asked / 100, method="higher"))
        small = assessed.p_adequate >= threshold
        same = agreement(small)
        inside = share(same[both_inside], seed) if both_inside.sum() >= _FEWEST_INSIDE else None
        results.append(Cut(asked, threshold, float(small.mean()), share(same, seed), inside))
    return results


def best(measured: Sequence[Cut]) -> Cut | None:
    """Return the cut with the highest agreement of those that give each tier a fifth of the traffic; None without."""
    balanced = [cut for cut in measured if _LEAST_SHARE <= cut.small_share <= 1 - _LEAST_SHARE]
    return max(balanced, key=lambda cut: cut.same.value, default=None)


def agreement(tiers: NDArray[np.generic]) -> Floats:
    """Return 1 for each pair (pairs, 2) that goes to one tier, else 0."""
    return np.asarray(tiers[:, 0] == tiers[:, 1], np.float64)
