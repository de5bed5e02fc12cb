"""Correct a classifier by labels of a surface's own traffic: heads on top of what the classifier says.

P(right) of the cheapest and of the strongest tier are logistic in the classifier's logit, the vector and the counts.
With few labels the weight of the classifier's logit is near 1 and the others near 0, so little changes.

Heads of the kind `neighbours` hold the vectors and outcomes of the labels instead, and no text: P(right) is logistic in
the mean outcome of those that are nearest. Either kind holds for requests whose vector is near those of the labels,
whether the classifier abstains there or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

PREFIX: Final = "own."
_CERTAIN: Final = 1e-4


@dataclass(frozen=True, slots=True)
class OwnHeads:
    """Heads for two tiers (t): `vector` (t, dimension), `counts` (t, len(COUNTS)), `base` (t, 2) and `bias` (t, 2).

    Column 0 of `base` and `bias` is for requests in the classifier's domain, column 1 for those outside. Counts are
    clamped to `low`..`high`. A request is near if its vector's cosine with one of `centroids` (m, dimension) reaches
    `min_similarity` (1,). `quantiles` (k, 101) are those of the surface's own scores, for each kind of the classifier.
    """

    vector: Vector
    counts: Vector
    base: Vector
    bias: Vector
    low: Vector
    high: Vector
    centroids: Vector
    min_similarity: Vector
    quantiles: Vector
    stored: Vector | None = None
    """Of neighbours: the labels' unit vectors, shape (n, dimension); None for the other kinds."""
    outcomes: Vector | None = None
    """Of neighbours: how adequate both answers of each label were, 0..1, shape (n, 2)."""
    nearest: Vector | None = None
    """Of neighbours: how many count, and what their mean outcome weighs in each tier's logit, shape (3,)."""

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]]) -> OwnHeads | None:
        """Return the heads among an artefact's tensors; None if it has none. Raises KeyError if some are missing."""
        if not any(name.startswith(PREFIX) for name in tensors):
            return None
        given = fields(cls) if PREFIX + "stored" in tensors else fields(cls)[:-3]
        return cls(*(tensors[PREFIX + field.name] for field in given))

    @property
    def kind(self) -> str:
        """The kind of the heads: `neighbours`, or `linear` for a head over the classifier's logit and a ridge."""
        return "linear" if self.stored is None else "neighbours"

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return the tensors from which `of` builds equal heads."""
        given = {PREFIX + field.name: getattr(self, field.name) for field in fields(self)}
        return {name: np.asarray(value, np.float32) for name, value in given.items() if value is not None}

    def near(self, vectors: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether each vector, shape (..., dimension), is near the labelled requests."""
        return np.asarray((vectors @ self.centroids.T).max(axis=-1) >= self.min_similarity[0])

    def p_right(self, vectors: NDArray[Any], counts: NDArray[Any], base: NDArray[Any], in_domain: Any) -> NDArray[Any]:
        """Return P(right) of both tiers, shape (..., 2).

        `base` (..., 2) is what the classifier says, and `in_domain` (...) whether it is sure of its domain.
        """
        outside = np.where(in_domain, 0, 1)
        logits = vectors @ self.vector.T + np.minimum(np.maximum(counts, self.low), self.high) @ self.counts.T
        logits = logits + base_logits(base) * self.base.T[outside] + self.bias.T[outside]
        if self.stored is not None and self.outcomes is not None and self.nearest is not None:
            around = mean_outcome(vectors, self.stored, self.outcomes, int(self.nearest[0]))
            logits = logits + around * self.nearest[1:]
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))


def base_logits(p_right: NDArray[Any]) -> NDArray[Any]:
    """Return the logits, shape (..., 2), of P(right) of the cheapest and the strongest of the tiers (..., tiers)."""
    ends = np.clip(np.asarray(p_right)[..., [0, -1]], _CERTAIN, 1 - _CERTAIN)
    return np.asarray(np.log(ends / (1 - ends)))


def mean_outcome(vectors: NDArray[Any], stored: NDArray[Any], outcomes: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the mean of `outcomes` (n, 2) over the `count` of `stored` (n, dimension) nearest to each vector.

    `vectors` has shape (..., dimension), the result (..., 2).
    """
    cosines = vectors @ stored.T
    count = min(count, len(stored))
    rows = cosines.argpartition(len(stored) - count, axis=-1)[..., len(stored) - count :]
    return np.asarray(np.add.reduce(outcomes[rows], axis=-2) / count)
