"""Labelled requests, as the choice of thresholds sees them: who would have been right, how sure, at what cost.

Of the grid of settings, a column is one escalation threshold; for each start threshold there is a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from routing.offline.calibration.risk import Flags, Floats

CostUnit = Literal["dollars", "large calls"]

_NEAR_ONE = (0.985, 0.99, 0.992, 0.994, 0.995, 0.996, 0.997, 0.9975, 0.998, 0.9985, 0.999, 0.9992, 0.9994, 0.9995)
THRESHOLDS = (*(i / 100 for i in range(1, 99)), *_NEAR_ONE, 0.9996, 0.9997, 0.9998, 0.9999)
"""Escalation thresholds to choose from, cheapest first. Set before any data is seen, or no test of them would hold.

One-token answers crowd at 1, so the grid is finer there. It does not reach 0, at which an answer that nothing is known
of would be served whatever the policy says of those."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Requests with labels, shape (n,) each, in an order that owes nothing to what they hold.

    `small` and `large` (0..1): how right each tier's answer was. `confidence` (0..1) is of the small tier's answer, NaN
    where there is no evidence of it, infinite where it goes out at any threshold; `unfit` answers are escalated at any
    (cut off, say). Costs are in `unit`:
    for large calls, a small call is free. `starts` says, for each start threshold, which requests start at the small
    tier; the others start at the large one. `accepts_unknown`: an answer without evidence is served.
    """

    small: Floats
    large: Floats
    confidence: Floats
    unfit: Flags
    small_cost: Floats
    large_cost: Floats
    starts: Mapping[float | None, Flags]
    unit: CostUnit = "dollars"
    accepts_unknown: bool = False

    def __len__(self) -> int:
        return len(self.small)

    @property
    def binary(self) -> bool:
        """Whether every label says right or wrong, and nothing between."""
        return bool(np.isin(self.small, (0, 1)).all() and np.isin(self.large, (0, 1)).all())

    def take(self, rows: NDArray[np.int64]) -> Cases:
        """The cases of these rows, in this order."""
        return Cases(
            small=self.small[rows],
            large=self.large[rows],
            confidence=self.confidence[rows],
            unfit=self.unfit[rows],
            small_cost=self.small_cost[rows],
            large_cost=self.large_cost[rows],
            starts={threshold: start[rows] for threshold, start in self.starts.items()},
            unit=self.unit,
            accepts_unknown=self.accepts_unknown,
        )

    def shuffled(self) -> Cases:
        """The same cases in an order of chance, the same at every call."""
        return self.take(np.random.default_rng(0).permutation(len(self)))

    def table(self, start: float | None, thresholds: Sequence[float]) -> CaseTable:
        """What each escalation threshold does to each case, for one start threshold."""
        unknown = np.isnan(self.confidence)[:, None]
        accepted = np.where(unknown, self.accepts_unknown, self.confidence[:, None] >= np.array(thresholds))
        kept = accepted & ~self.unfit[:, None] & self.starts[start][:, None]
        return CaseTable(self, self.starts[start], kept)


@dataclass(frozen=True, slots=True)
class CaseTable:
    """`started` (cases,): whether the small tier is asked; `kept` (cases, thresholds): whether its answer is served."""

    cases: Cases
    started: Flags
    kept: Flags

    @property
    def served(self) -> Floats:
        """How right the served answers are, shape (cases, thresholds)."""
        return np.where(self.kept, self.cases.small[:, None], self.cases.large[:, None])

    @property
    def missed(self) -> Floats:
        """Served cheap and wrong where the large tier is right, shape (cases, thresholds)."""
        return np.asarray(self.kept * ((1 - self.cases.small) * self.cases.large)[:, None])

    @property
    def cost(self) -> Floats:
        """What each case costs, in the cases' unit, shape (cases, thresholds)."""
        small = self.started * self.cases.small_cost
        return np.asarray(small[:, None] + np.where(self.kept, 0.0, self.cases.large_cost[:, None]))


def known_starts(
    starts: Iterable[tuple[float | None, Flags]], asked: Flags
) -> tuple[dict[float | None, Flags], list[float | None]]:
    """The start thresholds of which the cases tell, and those of which they do not.

    Where the small tier was not `asked`, nobody knows how sure it would have been; a threshold under which such a
    request starts there cannot be judged.
    """
    known: dict[float | None, Flags] = {}
    untold: list[float | None] = []
    for threshold, start in starts:
        if (start & ~asked).any():
            untold.append(threshold)
        else:
            known[threshold] = start
    return known, untold
