"""Shares with their intervals, and the three figures by which a cache is judged on labelled pairs.

served     of the pairs that want the same answer, the share for which the stored one went out
wrong      of the pairs that want different answers, the share for which it went out all the same
precision  of the pairs for which it went out, the share that wants the same answer
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

_Z = 1.959963984540054  # of the central 95%


@dataclass(frozen=True, slots=True)
class Figure:
    """A share of `n` cases and its 95% interval. `value` is None where there are no cases: then all is possible."""

    value: float | None
    lo: float
    hi: float
    n: int


@dataclass(frozen=True, slots=True)
class ServedPairs:
    """See the module's docstring."""

    served: Figure
    wrong: Figure
    precision: Figure


def share(count: int, n: int) -> Figure:
    """`count` of `n`, with the score interval (Wilson 1927), which holds for rare events and few cases too."""
    if n == 0:
        return Figure(None, 0.0, 1.0, 0)
    rate, z2 = count / n, _Z * _Z
    middle = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    lo = 0.0 if count == 0 else middle - half
    hi = 1.0 if count == n else middle + half
    return Figure(rate, lo, hi, n)


def served_of(out: Flags, same: Flags) -> ServedPairs:
    """The figures of pairs, shape (n,): whether the stored answer went `out`, and whether it was the `same` that both
    want.
    """
    right = int((out & same).sum())
    return ServedPairs(
        share(right, int(same.sum())),
        share(int((out & ~same).sum()), int((~same).sum())),
        share(right, int(out.sum())),
    )


def best_within(scores: Floats, same: Flags, most_wrong: float) -> tuple[Figure, float]:
    """The most that one threshold on the scores serves while at most `most_wrong` is served wrongly; and it.

    Chosen on the very pairs it is measured on, so it is a bound on what such a score can do, not a promise.
    Scores of -inf are never served. The threshold is infinite where none will do.
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
