"""Count how many requests go from which path and tier to which other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.parts.lab.replay.cells import Ints
from gateway.parts.lab.replay.figures import Results


@dataclass(frozen=True, slots=True)
class PathMove:
    """So many requests that took one path, answered by one tier, and take another; '' where no tier answered.

    `requests` is a mean over the imputations, so it need not be whole.
    """

    path: str
    tier: str
    new_path: str
    new_tier: str
    requests: float


class MoveCounts:
    """Count how many requests change from one path and tier to another, summed over many imputations."""

    def __init__(self, before: Results, words: Sequence[str], tiers: Sequence[str]) -> None:
        """`words` are the paths and `tiers` the tiers, by their numbers in results."""
        self._words, self._tiers = words, tiers
        self._kinds = len(words) * (len(tiers) + 1)
        self._before = self._kind_of(before)
        self._counts = np.zeros(self._kinds**2, np.int64)

    def add(self, after: Results) -> None:
        """Count the requests of one imputation by their path and tier before and after."""
        pairs = self._before * self._kinds + self._kind_of(after)
        self._counts += np.bincount(pairs, minlength=self._kinds**2)

    def mean(self, imputations: int) -> list[PathMove]:
        """Return the moves to another path or tier, the most frequent first."""
        moves = []
        for pair in np.flatnonzero(self._counts).tolist():
            before, after = divmod(pair, self._kinds)
            if before != after:
                count = float(self._counts[pair]) / imputations
                moves.append(PathMove(*self._named(before), *self._named(after), count))
        return sorted(moves, key=lambda move: (-move.requests, move.path, move.tier, move.new_path, move.new_tier))

    def _kind_of(self, results: Results) -> Ints:
        return np.asarray(results.path * (len(self._tiers) + 1) + results.tier + 1)

    def _named(self, kind: int) -> tuple[str, str]:
        path, tier = divmod(kind, len(self._tiers) + 1)
        return self._words[path], self._tiers[tier - 1] if tier else ""
