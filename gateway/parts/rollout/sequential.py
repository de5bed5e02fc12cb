"""Test a difference between two arms as often as one likes: the tests behind a canary's guards.

Each arm's mean is a ratio over units (conversations): what their requests sum to, over how many they are. Requests of
one unit resemble each other, so all variances are those between units.

Shares and scores from 0 to 1 are tested by betting (I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random
variables by betting", JRSS B 2024): capital that grows by (1 + bet * (value - mean)) for each value cannot, if the mean
is right, ever exceed 1/alpha with more probability than alpha. Here the capital is spread over bets that suit a series
of effects from small to large, and its logarithm is divided by the design effect: the variance between units over
that of as many independent requests. The mean that is bet against comes from the control; as that is estimated too, the
logarithm is also multiplied by the part of the variance that is the candidate's own.

Amounts without a bound (cost) are tested by a normal mixture over the estimate and its variance (I. Waudby-Smith, D.
Arbour, R. Sinha, E. Kennedy and A. Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences",
Annals of Statistics 2024, after S. Howard et al., Annals of Statistics 2021).

A split is tested by a beta mixture over the share (M. Lindon and A. Malek, "Anytime-valid inference for multinomial
count data", NeurIPS 2022).

All functions take numbers or arrays of them, so that the same code judges and is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

Number = Any
"""A float, or a float64 array; all of one call have one shape."""

RISES: Final = np.array([0.0025, 0.005, 0.01, 0.02, 0.03, 0.045, 0.07, 0.11, 0.18, 0.3, 0.5])
"""Rises above the mean under test that the bets suit, as absolute shares."""
FALLS: Final = np.array([0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.7, 0.9, 0.99])
"""Falls below the mean under test that the bets suit, as parts of that mean."""
FEWEST_UNITS: Final = 5
"""Fewest units of the candidate that any verdict rests on."""
FEWEST_COSTS: Final = 30
"""Fewest units of each arm whose costs are compared."""
COST: Final = "cost"
SLOW: Final = "ttft_p95"
QUALITY: Final = "quality"
_TINY: Final = 1e-12
_EVENTS: Final = 10.0
"""So many events (or non-events, whichever are fewer) weigh as much as what is assumed about the design effect."""


@dataclass(slots=True)
class Sums:
    """Running sums of one measure over the units of one arm: `n` is a unit's count of requests, `s` their sum."""

    units: Number = 0.0
    n: Number = 0.0
    s: Number = 0.0
    nn: Number = 0.0
    ns: Number = 0.0
    ss: Number = 0.0

    def add(self, n: float, s: float, value: float) -> None:
        """Count one more request of a unit that had `n` requests with the sum `s`."""
        if not n:
            self.units += 1
        self.n += 1
        self.s += value
        self.nn += 2 * n + 1
        self.ns += s + value * (n + 1)
        self.ss += value * (2 * s + value)

    @property
    def mean(self) -> Number:
        """The mean over requests; 0 without any."""
        return self.s / np.maximum(self.n, 1)

    def variance(self, mean: Number | None = None) -> Number:
        """Return the variance of `mean` as an estimate, from the differences between units; infinite below two."""
        mean = self.mean if mean is None else mean
        residuals = np.maximum(self.ss - 2 * mean * self.ns + mean**2 * self.nn, 0)
        units = np.maximum(self.units, 2)
        return np.where(self.units < 2, np.inf, residuals * units / (units - 1) / np.maximum(self.n, 1) ** 2)

    def take(self, where: Any) -> Sums:
        """Return the sums at some places of arrays."""
        return Sums(*(getattr(self, field.name)[where] for field in fields(self)))


def design_effect(sums: Sums, assumed: Number) -> Number:
    """Return the variance of a mean of values in 0..1 over that of as many independent ones with two values.

    `assumed` is what holds until there are some tens of events.
    """
    mean = sums.mean
    events = sums.n * np.minimum(mean, 1 - mean)
    independent = np.maximum(mean * (1 - mean), _TINY) / np.maximum(sums.n, 1)
    known = (sums.units >= 2) & (events > 0)
    measured = np.where(known, sums.variance() / independent, 0.0)
    weight = np.where(known, events / (events + _EVENTS), 0.0)
    return weight * np.where(known, measured, 0.0) + (1 - weight) * assumed


def most_correlated(sums: Sums) -> Number:
    """Return the highest design effect that these sums allow: that of units whose requests all have one value."""
    return np.maximum(sums.nn / np.maximum(sums.n, 1), 1)


def log_capital(
    candidate: Sums, control: Sums, difference: Number, *, worse: bool, least_effect: float = 1.0
) -> Number:
    """Return the logarithm of the capital of bets against: candidate's mean <= control's + difference.

    With `worse` False the bets are against >=. Values are from 0 to 1, and the more, the worse. Where it exceeds
    log(1/alpha) at any time, the hypothesis is refuted with that certainty. `least_effect` is the least design effect.
    """
    of_control = np.maximum(design_effect(control, most_correlated(control)), least_effect)
    effect = np.maximum(design_effect(candidate, of_control), least_effect)
    size = 1 / (effect / np.maximum(candidate.n, 1) + of_control / np.maximum(control.n, 1))
    # One more event than was seen, where that is the careful side: none in a few requests does not mean never.
    base = (control.s + 1) / (control.n + 1) if worse else control.mean
    p0 = np.clip(base + difference, 1e-4, 1 - 1e-4)
    observed = candidate.mean
    steps = (RISES if worse else FALLS).reshape(-1, *[1] * np.ndim(p0 + observed))
    p = p0 + steps if worse else p0 * (1 - steps)
    fits = p < 1
    p = np.where(fits, p, p0)
    growth = observed * np.log(p / p0) + (1 - observed) * np.log((1 - p) / (1 - p0))
    log = np.logaddexp.reduce(np.where(fits, size * growth, 0.0), axis=0)
    enough = (control.n > 0) & (candidate.units >= FEWEST_UNITS)
    return np.where(enough, log - np.log(len(steps)), -np.inf)


