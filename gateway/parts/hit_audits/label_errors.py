"""Correct what labels say by how often their comparison errs. No clock, no I/O.

Of answers that say the same the comparison calls a share `f` different (false alarms), of answers that do not a share
`s` (sensitivity), which differs by language. So of the hits that it calls different, weighted by what each label stands
for, `lost`, and of all hits, `hits`, the wrong ones are

    (lost - f hits) / (s - f)                                               Rogan and Gladen, 1978

Neither `f` nor `s` is known, each was measured on some pairs: one error and one success more than were counted are
assumed, and their variance is part of that of the result (Lang and Reiczigel, 2014).

A handful of labels is not enough for that. There, as many of them are left aside as false alarms alone bring with a
probability of 5% or more (`unexplained`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache.semantic.cross_encoder import ComparedPairs

Floats = NDArray[np.float64]

SURE: Final = 1.28
"""Standard errors: a one-sided upper bound with 90% confidence."""
_CHANCE: Final = 0.05


class LabelErrors(ComparedPairs):
    """Estimate, from pairs with known answers, how often labels are wrong that a comparison of answers gives."""

    @classmethod
    def of(cls, pairs: ComparedPairs) -> LabelErrors:
        """Return the estimate from the counts in a data sheet."""
        return cls(pairs.same, pairs.false_alarms, pairs.other, pairs.found, pairs.by_language)

    @property
    def false_alarm(self) -> float:
        """Share of right hits that a comparison calls wrong, estimated; 0 where no pairs were compared."""
        return (self.false_alarms + 1) / (self.same + 2) if self.same else 0.0

    @property
    def per_hit(self) -> float:
        """Wrong hits per hit that labels would show if no hit were wrong."""
        return self.false_alarm * self.stands_for()

    def sensitivity(self, language: str = "") -> float:
        """Return the share of wrong hits in this language that a comparison finds, estimated; 1 without pairs."""
        found, other = self.by_language.get(language, (self.found, self.other))
        return (found + 1) / (other + 2) if other else 1.0

    def stands_for(self, language: str = "") -> float:
        """Return how many wrong hits a wrong label in this language stands for: 1 or more."""
        return 1 / max(self.sensitivity(language) - self.false_alarm, _CHANCE)

    def unexplained(self, lost: Floats, count: Floats, hits: Floats) -> Floats:
        """Return how much of `lost`, of so many labels, false alarms do not explain; see `upper`."""
        expected = self.per_hit * hits * count / np.maximum(lost, 1.0)
        explained, term = np.zeros(len(lost)), np.exp(-expected)
        below = term
        while (short := (below < 1 - _CHANCE) & (explained < count)).any():
            explained = explained + short
            term = term * expected / np.maximum(explained, 1)
            below = below + np.where(short, term, 0.0)
        return lost * (1 - explained / np.maximum(count, 1))

    def upper(self, lost: Floats, squares: Floats, largest: float, hits: Floats) -> Floats:
        """Return an upper bound on the wrong hits from each of falling levels of the score on.

        Of the labels of wrong hits there, `lost` is the sum of what they stand for, `squares` that of its squares;
        `largest` is what a label stands for at most, and `hits` the number of candidates.
        """
        expected = self.per_hit * hits
        wrong = np.maximum(lost - expected, 0.0)
        variance = squares
        if self.same and self.other:
            s, f = self.sensitivity(), self.false_alarm
            variance = variance + (expected * (1 - f) / f / (self.same + 2)) * expected
            variance = variance + wrong**2 * s * (1 - s) / (s - f) ** 2 / (self.other + 2)
        return wrong + largest + SURE * np.sqrt(variance)


AS_THEY_ARE: Final = LabelErrors()
"""Of a judge, or of a comparison that nobody has measured."""
