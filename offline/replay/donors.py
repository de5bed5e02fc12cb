"""Draw what was never recorded from requests alike where it was: a hot deck with the approximate Bayesian bootstrap.

Requests are alike if they lie between the same constants of the recorded policies' start rules and agree in whether
they stream, and if possible in kind, tenth of the quantile and prompt length too. Routing depends on nothing else
that is recorded, so among those alike who was called is as good as drawn at random. Where too few are alike nothing is
drawn: an extrapolation would be a guess.

Each imputation first draws the donors with replacement, then a donor for each request. The variance between imputations
then covers both what a request would have got and what is not known of its likes (Rubin and Schenker 1986).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offline.replay.cells import Bools, Ints
from offline.replay.history import History

FEWEST: Final = 5
"""Fewest donors of a stratum; with fewer there is no evidence."""
_ENOUGH: Final = 12
"""With fewer donors a coarser stratum is taken if there is one."""
_MOST: Final = 1000
"""Most donors of one stratum: more would not narrow any interval noticeably."""

Strata = tuple[Ints, ...]
"""The stratum of each request, from the finest division to the coarsest."""


def strata_of(history: History) -> Strata:
    """Return the strata of all requests."""
    stream = history.stream.astype(np.int64)
    tenth = np.where(np.isnan(history.quantile), 10, np.minimum(history.quantile * 10, 9)).astype(np.int64)
    length = np.log2(np.nan_to_num(history.tokens, nan=1.0).clip(1, 1 << 20)).astype(np.int64)
    coarse = _numbered(history.rules) * 2 + stream
    middle = coarse * 11 + tenth
    fine = (middle * 128 + history.kind) * 32 + length
    return fine, middle, coarse


def hit_strata_of(history: History) -> Strata:
    """Return strata by what is known of cache hits, which were never decided upon: prompt length and stream."""
    stream = history.stream.astype(np.int64)
    length = np.log2(np.nan_to_num(history.tokens, nan=1.0).clip(1, 1 << 20)).astype(np.int64)
    return length * 2 + stream, stream


@dataclass(frozen=True, slots=True)
class Pool:
    """Donors for some targets, sorted by stratum at each level of division."""

    donors: Ints
    group_start: Ints
    group_size: Ints
    start: Ints
    """For each target, where its donors begin."""
    size: Ints
    """For each target, the number of its donors; 0 for no evidence."""

    @classmethod
    def of(cls, is_donor: Bools, strata: Strata, targets: Ints, draw: np.random.Generator) -> Pool:
        """Divide the donors by stratum, and find those of each target."""
        every = np.flatnonzero(is_donor)
        every = every[np.isin(strata[-1][every], strata[-1][targets])]
        every = every[draw.permutation(len(every))]
        start, size = np.zeros(len(targets), np.int64), np.zeros(len(targets), np.int64)
        donors, starts, sizes, offset = [], [], [], 0
        for level, keys in enumerate(strata):
            least = FEWEST if level == len(strata) - 1 else _ENOUGH
            order = np.argsort(keys[every], kind="stable")
            own = every[order]
            groups, first, count = np.unique(keys[own], return_index=True, return_counts=True)
            rank = np.arange(len(own)) - np.repeat(first, count)
            own, count = own[rank < _MOST], np.minimum(count, _MOST)
            first = np.cumsum(count) - count
            open_ = np.flatnonzero(size == 0)
            if len(groups) and len(open_):
                wanted = keys[targets[open_]]
                at = np.minimum(np.searchsorted(groups, wanted), len(groups) - 1)
                found = (groups[at] == wanted) & (count[at] >= least)
                start[open_[found]], size[open_[found]] = offset + first[at[found]], count[at[found]]
            donors.append(own)
            starts.append(offset + np.repeat(first, count))
            sizes.append(np.repeat(count, count))
            offset += len(own)
        return cls(np.concatenate(donors), np.concatenate(starts), np.concatenate(sizes), start, size)

    def resampled(self, draw: np.random.Generator) -> Ints:
        """Return the donors of one imputation: each stratum's drawn from it with replacement."""
        return self.donors[self.group_start + (draw.random(len(self.donors)) * self.group_size).astype(np.int64)]

    def drawn(self, resampled: Ints, targets: Ints, draw: np.random.Generator) -> Ints:
        """Return a donor for each of these targets (positions among the targets), which must have some."""
        return resampled[self.start[targets] + (draw.random(len(targets)) * self.size[targets]).astype(np.int64)]


def _numbered(keys: NDArray[np.int64]) -> Ints:
    _, numbers = np.unique(keys, return_inverse=True)
    return numbers.astype(np.int64)
