"""Compare how an input is distributed now with how it was: the population stability index (PSI).

PSI is the sum over bins of (now - before) * ln(now / before), with shares: 0 for the same distribution. By long use in
credit scoring, below 0.1 nothing has changed, from 0.25 on a model should be looked at. Samples of one distribution
differ too: their PSI is about a chi-squared variable of one degree less than there are bins, times 1/n + 1/m; what is
below its 95th percentile is called stable whatever the thresholds say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

MOVED: Final = 0.1
DRIFTED: Final = 0.25
FEWEST: Final = 100
"""Requests on either side, below which nothing is said."""
_BINS: Final = 10
_PRIOR: Final = 0.5
_Z95: Final = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class Drift:
    """How an input differs. `bins` have a name and the shares of before and of now; `noise` is what chance alone stays
    below in 19 of 20 cases. `state` is stable, moved or drifted."""

    psi: float
    noise: float
    state: str
    bins: tuple[tuple[str, float, float], ...]


def drift(before: Mapping[str, float], now: Mapping[str, float], *, exact: bool = False) -> Drift:
    """Return the drift between two counts of the same bins. `exact`: those of before are known shares, no sample."""
    names = list(before) + [name for name in now if name not in before]
    old, new = (np.array([some.get(name, 0) for name in names], np.float64) for some in (before, now))
    n, m = old.sum(), new.sum()
    # Half a request more in each bin: a bin that one side lacks would be infinitely far.
    p, q = ((one + (0.0 if exact and one is old else _PRIOR)) for one in (old, new))
    p, q = p / p.sum(), q / q.sum()
    psi = float(((q - p) * np.log(q / p)).sum())
    noise = _chi_squared_95(len(names) - 1) * ((0 if exact else 1 / n) + 1 / m) if len(names) > 1 else 0.0
    state = "stable" if psi < MOVED or psi <= noise else "moved" if psi < DRIFTED else "drifted"
    return Drift(psi, noise, state, tuple(zip(names, (old / n).tolist(), (new / m).tolist(), strict=True)))


def merged(fine: Sequence[tuple[str, float, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Merge neighbouring bins (name, before, now), in order, into about ten that were equally full before."""
    total = sum(before for _, before, _ in fine)
    old: dict[str, float] = {}
    new: dict[str, float] = {}
    names: list[str] = []
    sums = [0.0, 0.0]
    for place, (name, before, now) in enumerate(fine):
        names.append(name)
        sums[0] += before
        sums[1] += now
        if sums[0] >= total / _BINS or place == len(fine) - 1:
            label = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            old[label], new[label] = sums
            names, sums = [], [0.0, 0.0]
    return old, new


def input_drift(name: str, before: Mapping[str, float], now: Mapping[str, float], **more: Any) -> dict[str, Any]:
    """Return the drift of one input as JSON values; `psi` is None while a side is too small, `missing` says by what."""
    exact = bool(more.pop("exact", False))
    n, m = sum(before.values()), sum(now.values())
    missing = {"before": 0 if exact else max(0, math.ceil(FEWEST - n)), "now": max(0, math.ceil(FEWEST - m))}
    shown = {"input": name, "before": None if exact else int(n), "now": int(m), "missing": missing, **more}
    if any(missing.values()):
        return {**shown, "psi": None, "noise": None, "state": "unknown", "bins": []}
    found = drift(before, now, exact=exact)
    return {**shown, "psi": found.psi, "noise": found.noise, "state": found.state, "bins": found.bins}


def _chi_squared_95(degrees: int) -> float:
    """Return the 95th percentile (Wilson and Hilferty 1931, within 1% from one degree on)."""
    part = 2 / (9 * degrees)
    return degrees * float((1 - part + _Z95 * math.sqrt(part)) ** 3)
