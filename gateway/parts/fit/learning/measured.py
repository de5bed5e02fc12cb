"""Measure a classifier of one's own against the one that it corrects, on labels that it was not fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Blocks, Curve, Floats, aurocs, calibration_errors
from gateway.parts.fit.figures import Interval, interval, resamples
from gateway.parts.fit.learning.labels import OwnLabels
from gateway.parts.fit.learning.source_table import table_scores
from gateway.parts.fit.training.ranking_left_out import FLOOR
from routing.difficulty.own_heads import OwnHeads

_RESAMPLES: Final = 2000
_WORSE_CALIBRATED: Final = 0.02
"""Most by which the calibration error may exceed the other classifier's, for a better ranking to count."""


@dataclass(frozen=True, slots=True)
class RouterFigures:
    """How one classifier does on the held-out labels.

    `apgr` is as in `gateway.parts.fit.metrics`, 0.5 for chance. `auroc` is for "the small tier's answer is adequate",
    `ece` the calibration error of that probability. `abstains` is the share outside its domain, which all get the same
    score: rules cannot order them.
    """

    apgr: Interval
    auroc: Interval
    ece: Interval
    abstains: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Both classifiers on the same `labels` held-out labels of `conversations`; differences are own minus other.

    `table` is the APGR of a table of sources, languages and lengths over the labels that were fitted
    (`gateway.parts.fit.learning.source_table`), and `table_gain` how much higher the own classifier's is.
    """

    labels: int
    conversations: int
    own: RouterFigures
    other: RouterFigures
    apgr_gain: Interval
    table: Interval
    table_gain: Interval

    @property
    def verdict(self) -> str:
        """Why the own classifier is not better; '' if it is."""
        if not np.isfinite(self.own.apgr.value):
            return "the strong tier's answers are no better than the small one's, so there is nothing to route for"
        if not self.apgr_gain.lo > 0:
            return f"its APGR is higher by {self.apgr_gain}, which may be chance"
        if not self.table_gain.lo > 0:
            return (
                f"a table of sources, languages and lengths ranks as well: APGR {self.table}, {self.table_gain} lower"
            )
        if self.own.apgr.lo < FLOOR:
            return f"its APGR is {self.own.apgr}; a domain of its own takes {FLOOR:g} at the lower bound"
        if self.own.ece.value > self.other.ece.value + _WORSE_CALIBRATED:
            return f"its calibration error is {self.own.ece}, the other's {self.other.ece}"
        return ""


def head_figures(labels: OwnLabels, heads: OwnHeads, seed: int, fitted: OwnLabels) -> Measured:
    """Return the figures on these labels of the heads, of the classifier below them, and of a table over `fitted`."""
    near = heads.near(labels.vectors)
    own = np.where(
        near[:, None],
        heads.p_right(labels.vectors, labels.counts, labels.p_right, labels.in_domain),
        labels.p_right,
    )
    own_in, other_in = near | labels.in_domain, labels.in_domain
    scores = _score(own, own_in), _score(labels.p_right, other_in)
    gain, right = labels.gain, (labels.right[:, 0] >= 0.5).astype(np.float64)
    by_table = table_scores(fitted, labels)
    blocks = [Blocks.of(score) for score in (*scores, by_table[:, 1] - by_table[:, 0])]
    by_p = [Blocks.of(p[:, 0]) for p in (own, labels.p_right)]
    errors = [p[:, 0] - labels.right[:, 0] for p in (own, labels.p_right)]
    once = np.ones((1, len(labels)))

    def figures(weights: Floats) -> list[Floats]:
        """Return the rows' APGR, AUROC and calibration errors, of the own classifier first; APGR of the table, too."""
        return [
            *(Curve.of(block, gain, weights).recovered() for block in blocks),
            *(aurocs(p, right, weights) for p in by_p),
            *(calibration_errors(p, error, weights) for p, error in zip(by_p, errors, strict=True)),
        ]

    values = [float(value[0]) for value in figures(once)]
    draws = resamples(len(labels), seed, _RESAMPLES, labels.conversation)
    drawn = [np.concatenate(parts) for parts in zip(*map(figures, draws), strict=True)]
    apgr = [interval(value, some) for value, some in zip(values[:3], drawn[:3], strict=True)]
    auroc = [interval(value, some) for value, some in zip(values[3:5], drawn[3:5], strict=True)]
    ece = [interval(value, some, biased=True) for value, some in zip(values[5:], drawn[5:], strict=True)]
    return Measured(
        len(labels),
        len(np.unique(labels.conversation)),
        RouterFigures(apgr[0], auroc[0], ece[0], float(1 - own_in.mean())),
        RouterFigures(apgr[1], auroc[1], ece[1], float(1 - other_in.mean())),
        interval(values[0] - values[1], drawn[0] - drawn[1]),
        apgr[2],
        interval(values[0] - values[2], drawn[0] - drawn[2]),
    )


def _score(p_right: Floats, in_domain: NDArray[np.bool_]) -> Floats:
    """Return the expected gain by which requests are routed; those outside the domain all have the mean one."""
    gain = p_right[:, 1] - p_right[:, 0]
    return np.where(in_domain, gain, gain[in_domain].mean() if in_domain.any() else 0.0)
