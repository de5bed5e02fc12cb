"""Hold what people and a judge say of one arm's answers, and give it to the tests behind a guard.

The estimate, and whose word it is, are those of `fit learn quality` (`gateway.parts.measures.quality`). The tests count
ratings; where people's and the judge's word are put together, they get as many independent ratings as the estimate is
worth by its variance. So a judge shortens a canary as far as it agrees with people, and not further.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gateway.parts.measures.quality import FEWEST_BOTH, Opinions, Word
from gateway.parts.rollout.sequential import Sums

Key = tuple[str, str]
"""Tenant and request id."""

_MOST: Final = 100_000
"""Answers that are remembered for each arm, the latest that somebody spoke of."""


class ArmOpinions:
    """The ratings of one arm's answers, by people and by the judge. A later rating by the same replaces the earlier."""

    def __init__(self) -> None:
        self._said: dict[Key, tuple[int, float, float]] = {}
        self._units: dict[str, int] = {}
        self._arrays: Opinions | None = None

    def say(self, key: Key, unit: str, *, people: float = np.nan, judge: float = np.nan) -> None:
        """Note a rating, 0 to 1, of the answer to a request of this sticky unit; NaN stands for no rating."""
        number = self._units.setdefault(unit, len(self._units))
        _, by_people, by_judge = self._said.pop(key, (number, np.nan, np.nan))
        self._said[key] = (
            number,
            by_people if np.isnan(people) else people,
            by_judge if np.isnan(judge) else judge,
        )
        if len(self._said) > _MOST:
            del self._said[next(iter(self._said))]
        self._arrays = None

    def opinions(self) -> Opinions:
        """Return all that is said, as arrays."""
        if self._arrays is None:
            columns = np.array(list(self._said.values()), np.float64).reshape(-1, 3).T
            self._arrays = Opinions(columns[1], columns[2], columns[0].astype(np.int64))
        return self._arrays


def poor_sums(opinions: Opinions, word: Word) -> Sums:
    """Return the sums of 1 - quality over units, in this word: as the tests take ratings, the more the worse."""
    rated, judged = ~np.isnan(opinions.people), ~np.isnan(opinions.judge)
    if word == "people" and np.count_nonzero(rated & judged) >= FEWEST_BOTH:
        quality, least = opinions.estimate(word), 0.5 / np.count_nonzero(rated)
        share = float(np.clip(1 - quality.value, least, 1 - least))
        worth = share * (1 - share) / quality.variance
        poor = share * worth
        return Sums(worth, worth, poor, worth, poor, poor)
    values, spoken = (opinions.people, rated) if word == "people" else (opinions.judge, judged)
    unit = np.arange(len(values)) if opinions.unit is None else opinions.unit
    _, which = np.unique(unit[spoken], return_inverse=True)
    n, s = np.bincount(which).astype(np.float64), np.bincount(which, 1 - values[spoken])
    return Sums(*map(float, (len(n), n.sum(), s.sum(), n @ n, n @ s, s @ s)))
