"""Shares are compared as textbooks do it, and held together where many are."""

from __future__ import annotations

import math
from itertools import product
from math import comb

from gateway.parts.console.compared import chance_of, differing


def test_many_requests_are_compared_as_two_proportions() -> None:
    """As in the textbooks' 2 x 2 table with Yates's correction."""
    total, table = 200, ((30, 70), (15, 85))
    apart = abs(30 * 85 - 70 * 15) - total / 2
    chi_squared = total * apart * apart / (100 * 100 * 45 * 155)
    assert math.isclose(chance_of(table[0][0], 100, table[1][0], 100), math.erfc(math.sqrt(chi_squared / 2)))


def test_few_requests_are_compared_exactly() -> None:
    """As the sum of the hypergeometric distribution's smaller tail, twice."""
    selected, rest = 9, 30
    for inside, outside in product(range(selected + 1), range(5)):
        have, total = inside + outside, selected + rest
        ways = [comb(have, k) * comb(total - have, selected - k) for k in range(min(have, selected) + 1)]
        tail = min(sum(ways[: inside + 1]), sum(ways[inside:])) / comb(total, selected)
        expected = [have * part / total for part in (selected, rest)]
        if min(*expected, selected - expected[0], rest - expected[1]) < 5:
            found = chance_of(inside, selected, outside, rest)
            assert math.isclose(found, min(1.0, 2 * tail), rel_tol=1e-9), (inside, outside)
    assert chance_of(23, 63, 0, 837) < 1e-20 and chance_of(1, 1_000_000, 0, 9_000_000) > 0.05


def test_those_that_differ_are_held_together() -> None:
    """By Holm's method: each is compared with the part of 5% that those which are left may have."""
    assert differing({"a": 0.001, "b": 0.02, "c": 0.04, "d": 0.9}) == {"a"}
    assert differing({"a": 0.012, "b": 0.016, "c": 0.024, "d": 0.049}) == {"a", "b", "c", "d"}
    assert differing({}) == set()
