"""Test whether a mean is at most zero, with error probability at most delta, for bounded values and any sample size.

For values between `low` and `high` it bets against the claim (Waudby-Smith and Ramdas 2024, "Estimating means of
bounded random variables by betting"): a stake on each value, set by the values before it, makes a capital that grows
only if the mean is below zero, and by Ville's inequality exceeds 1/delta with probability at most delta if it is not.
It adapts to the variance, so it needs far fewer labels than Hoeffding's bound (Bates et al. 2021, RCPS). Where a value
can only be one of the two bounds, the exact binomial tail is used, which is tighter still.

The rows must be independent draws in an order that does not depend on their values: shuffle them before looking.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.parts.fit.curves import Flags, Floats

# Share of the capital that one bet may lose; between 0.5 and 0.9 it hardly matters (cascade_mmlu, 200-1,200 rows).
_MOST_AT_STAKE = 0.75
_LASTING = 1 / 3
_MOST_LABELS = 10_000_000
_BISECTIONS = 16


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses per request and setting: `values` (requests, settings), between `low` < 0 and `high` > 0, (settings,).

    `binary`: a value is always either `low` or `high`.
    """

    values: Floats
    low: Floats
    high: Floats
    binary: bool = False


Claim = Callable[[Floats], Losses]
"""Maps a level for each setting, shape (settings,), such as 95% of the large model's quality, to losses whose mean is
at most 0 exactly if the level is kept."""


def proven(losses: Losses, delta: float) -> Flags:
    """Return whether each setting's mean loss is at most 0, each alone at confidence 1 - delta, shape (settings,)."""
    if losses.binary:
        return np.asarray(_binomial_tails(losses) <= delta)
    capital, enough = _log_capital(losses, delta), math.log(1 / delta)
    # The bound allows stopping at a lucky beginning. All labels together must still support the claim, if less
    # strongly: it costs 0.01 to 0.02 of always-large's cost on the cascade_* sets and avoids claims that the rest of
    # the labels contradicts.
    lasting = (capital[-1] >= _LASTING * enough) & (losses.values.mean(axis=0) <= 0)
    return np.asarray((capital.max(axis=0) >= enough) & lasting)


def best_level(claim: Claim, delta: float, sure: Floats, hopeless: float) -> Floats:
    """Return for each setting the level nearest to `hopeless` that is proven at confidence 1 - delta, (settings,).

    If a level is proven, each one nearer to `sure` must be so too; `sure` is returned where nothing is proven.
    """
    good, bad = sure.copy(), np.full(len(sure), hopeless)
    for _ in range(_BISECTIONS):
        middle = (good + bad) / 2
        holds = proven(claim(middle), delta)
        good, bad = np.where(holds, middle, good), np.where(holds, bad, middle)
    return good


def labels_needed(losses: Losses, delta: float) -> int | None:
    """Estimate how many labels like these would prove the claim for the first setting.

    None if its mean is not below 0, or so near that ten million would not suffice.
    """
    if losses.values[:, 0].mean() >= 0:
        return None
    too_few, enough = 1, 2
    while not _would_do(losses, enough, delta):
        too_few, enough = enough, enough * 2
        if enough > _MOST_LABELS:
            return None
    while enough - too_few > max(1, enough // 100):
        middle = (too_few + enough) // 2
        if _would_do(losses, middle, delta):
            enough = middle
        else:
            too_few = middle
    return enough


def _log_capital(losses: Losses, delta: float) -> Floats:
    """Return the log of the capital after each value, shape (requests, settings).

    The stakes are those of the predictable empirical Bernstein bound.
    """
    width = losses.high - losses.low
    values = losses.values / width
    count, settings = values.shape
    seen = np.arange(1, count + 1)[:, None]
    # Prior before the first value: the middle of the range, counted as one value more.
    mean = ((losses.low + losses.high) / (2 * width) + np.cumsum(values, axis=0)) / (seen + 1)
    variance = (0.25 + np.cumsum((values - mean) ** 2, axis=0)) / (seen + 1)
    before = np.vstack([np.full((1, settings), 0.25), variance[:-1]])
    stake = np.minimum(np.sqrt(2 * math.log(1 / delta) / (count * before)), _MOST_AT_STAKE * width / losses.high)
    return np.asarray(np.cumsum(np.log1p(-stake * values), axis=0))


def _binomial_tails(losses: Losses) -> Floats:
    """Return P(at most as many losses as these) if the mean were exactly 0, shape (settings,)."""
    rate = -losses.low / (losses.high - losses.low)
    count = len(losses.values)
    middle = (losses.low + losses.high) / 2
    lost = (losses.values > middle).sum(axis=0)
    return np.asarray(_binomial_tail(lost, count, rate))


def _binomial_tail(most: Any, count: int, rate: Any) -> Any:
    """Return P(Binomial(count, rate) <= most), for numbers or arrays of them."""
    from scipy.stats import binom

    return binom.cdf(most, count, np.minimum(rate, 1.0))


def _would_do(losses: Losses, count: int, delta: float) -> bool:
    values, low, high = losses.values[:, 0], float(losses.low[0]), float(losses.high[0])
    if losses.binary:
        share = float((values > (low + high) / 2).mean())
        return bool(_binomial_tail(math.floor(count * share), count, -low / (high - low)) <= delta)
    width = high - low
    scaled = values / width
    # The variance prior's weight is 1/n after n values: averaged over all of them, log(count) / count.
    variance = float(scaled.var()) + 0.25 * math.log(count) / count
    stake = min(math.sqrt(2 * math.log(1 / delta) / (count * variance)), _MOST_AT_STAKE * width / high)
    return count * float(np.log1p(-stake * scaled).mean()) >= math.log(1 / delta)
