"""Say whether shares of two groups of requests differ by more than chance, also where many are compared at once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

_LEVEL: Final = 0.05
_LEAST_EXPECTED: Final = 5.0
_NEGLIGIBLE: Final = 1e-12
Key = TypeVar("Key", bound=Hashable)


def chance_of(inside: int, selected: int, outside: int, rest: int) -> float:
    """Return how often chance alone makes the shares `inside / selected` and `outside / rest` differ so much.

    By the chi-squared test of two proportions with Yates's correction for continuity; where fewer than five are
    expected in one of the four cells, by Fisher's exact test, as twice the smaller tail. There must be a request in
    both groups.
    """
    total = selected + rest
    have = inside + outside
    expected = [have * selected / total, have * rest / total]
    expected += [selected - expected[0], rest - expected[1]]
    if min(expected) < _LEAST_EXPECTED:
        return _exact_chance(inside, selected, have, total)
    apart = max(abs(inside - expected[0]) - 0.5, 0.0)
    chi_squared = math.fsum(apart * apart / one for one in expected)
    return math.erfc(math.sqrt(chi_squared / 2))


def _exact_chance(inside: int, selected: int, have: int, total: int) -> float:
    """Return twice the probability that `selected` of `total`, drawn by chance, hold as few or as many of `have`."""
    log_chance = _log_choose(have, inside) + _log_choose(total - have, selected - inside) - _log_choose(total, selected)
    term = sum_ = math.exp(log_chance)
    upwards = inside * total >= have * selected
    lowest, highest = max(0, have + selected - total), min(have, selected)
    at = inside
    while at != (highest if upwards else lowest) and term > sum_ * _NEGLIGIBLE:
        if upwards:
            term *= (have - at) * (selected - at) / ((at + 1) * (total - have - selected + at + 1))
            at += 1
        else:
            term *= at * (total - have - selected + at) / ((have - at + 1) * (selected - at + 1))
            at -= 1
        sum_ += term
    return min(1.0, 2 * sum_)


def _log_choose(of: int, some: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(some + 1) - math.lgamma(of - some + 1)


def differing(tested: Mapping[Key, float]) -> set[Key]:
    """Return those that differ, by Holm's method: the chance that any of them differs by chance is at most 5%."""
    ordered = sorted(tested.items(), key=lambda pair: pair[1])
    differ = set()
    for number, (key, p) in enumerate(ordered):
        if p > _LEVEL / (len(ordered) - number):
            break
        differ.add(key)
    return differ