def mixture_radius(variance: Number, scale: Number, alpha: float) -> Number:
    """Return how far from its estimate a mean can be on one side, at any time, with probability 1 - alpha.

    `variance` is the estimate's; `scale` is the size of differences for which the bound is tightest.
    """
    known = np.isfinite(variance)
    finite = np.maximum(np.where(known, variance, 1.0), _TINY**2)
    v = np.maximum(np.asarray(scale, float) ** 2, _TINY**2) / finite
    radius = np.sqrt(2 * finite * (1 + 1 / v) * np.log1p(np.sqrt(1 + v) / (2 * alpha)))
    return np.where(known, radius, np.inf)


def ratio_difference(candidate: Sums, control: Sums, factor: float) -> tuple[Number, Number]:
    """Return candidate's mean less `factor` times control's, and the variance of that.

    A unit of the candidate is taken to vary at least as a control's does: a few units that happen to be alike prove
    nothing.
    """
    alike = control.variance() * np.maximum(control.units, 1) / np.maximum(candidate.units, 1)
    variance = np.maximum(candidate.variance(), alike) + factor**2 * control.variance()
    return candidate.mean - factor * control.mean, np.where(np.isnan(variance), np.inf, variance)


@dataclass(frozen=True, slots=True)
class GuardTest:
    """The two tests behind a guard of a canary: that the candidate is worse than `allowed`, and that it is not.

    `allowed` is the guard's limit without its sign; late first tokens are told from others by it, and then compared.
    """

    guard: str
    allowed: float

    def proof(self, candidate: Sums, control: Sums, alpha: float, *, worse: bool) -> float:
        """Return the part of a proof that there is, with an error of at most `alpha`: it is proven above 1."""
        if self.guard == COST:
            estimate, radius = self._excess(candidate, control, alpha, worse=worse)
            distance = estimate if worse else -estimate
            # The information that is there grows with the square of the distance.
            known = self.can_compare(candidate, control) and distance > 0 and 0 < radius < math.inf
            return (distance / radius) ** 2 if known else 0.0
        limit = 0.0 if self.guard == SLOW else self.allowed
        return self._capital(candidate, control, limit, worse=worse) / -math.log(alpha)

    def can_compare(self, candidate: Sums, control: Sums) -> bool:
        """Return whether both arms have enough units."""
        if self.guard == COST:
            return bool(min(candidate.units, control.units) >= FEWEST_COSTS)
        return bool(candidate.units >= FEWEST_UNITS and control.n)

    def bounds(
        self, candidate: Sums, control: Sums, alpha: float, alpha_within: float
    ) -> tuple[float, float] | tuple[None, None]:
        """Return between which differences the true one is; for cost, relative to the control's mean."""
        base = float(control.mean)
        if not self.can_compare(candidate, control) or (self.guard == COST and base <= 0):
            return None, None
        if self.guard == COST:
            estimate, below = self._excess(candidate, control, alpha, worse=True)
            _, above = self._excess(candidate, control, alpha_within, worse=False)
            return (estimate - below) / base + self.allowed, (estimate + above) / base + self.allowed
        least, most = -base, 1 - base
        low = _border(least, most, lambda d: self._capital(candidate, control, d, worse=True) > -math.log(alpha))
        return low, _border(
            most, least, lambda d: self._capital(candidate, control, d, worse=False) > -math.log(alpha_within)
        )

    def _capital(self, candidate: Sums, control: Sums, difference: float, *, worse: bool) -> float:
        least = 0.0 if self.guard == QUALITY else 1.0
        return float(log_capital(candidate, control, difference, worse=worse, least_effect=least))

    def _excess(self, candidate: Sums, control: Sums, alpha: float, *, worse: bool) -> tuple[float, float]:
        """Return by how much the candidate costs more than is allowed, and how far from that it can be."""
        estimate, variance = ratio_difference(candidate, control, 1 + self.allowed)
        scale = 3 * max(self.allowed, 0.05) if worse else max(self.allowed, 0.01)
        mean = max(float(control.mean), float(candidate.mean))
        return float(estimate), float(mixture_radius(variance, scale * mean, alpha))


def _border(refuted: float, open_: float, is_refuted: Callable[[float], bool]) -> float:
    """Return the border between the differences that are refuted and those that are not, between these two."""
    if not is_refuted(refuted):
        return refuted
    for _ in range(16):
        middle = (refuted + open_) / 2
        if is_refuted(middle):
            refuted = middle
        else:
            open_ = middle
    return refuted


def split_capital(candidate: Number, control: Number, share: float) -> Number:
    """Return the log of the capital that bets win against the claim that arms are drawn with this `share`.

    The claim: each unit is the candidate's with probability `share`. The arguments are the units of either arm.
    """
    weight = 20.0 / min(share, 1 - share)
    a, b = weight * share, weight * (1 - share)
    likelihood = _log_beta(a + candidate, b + control) - _log_beta(a, b)
    return likelihood - candidate * np.log(share) - control * np.log1p(-share)


def _log_beta(a: Number, b: Number) -> Number:
    return _log_gamma(a) + _log_gamma(b) - _log_gamma(a + b)


def _log_gamma(x: Number) -> Number:
    """Return the logarithm of the gamma function by Stirling's series: to 1e-9 for the arguments here, 20 and above."""
    return (x - 0.5) * np.log(x) - x + 0.5 * np.log(2 * np.pi) + 1 / (12 * x) - 1 / (360 * x**3)
