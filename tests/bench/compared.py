"""Compare the latencies of two arms that took turns: the ratio of a quantile, with the interval that noise leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 1000


@dataclass(frozen=True)
class Ratio:
    """The quantile of one arm divided by that of the other, and its 95% interval over the rounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"x {self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio_of(base: Sequence[Sequence[float]], own: Sequence[Sequence[float]], share: float, seed: int = 0) -> Ratio:
    """Compare quantile `share` of all times of `own` with that of `base`; each has the times of every round.

    A busy minute falls on one round of both arms, so whole rounds are drawn again, the same ones of both.
    """
    draw = np.random.default_rng(seed)
    ours, theirs = [np.asarray(one) for one in own], [np.asarray(one) for one in base]

    def at(rounds: Sequence[int]) -> float:
        mine = np.concatenate([ours[number] for number in rounds])
        return float(np.quantile(mine, share) / np.quantile(np.concatenate([theirs[n] for n in rounds]), share))

    drawn = [at(draw.integers(0, len(ours), len(ours)).tolist()) for _ in range(_RESAMPLES)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Ratio(at(range(len(ours))), float(low), float(high))
