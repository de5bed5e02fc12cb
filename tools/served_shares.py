"""Find the lowest score that serves few pairs wrongly, and count what a score serves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Flags, Floats
from gateway.parts.measures.intervals import wilson


def least_threshold(scores: Floats, same: Flags, most_wrong: float) -> float:
    """Return the lowest threshold at which at most the share `most_wrong` of the pairs that differ is served.

    A score below 0 is served at none. 0.5 where so few pairs differ that any threshold would do.
    """
    wrong = np.sort(scores[~same])[::-1]
    allowed = int(most_wrong * len(wrong))
    return float(np.nextafter(wrong[allowed], 2.0)) if len(wrong) and wrong[allowed] >= 0 else 0.5


def served_shares(served: Flags, same: Flags, group: NDArray[np.str_]) -> dict[str, Any]:
    """Return the shares of true pairs served and of the others wrongly served, with 95% intervals, in all and by group.

    A share of no pairs is None.
    """
    values: dict[str, Any] = {"n": len(served)}
    for name, rows in (("served", same), ("wrong", ~same)):
        n = int(rows.sum())
        share = float(served[rows].mean()) if n else None
        values[name] = None if share is None else round(share, 4)
        values[f"{name}_interval"] = None if share is None else [round(end, 4) for end in wilson(share, n)]
    names = np.unique(group)
    if len(names) > 1:
        masks = {str(name): group == name for name in names}
        values["groups"] = {name: served_shares(served[own], same[own], group[own]) for name, own in masks.items()}
    return values
