"""Hold the input of a calibration: the surface, the two tiers whose threshold is chosen, and labelled requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gateway.parts.fit.calibration.cases import Cases
from gateway.parts.fit.calibration.start import StartRules
from gateway.parts.fit.curves import Flags, Floats
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


def call_dollars(cost_usd: float | None, tok_in: int | None, tok_out: int | None, model: TierModel) -> float | None:
    """Return a call's cost in US dollars: as recorded, else its tokens at the model's price; None if unknown."""
    if cost_usd is not None:
        return cost_usd
    if tok_in is None or tok_out is None:
        return None
    return (tok_in * model.input_price + tok_out * model.output_price) / 1e6


def cases_of(
    surface: LabelledSurface,
    right: tuple[Sequence[float], Sequence[float]],
    costs: tuple[Sequence[float | None], Sequence[float | None]],
    confidences: Sequence[tuple[float | None, Basis]],
    faulty: Sequence[bool],
    starts: Mapping[float | None, Flags],
) -> tuple[Cases, Basis]:
    """Return labelled requests as cases, and the basis of the confidence whose threshold is to be chosen.

    `right` and `costs` are of the small and of the large tier. Costs are in US dollars, or counted in large calls if
    some are unknown or the large ones are free.
    """
    confidence, unfit, basis = _judged(surface, confidences, faulty)
    pairs = np.array(list(zip(*costs, strict=True)), np.float64).reshape(-1, 2)  # None is NaN
    known = not np.isnan(pairs).any() and pairs[:, 1].sum() > 0
    pairs = pairs if known else np.tile([0.0, 1.0], (len(pairs), 1))
    return Cases(
        np.array(right[0], np.float64),
        np.array(right[1], np.float64),
        confidence,
        unfit,
        pairs[:, 0],
        pairs[:, 1],
        starts,
        "dollars" if known else "large calls",
        surface.policy.escalate.no_signal == "accept",
    ), basis


def _judged(
    surface: LabelledSurface, confidences: Sequence[tuple[float | None, Basis]], faulty: Sequence[bool]
) -> tuple[Floats, Flags, Basis]:
    """Return the answers' confidences for the threshold to be chosen, which are unfit, and the confidences' basis.

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
    return confidence, unfit, chosen
