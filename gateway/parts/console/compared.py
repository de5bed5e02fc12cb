"""Compare two groups of requests: by which traits, and whether their shares differ by more than chance.

Many traits are compared at once, so chance is divided among them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

_LEVEL: Final = 0.05
_LEAST_EXPECTED: Final = 5.0
_NEGLIGIBLE: Final = 1e-12
Key = TypeVar("Key", bound=Hashable)
_LENGTHS: Final = ("up to 100", "100 to 500", "500 to 2,000", "2,000 to 8,000", "8,000 to 32,000")
_LENGTH: Final = "".join(
    f"WHEN tokens_in < {edge} THEN '{name}' "
    for edge, name in zip((100, 500, 2000, 8000, 32000), _LENGTHS, strict=True)
)
DIMENSIONS: Final[Mapping[str, tuple[str, str]]] = {
    "path": ("Path", "path"),
    "tier": ("Tier", "tier"),
    "backend": ("Backend", "backend"),
    "model": ("Model", "model"),
    "policy": ("Policy version", "policy"),
    "prompt": ("Prompt, tokens", f"CASE WHEN tokens_in IS NULL THEN '' {_LENGTH}ELSE '32,000 and more' END"),
    "stream": ("Streamed", "CASE WHEN stream THEN 'streamed' ELSE 'whole' END"),
    "kind": ("Kind of task", "kind"),
    "arm": ("Arm", "arm"),
    "error": ("Error", "error"),
}
"""Title of each trait, and the SQL of a request's value of it, by name."""


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
    chi_squared = math.fsum(apart * apart / count for count in expected)
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
    """Return the keys whose p value shows a difference, by Holm's method: at most 5% that any of them is chance."""
    ordered = sorted(tested.items(), key=lambda pair: pair[1])
    differ = set()
    for number, (key, p) in enumerate(ordered):
        if p > _LEVEL / (len(ordered) - number):
            break
        differ.add(key)
    return differ
