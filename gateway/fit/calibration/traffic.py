"""Hold the input of a calibration: the surface, the two tiers whose threshold is chosen, and labelled requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gateway.fit.calibration.cases import Cases, CostUnit
from gateway.fit.calibration.start import StartRules
from gateway.measures.curves import Flags, Floats
from policies.model import Policy, Traffic
from routing.confidence.judge import Basis


@dataclass(frozen=True, slots=True)
class TierModel:
    """The model that a tier's first backend runs, and its prices in US dollars per million tokens."""

    model: str
    input_price: float
    output_price: float


@dataclass(frozen=True, slots=True)
class LabelledSurface:
    """A surface, its policy file, and the models of its first two tiers, `small` and `large`.

    `traffic` is a new measurement of the surface's own requests, which `policy` has already; None leaves the file's.
    """

    file: Path
    policy: Policy
    rules: StartRules
    small: TierModel
    large: TierModel
    traffic: Traffic | None = None

    def measured(self, traffic: Traffic) -> LabelledSurface:
        """Return the surface with this measurement of its own requests in its policy."""
        route = self.policy.route.model_copy(update={"traffic": traffic})
        policy = self.policy.model_copy(update={"route": route})
        return replace(self, policy=policy, rules=StartRules.of(policy), traffic=traffic)

    @property
    def tiers(self) -> tuple[str, str]:
        """The names of the two tiers."""
        return self.policy.tiers[0], self.policy.tiers[1]


@dataclass(frozen=True, slots=True)
class LabelledTraffic:
    """Labelled requests. `models` are the two that answered; `notes` are caveats to print with the result."""

    cases: Cases
    basis: Basis
    models: tuple[str, str]
    notes: tuple[str, ...]


def dollars(cost_usd: float | None, tok_in: int | None, tok_out: int | None, model: TierModel) -> float | None:
    """Return a call's cost in US dollars: as recorded, else its tokens at the model's price; None if unknown."""
    if cost_usd is not None:
        return cost_usd
    if tok_in is None or tok_out is None:
        return None
    return (tok_in * model.input_price + tok_out * model.output_price) / 1e6


def costs(small: Sequence[float | None], large: Sequence[float | None]) -> tuple[Floats, Floats, CostUnit]:
    """Return both tiers' costs and their unit: US dollars, or large calls if some are unknown or the large are free."""
    both = [(one, other) for one, other in zip(small, large, strict=True) if one is not None and other is not None]
    if len(both) < len(small) or not sum(other for _, other in both):
        return np.zeros(len(small)), np.ones(len(small)), "large calls"
    pairs = np.array(both)
    return pairs[:, 0], pairs[:, 1], "dollars"


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The judge's view of the small tier's answers, as arrays for `Cases`: one confidence and one flag a request."""

    confidence: Floats
    unfit: Flags
    basis: Basis


def judged(
    surface: LabelledSurface, confidences: Sequence[tuple[float | None, Basis]], faulty: Sequence[bool]
) -> JudgedAnswer:
    """Return the answers' confidences for the threshold to be chosen.

    One threshold is chosen at a time: that for calibrated confidence if any answer has one, else that for uncalibrated.
    In the first case, uncalibrated answers are accepted or rejected by the policy's present uncalibrated threshold.
    """
    chosen: Basis = "calibrated" if any(basis == "calibrated" for _, basis in confidences) else "logprob"
    calibrated = chosen == "calibrated"
    other = surface.policy.escalate.when.threshold(calibrated=False)
    confidence, unfit = np.full(len(confidences), np.nan), np.array(faulty, bool)
    for i, (value, basis) in enumerate(confidences):
        if value is None:
            continue
        if calibrated and basis != "calibrated":
            confidence[i] = np.inf
            unfit[i] |= value < other
        else:
            confidence[i] = value
    return JudgedAnswer(confidence, unfit, chosen)
