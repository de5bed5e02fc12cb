"""Read how many parameters a model has from its name, and say whether that is enough to judge drafts.

Models of 1 billion parameters judged their own answers no better than chance, those of 3 billion and more usefully
(routing/README.md).
"""

from __future__ import annotations

import re
from typing import Final

LEAST_BILLIONS: Final = 3.0
"""Least size of a judge, in billions of parameters, where the name states a size."""
_SIZE: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([bm])(?![a-z0-9])", re.IGNORECASE)


def billions_in(model: str) -> float | None:
    """Return the parameters that a model's name states, in billions; None if it states none.

    Of several sizes, as of a mixture with few active parameters, the largest counts.
    """
    sizes = [float(number) / (1000 if unit in "mM" else 1) for number, unit in _SIZE.findall(model)]
    return max(sizes, default=None)


def is_too_small(model: str) -> bool:
    """Return whether a model's name states fewer parameters than a judge needs."""
    billions = billions_in(model)
    return billions is not None and billions < LEAST_BILLIONS
