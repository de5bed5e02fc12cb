"""Hold labelled requests as threshold selection needs them: which tier is right, its confidence, its cost.

In the grid of settings, a column is one escalation threshold; each start threshold has a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Flags, Floats

CostUnit = Literal["dollars", "large calls"]

_NEAR_ONE = (0.985, 0.99, 0.992, 0.994, 0.995, 0.996, 0.997, 0.9975, 0.998, 0.9985, 0.999, 0.9992, 0.9994, 0.9995)
THRESHOLDS = (*(i / 100 for i in range(1, 99)), *_NEAR_ONE, 0.9996, 0.9997, 0.9998, 0.9999)
"""Escalation thresholds to choose from, cheapest first. Fixed before any data is seen, or tests of them would not hold.

One-token answers crowd at 1, so the grid is finer there. It does not include 0, which would serve an answer without
evidence whatever the policy's rule for those."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Labelled requests, shape (n,) each, in an order that does not depend on their values.

    `small` and `large` (0..1) are how right each tier's answer was. `confidence` (0..1) is of the small tier's answer:
    NaN without evidence, infinite where it is served at any threshold. `unfit` answers (cut off, say) are escalated at
    any threshold. Costs are in `unit`; for large calls, a small call is free. `starts` maps each start threshold, that
    of most requests first, to the requests that start at the small tier; the others start at the large one. With
    `accepts_unknown` an answer without evidence is served.
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
        """Whether every label is 0 or 1."""
        return bool(np.isin(self.small, (0, 1)).all() and np.isin(self.large, (0, 1)).all())

    def take(self, rows: NDArray[np.int64]) -> Cases:
        """Return the cases of these rows, in this order."""
        names = ("small", "large", "confidence", "unfit", "small_cost", "large_cost")
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **arrays, starts={threshold: start[rows] for threshold, start in self.starts.items()})

    def shuffled(self) -> Cases:
        """Return the cases in a random order, the same at every call."""
        return self.take(np.random.default_rng(0).permutation(len(self)))

    def table(self, start: float | None, thresholds: Sequence[float]) -> CaseTable:
        """Return what each escalation threshold does to each case, for one start threshold."""
        unknown = np.isnan(self.confidence)[:, None]
        accepted = np.where(unknown, self.accepts_unknown, self.confidence[:, None] >= np.array(thresholds))
        kept = accepted & ~self.unfit[:, None] & self.starts[start][:, None]
        return CaseTable(self, self.starts[start], kept)


@dataclass(frozen=True, slots=True)
class CaseTable:
    """`started` (cases,): the small tier is called; `kept` (cases, thresholds): its answer is served."""

    cases: Cases
    started: Flags
    kept: Flags

    @property
    def served(self) -> Floats:
        """Return the correctness of the served answers, 0..1, shape (cases, thresholds)."""
        return np.where(self.kept, self.cases.small[:, None], self.cases.large[:, None])

    @property
    def missed(self) -> Floats:
        """Return how far a wrong small answer is served though the large one is right, 0..1, (cases, thresholds)."""
        return np.asarray(self.kept * ((1 - self.cases.small) * self.cases.large)[:, None])

    @property
    def cost(self) -> Floats:
        """Cost of each case in the cases' unit, shape (cases, thresholds)."""
        small = self.started * self.cases.small_cost
        return np.asarray(small[:, None] + np.where(self.kept, 0.0, self.cases.large_cost[:, None]))


def known_starts(
    starts: Iterable[tuple[float | None, Flags]], asked: Flags
) -> tuple[dict[float | None, Flags], list[float | None]]:
    """Split the start thresholds into those that the cases can evaluate and those that they cannot.

    A threshold cannot be evaluated if under it a request starts at the small tier that was not `asked` there: the
    confidence of that answer is unknown.
    """
    known: dict[float | None, Flags] = {}
    unknown: list[float | None] = []
    for threshold, start in starts:
        if (start & ~asked).any():
            unknown.append(threshold)
        else:
            known[threshold] = start
    return known, unknown
