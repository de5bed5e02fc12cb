"""Compute the interval of a share."""

from __future__ import annotations

import math
from typing import Final

_Z: Final = 1.959963984540054
"""Standard errors from the middle to each end of a 95% interval."""


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return the ends of the 95% score interval of a share of `n` cases, at least one.

    The interval (Wilson 1927) is valid for rare events and few cases.
    """
    z2 = _Z * _Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    # At both extremes rounding would leave a difference in the last bit.
    return 0.0 if share == 0 else middle - half, 1.0 if share == 1 else middle + half
