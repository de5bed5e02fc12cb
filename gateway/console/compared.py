"""Say whether shares of two groups of requests differ by more than chance, also where many are compared at once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

_LEVEL: Final = 0.05
_LEAST_EXPECTED: Final = 5.0
Key = TypeVar("Key", bound=Hashable)


def chance_of(inside: int, selected: int, outside: int, rest: int) -> float | None:
    """Return how often chance alone makes the shares `inside / selected` and `outside / rest` differ so much.

    By the chi-squared test of two proportions with Yates's correction for continuity; None where fewer than five are
    expected in one of the four cells. There must be a request in both groups.
    """
    total = selected + rest
    have = inside + outside
    expected = [have * selected / total, have * rest / total]
    expected += [selected - expected[0], rest - expected[1]]
    if min(expected) < _LEAST_EXPECTED:
        return None
    apart = max(abs(inside - expected[0]) - 0.5, 0.0)
    chi_squared = math.fsum(apart * apart / one for one in expected)
    return math.erfc(math.sqrt(chi_squared / 2))


def differing(tested: Mapping[Key, float | None]) -> set[Key]:
    """Return those that differ, by Holm's method: the chance that any of them differs by chance is at most 5%."""
    ordered = sorted(((p, key) for key, p in tested.items() if p is not None), key=lambda pair: pair[0])
    differ = set()
    for number, (p, key) in enumerate(ordered):
        if p > _LEVEL / (len(ordered) - number):
            break
        differ.add(key)
    return differ
