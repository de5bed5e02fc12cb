"""Fit the domain of a classifier: which texts resemble a kind's training texts, by their vectors and by their counts.

Vectors alone do not suffice. ARC's prompts, with worked examples in front, have the vectors of MMLU's questions and six
times their choices; heads fitted to MMLU were confident on them and wrong (APGR 0.40, ECE 0.87). Chat has no shape of
its own, so only its vectors are compared, and few of its own texts lie outside. Each of the plain requests is near its
kind by itself.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.kinds import OPEN
from gateway.parts.fit.training.table import TrainingTable
from routing.difficulty.text_statistics import CountRange

_RAREST = 0.001  # share of texts below the range of a count, and above it
_SHORTEST = 0.01  # share of a kind's texts that are shorter than its minimum
_OUTSIDE_OPEN = 0.005
_LOOSER = 0.5  # fitted to qlora_oa, the whole radius leaves out a fifth of alpaca_eval1, which its heads rank well
_NEVER_NEAR = 2.0  # a cosine that no vector reaches
_WIDEST = 16.0  # above the log of any count
_CLUSTERED = 3000  # texts of a kind, at most, that its centroids are of


@dataclass(frozen=True, slots=True)
class Domain:
    """The domain of each of `kinds` (k,), indices of the table's kinds; see `routing.difficulty.model`.

    `centroids` (m, dimension) are sorted by `owner` (m,), the position in `kinds` of the kind that each belongs to. The
    ranges of counts have a row for each kind and a last one for all texts.
    """

    kinds: NDArray[np.int64]
    centroids: Floats
    owner: NDArray[np.int64]
    min_similarity: Floats
    min_chars: NDArray[np.int64]
    strict: NDArray[np.bool_]
    count_range: CountRange

    @classmethod
    def of(
        cls,
        table: TrainingTable,
        chosen: NDArray[np.bool_],
        kinds: NDArray[np.int64],
        centroids: int,
        outside: float,
        seed: int,
    ) -> Domain:
        """Fit the domain of the chosen prompts, with and without choices; the share `outside` lies far by vector.

        One of `kinds` without prompts is near no text: requests are of that kind for another reason.
        """
        rows = table.fitted(chosen)
        balls: list[Floats] = []
        similar: list[float] = []
        chars: list[int] = []
        ranges: list[tuple[Floats, Floats, Floats]] = []
        opened = np.array([table.kinds[kind] in OPEN for kind in kinds])
        for kind, loose in zip(kinds, opened, strict=True):
            own = rows[table.task[table.owner[rows]] == kind]
            if not len(own):
                balls.append(np.zeros((1, table.vectors.shape[1])))
                similar.append(_NEVER_NEAR)
                chars.append(0)
                width = table.counts.shape[1]
                ranges.append((np.zeros(width), np.full(width, _WIDEST), np.zeros(width)))
                continue
            plain = own[table.plain[own]]
            labelled = own[~table.plain[own]] if len(plain) < len(own) else own
            centres, similarity = unit_centroids(
                table.vectors[labelled], centroids, _OUTSIDE_OPEN if loose else outside, seed
            )
            balls.append(np.vstack([centres, table.vectors[plain]]))
            similar.append(similarity * _LOOSER if loose else similarity)
            shortest = int(np.quantile(table.chars[labelled], _SHORTEST))
            chars.append(min([shortest, *table.chars[plain].tolist()]))
            ranges.append(_ends(table.counts[labelled], table.counts[plain]))
        strict = np.append(~opened, True)
        low, high, mean = map(np.array, zip(*ranges, _ends(table.counts[rows], table.counts[rows[:0]]), strict=True))
        return cls(
            kinds,
            np.concatenate(balls),
            np.repeat(np.arange(len(kinds)), [len(ball) for ball in balls]),
            np.array(similar),
            np.array(chars),
            strict,
            CountRange.between(low, high, mean, strict[:, None]),
        )

    def near(self, table: TrainingTable, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return whether each of these texts is near each kind, shape (rows, kinds)."""
        cosines = table.vectors[rows] @ self.centroids.T
        near = np.empty((len(cosines), len(self.kinds)), bool)
        far = self.count_range.far(table.counts[rows][:, None])
        for at in range(len(self.kinds)):
            near[:, at] = cosines[:, self.owner == at].max(axis=1) >= self.min_similarity[at]
            near[:, at] &= table.chars[rows] >= self.min_chars[at]
            near[:, at] &= ~far[:, at]
        return near


def _ends(counts: Floats, plain: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the range of all but the rarest texts and of the plain ones, and the mean; an end is a text's count."""
    low = np.quantile(counts, _RAREST, axis=0, method="lower")
    high = np.quantile(counts, 1 - _RAREST, axis=0, method="higher")
    return np.vstack([low, plain]).min(axis=0), np.vstack([high, plain]).max(axis=0), counts.mean(axis=0)


def unit_centroids(vectors: Floats, centroids: int, outside: float, seed: int) -> tuple[Floats, float]:
    """Return unit centroids of the texts, and the minimum cosine with the nearest that counts as near."""
    from sklearn.cluster import KMeans

    some = np.random.default_rng(seed).permutation(vectors)[:_CLUSTERED] if len(vectors) > _CLUSTERED else vectors
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there may be fewer distinct texts than centroids
        clusters = min(centroids, len(some))
        fitted = KMeans(clusters, n_init=1, max_iter=50, random_state=seed).fit(some)
    centres: Floats = fitted.cluster_centers_
    centres = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    nearest = (vectors @ centres.T).max(axis=1)
    return centres, float(np.quantile(nearest, outside))
