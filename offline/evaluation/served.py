"""Compute shares with intervals, and the three figures that measure a cache on labelled pairs.

served     of the pairs that want the same answer, the share for which the stored one was served
wrong      of the pairs that want different answers, the share for which it was served nevertheless
precision  of the pairs for which it was served, the share that wants the same answer
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

_Z = 1.959963984540054  # standard errors of a central 95% interval


@dataclass(frozen=True, slots=True)
class Figure:
    """A share of `n` cases and its 95% interval. Without cases `value` is None and the interval is 0..1."""

    value: float | None
    lo: float
    hi: float
    n: int


@dataclass(frozen=True, slots=True)
class ServedPairs:
    """The three figures of the module's docstring."""

    served: Figure
    wrong: Figure
    precision: Figure


def share(count: int, n: int) -> Figure:
    """Return `count` of `n` with the score interval (Wilson 1927), which is valid for rare events and few cases."""
    if n == 0:
        return Figure(None, 0.0, 1.0, 0)
    rate, z2 = count / n, _Z * _Z
    middle = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    lo = 0.0 if count == 0 else middle - half
    hi = 1.0 if count == n else middle + half
    return Figure(rate, lo, hi, n)


def served_of(out: Flags, same: Flags) -> ServedPairs:
    """Return the figures of pairs, shape (n,): whether the stored answer was served (`out`), and whether both want the
    `same`.
    """
    right = int((out & same).sum())
    return ServedPairs(
        share(right, int(same.sum())),
        share(int((out & ~same).sum()), int((~same).sum())),
        share(right, int(out.sum())),
    )


def best_within(scores: Floats, same: Flags, most_wrong: float) -> tuple[Figure, float]:
    """Return the largest share that one threshold serves with at most `most_wrong` served wrongly, and that threshold.

    It is chosen on the pairs it is measured on, so it is an upper bound for such a score, not an expectation. Scores of
    -inf are never served. The threshold is infinite where none satisfies the limit.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, truth = scores[order], same[order]
    last = np.append(ranked[1:] != ranked[:-1], True) & (ranked > -np.inf)
    right, wrong = np.cumsum(truth), np.cumsum(~truth)
    fits = np.flatnonzero(last & (wrong <= most_wrong * max(1, int((~same).sum()))))
    if not len(fits):
        return share(0, int(same.sum())), math.inf
    at = int(fits[np.argmax(right[fits])])
    return share(int(right[at]), int(same.sum())), float(ranked[at])
