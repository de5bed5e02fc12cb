"""Decide by sets left out whether the learned scorers of a confidence head may change the raw value's order.

Each kind of answers (those of one data set or kind of request, the short, middling and long ones) is left out whole and
judged by scorers that were fitted to the rest. Folds by row do not show what a head does with answers unlike those that
it was fitted to; there it has lost against the raw log-probability that it was meant to better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Blocks, Floats, auroc, aurocs
from gateway.parts.fit.figures import interval, resamples
from gateway.parts.fit.training.scorers import FEW_LABELS, ScorerPart, scorers_of
from gateway.parts.heads.head import LogisticScorer

_MOST_LOST: Final = 0.005
"""AUROC that a head may lose against the raw value on one set left out."""
_RESAMPLES: Final = 500
_FEWEST: Final = 10
"""Right, and wrong, answers that a set needs to be judged."""

LENGTHS: Final = ("short", "middling", "long")
"""Kinds of answers by length: each a third of them."""


def length_kind(tokens: NDArray[np.int64]) -> list[str]:
    """Return the kind, of LENGTHS, of answers with so many tokens; '' for all where most are equally long."""
    low, high = np.quantile(tokens, [1 / 3, 2 / 3]) if len(tokens) else (0, 0)
    if low >= high:
        return [""] * len(tokens)
    return [LENGTHS[int(count > low) + int(count > high)] for count in tokens.tolist()]


def left_out(part: ScorerPart, seed: int) -> dict[str, dict[str, Any]]:
    """Measure scorers on kinds of answers that were left out of their fit.

    Return, by kind, what `scorer_ranks` measures, and the gain in AUROC over the raw value (`minus_raw`).
    """
    measured = {}
    for name, out in _kinds(part):
        held = part.take(np.flatnonzero(out))
        figures = scorer_ranks(scorers_of(part.take(np.flatnonzero(~out)), seed), held)
        head, raw = (figures["auroc"][which][0] for which in ("head", "raw"))
        measured[name] = {**figures, "minus_raw": round(head - raw, 4)}
    return measured


def scorer_ranks(scorers: list[LogisticScorer], part: ScorerPart) -> dict[str, Any]:
    """Return the number of these answers, the share right, and AUROCs as [value, low, high], with 95% intervals.

    They are of the scorers' probability, of the raw value, and of the length alone, the shortest answer first.
    """
    raw = part.columns([part.raw])[:, 0]
    # A single scorer keeps the raw order; where its slope is next to nothing, ties would hide that.
    scores = {"head": judged_by(scorers, part) if len(scorers) > 1 else raw, "raw": raw}
    if part.has(["log_tokens"]):
        scores["length"] = -part.columns(["log_tokens"])[:, 0]
    right = part.right
    return {
        "n": len(right),
        "right": round(float(right.mean()), 4),
        "auroc": {name: _auroc_interval(score, right) for name, score in scores.items()},
    }


def is_proven(measured: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the learned scorers were better than the raw value on the sets left out, and lost on none."""
    gained = [figures["minus_raw"] for figures in measured.values()]
    return len(gained) > 1 and min(gained) >= -_MOST_LOST and sum(gained) > 0


def judged_by(scorers: list[LogisticScorer], part: ScorerPart) -> Floats:
    """Return each answer's probability by the scorer that serving would choose."""
    chosen = (next((scorer for scorer in scorers[:-1] if scorer.knows(values)), scorers[-1]) for values in part.values)
    return np.array([scorer.p_right(values) for scorer, values in zip(chosen, part.values, strict=True)])


def _kinds(part: ScorerPart) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the kinds that can be left out: enough answers of both sorts in it, and enough labels without it."""
    for name in dict.fromkeys(name for names in part.kinds for name in names if name):
        out = np.array([name in names for names in part.kinds])
        right = part.right[out].sum()
        if min(right, out.sum() - right) >= _FEWEST and (~out).sum() > FEW_LABELS:
            yield name, out


def _auroc_interval(score: Floats, right: Floats) -> list[float]:
    """Return the AUROC and the ends of its 95% interval by bootstrap over answers."""
    blocks = Blocks.of(score)
    drawn = [aurocs(blocks, right, weights) for weights in resamples(len(score), 0, _RESAMPLES)]
    estimate = interval(auroc(score, right), np.concatenate(drawn))
    return [round(end, 4) for end in (estimate.value, estimate.lo, estimate.hi)]
