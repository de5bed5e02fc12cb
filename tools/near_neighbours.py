"""Find exact near neighbours among many texts, by blocks of a matrix product.

All pairs of 100,000 vectors are five thousand million cosines, so an upper bound is computed first, in half the
dimensions: with the vectors rotated so that their first half holds the most (principal axes), and the norm `r` of what
is cut off, <x, y> <= <x1, y1> + r_x r_y (Cauchy-Schwarz). Only pairs whose bound is high enough are computed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.progress import OnProgress

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]

MOST = 256
"""Maximum number of nearest earlier texts stored for a text: those of one template (`what is the capital of X`) are
near each other by the thousand."""
_BLOCK = 512
_SLACK = 1e-4  # rounding errors in single precision stay below this over a few hundred terms
_FEW = 1_000
_NEAR = 0.6  # below this cosine the bound rejects too little to be worth its own product
_CROWDED = 0.02  # above this share of candidates the whole product is cheaper


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Text `i` has the neighbours `columns[starts[i] : starts[i + 1]]`, nearest first, with these `cosines`."""

    starts: Rows
    columns: NDArray[np.int32]
    cosines: NDArray[np.float32]

    def of(self, text: int) -> tuple[list[int], list[float]]:
        """Return the texts near this one, and their cosines."""
        part = slice(int(self.starts[text]), int(self.starts[text + 1]))
        return self.columns[part].tolist(), self.cosines[part].tolist()


def near_neighbours(vectors: Vectors, at_least: float, on_progress: OnProgress) -> Neighbours:
    """Return for each unit vector, shape (n, dimension), the others with a cosine of at least `at_least`."""
    bounds, count = vectors if at_least < _NEAR else _bounding(vectors), len(vectors)
    blocks: list[tuple[Rows, Rows, Vectors]] = []
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        blocks.append(_nearest(*_near(vectors, bounds, start, stop, at_least)))
        on_progress("comparing", stop, count)
    row, column = (np.concatenate([one[i] for one in blocks] or [np.zeros(0, np.int64)]) for i in (0, 1))
    cosine = np.concatenate([one[2] for one in blocks] or [np.zeros(0, np.float32)])
    row, column, cosine = np.append(row, column), np.append(column, row), np.append(cosine, cosine)
    order = np.lexsort((-cosine, row))
    starts = np.searchsorted(row[order], np.arange(count + 1))
    return Neighbours(starts, column[order].astype(np.int32), cosine[order])


def _bounding(vectors: Vectors) -> Vectors:
    """Return vectors whose products are upper bounds of the cosines."""
    if len(vectors) < _FEW:
        return vectors
    axes = np.linalg.eigh(vectors.T @ vectors)[1][:, -(vectors.shape[1] // 2) :]
    turned = vectors @ axes
    lost = np.sqrt(np.maximum(0, 1 - np.einsum("ij,ij->i", turned, turned)))
    return np.ascontiguousarray(np.column_stack([turned, lost]), dtype=np.float32)


def _near(vectors: Vectors, bounds: Vectors, start: int, stop: int, at_least: float) -> tuple[Rows, Rows, Vectors]:
    """Return (row, earlier column, cosine) of the near pairs with a row from `start` to `stop`."""
    row, column = _above(bounds[start:stop] @ bounds[:stop].T, at_least - _SLACK)
    if len(row) > _CROWDED * (stop - start) * stop:
        products = vectors[start:stop] @ vectors[:stop].T
        row, column = _above(products, at_least)
        cosine = products[row, column]
    else:
        cosine = np.einsum("ij,ij->i", vectors[row + start], vectors[column])
    near = (cosine >= at_least) & (column < row + start)
    return row[near] + start, column[near], cosine[near]


def _above(products: Vectors, at_least: float) -> tuple[Rows, Rows]:
    row, column = np.divmod(np.flatnonzero(products.ravel() >= at_least), products.shape[1])
    return row, column


def _nearest(row: Rows, column: Rows, cosine: Vectors) -> tuple[Rows, Rows, Vectors]:
    """Return the MOST nearest of each row."""
    order = np.lexsort((-cosine, row))
    row, column, cosine = row[order], column[order], cosine[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    kept = rank < MOST
    return row[kept], column[kept], cosine[kept]
