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

from gateway.fit.training.scorers import FEW_LABELS, ScorerPart, scorers_of
from gateway.measures.curves import Floats, auroc
from routing.confidence.head import LogisticScorer

_MOST_LOST: Final = 0.005
"""AUROC that a head may lose against the raw value on one set left out."""
_FEWEST: Final = 10
"""Right, and wrong, answers that a set needs to be judged."""

LENGTHS: Final = ("short", "middling", "long")
"""Kinds of answers by length: each a third of them."""


def by_length(tokens: NDArray[np.int64]) -> list[str]:
    """Return the kind, of LENGTHS, of answers with so many tokens; '' for all where most are equally long."""
    low, high = np.quantile(tokens, [1 / 3, 2 / 3]) if len(tokens) else (0, 0)
    if low >= high:
        return [""] * len(tokens)
    return [LENGTHS[int(count > low) + int(count > high)] for count in tokens.tolist()]


def left_out(part: ScorerPart, seed: int) -> dict[str, dict[str, Any]]:
    """Return by kind of answers left out their number, and by how much the AUROC there is above the raw value's."""
    return {name: {"n": int(out.sum()), "minus_raw": round(_gained(part, out, seed), 4)} for name, out in _kinds(part)}


def proven(measured: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the learned scorers were better than the raw value on the sets left out, and lost on none."""
    gained = [one["minus_raw"] for one in measured.values()]
    return len(gained) > 1 and min(gained) >= -_MOST_LOST and sum(gained) > 0


def judged_by(scorers: list[LogisticScorer], part: ScorerPart) -> Floats:
    """Return each answer's probability by the scorer that serving would choose."""
    chosen = (next((one for one in scorers[:-1] if one.knows(values)), scorers[-1]) for values in part.values)
    return np.array([scorer.p_right(values) for scorer, values in zip(chosen, part.values, strict=True)])


def _kinds(part: ScorerPart) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the kinds that can be left out: enough answers of both sorts in it, and enough labels without it."""
    for name in dict.fromkeys(name for names in part.kinds for name in names if name):
        out = np.array([name in names for names in part.kinds])
        right = part.right[out].sum()
        if min(right, out.sum() - right) >= _FEWEST and (~out).sum() > FEW_LABELS:
            yield name, out


def _gained(part: ScorerPart, out: NDArray[np.bool_], seed: int) -> float:
    scorers = scorers_of(part.take(np.flatnonzero(~out)), seed)
    if len(scorers) == 1:
        return 0.0  # the scorer over the raw value alone
    held = part.take(np.flatnonzero(out))
    return float(auroc(judged_by(scorers, held), held.right) - auroc(held.columns([part.raw])[:, 0], held.right))
