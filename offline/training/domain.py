"""Fit the domain of a classifier: which texts resemble its training texts, by their vectors and by their counts.

Vectors alone do not suffice. ARC's prompts, with worked examples in front, have the vectors of MMLU's questions and six
times their choices; heads fitted to MMLU were confident on them and wrong (APGR 0.40, ECE 0.87).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from offline.measures.curves import Floats
from offline.training.table import TrainingTable
from routing.difficulty.text_statistics import CountRange

_RAREST = 0.001  # share of texts below the range of a count, and above it


@dataclass(frozen=True, slots=True)
class Domain:
    """Unit `centroids` (k, dimension) of the training texts, the minimum cosine with the nearest, the counts' range."""

    centroids: Floats
    min_similarity: float
    count_range: CountRange

    @classmethod
    def of(cls, table: TrainingTable, chosen: NDArray[np.bool_], centroids: int, outside: float, seed: int) -> Domain:
        """Fit the domain of the chosen prompts, with and without choices; the share `outside` lies far by vector."""
        rows = np.flatnonzero(chosen[table.owner])
        centres, similarity = _balls(table.vectors[rows], centroids, outside, seed)
        return cls(centres, similarity, _range(table.counts[rows]))

    def seen(self, table: TrainingTable) -> tuple[TrainingTable, NDArray[np.bool_]]:
        """Return the table with counts as serving transforms them, and a mask of the texts in the domain, (texts,).

        Heads are fitted to the raw counts: fitted to these, they rank routellm_mmlu at 0.675 instead of 0.679.
        """
        counts, far = self.count_range.heard(table.counts)
        near = (table.vectors @ self.centroids.T).max(axis=1) >= self.min_similarity
        return replace(table, counts=counts), near & ~far.any(axis=1)


def _range(counts: Floats) -> CountRange:
    """Return the range of all but the rarest texts; each end is a text's own count, so few texts keep all of theirs."""
    low = np.quantile(counts, _RAREST, axis=0, method="lower")
    high = np.quantile(counts, 1 - _RAREST, axis=0, method="higher")
    return CountRange.between(low, high, counts.mean(axis=0))


def _balls(vectors: Floats, centroids: int, outside: float, seed: int) -> tuple[Floats, float]:
    """Return unit centroids of the texts, and the minimum cosine with the nearest that counts as near."""
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there may be fewer distinct texts than centroids
        clusters = min(centroids, len(vectors))
        fitted = KMeans(clusters, n_init=1, max_iter=50, random_state=seed).fit(vectors)
    centres: Floats = fitted.cluster_centers_
    centres = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    nearest = (vectors @ centres.T).max(axis=1)
    return centres, float(np.quantile(nearest, outside))
