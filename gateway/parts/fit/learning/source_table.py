"""Rank requests by a table of where they are from and how long they are, which a learnt classifier must beat.

Public sets and the traffic of a surface mix sources of different difficulty. A classifier that tells sources, languages
or lengths apart ranks their mixture, and says nothing of a request within one of them.
"""

from __future__ import annotations

import numpy as np

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.learning.labels import OwnLabels
from routing.difficulty.text_statistics import COUNTS

_SHRUNK = 5.0
"""Labels of the level above that each cell's mean is mixed with."""
_LENGTHS = (1 / 3, 2 / 3)
_LENGTH = COUNTS.index("log_chars")
_ENGLISH = COUNTS.index("share_english")
_NON_ASCII = COUNTS.index("share_non_ascii")
_SOME_ENGLISH = 0.1
"""Share of common English words in a text from which on it counts as English."""
_OTHER_SCRIPT = 0.5
"""Share of non-ASCII characters from which on a text counts as one of another script."""


def table_scores(fitted: OwnLabels, held: OwnLabels) -> Floats:
    """Return the mean outcomes (n, 2) that a table over `fitted` states for the labels `held`.

    Its cells are source, language as far as the counts tell it (English, another in Latin letters, another script), and
    length in thirds. A cell's mean is shrunk to its language's, that to its source's, and that to the mean of all.
    """
    borders = np.quantile(fitted.counts[:, _LENGTH], _LENGTHS)
    known, asked = (_cells(labels, borders) for labels in (fitted, held))
    scores = np.tile(fitted.right.mean(axis=0), (len(held), 1))
    for depth in (1, 2, 3):
        means: dict[tuple[str, ...], tuple[Floats, int]] = {}
        for cell, right in zip(known, fitted.right, strict=True):
            total, count = means.get(cell[:depth], (np.zeros(2), 0))
            means[cell[:depth]] = total + right, count + 1
        for row, cell in enumerate(asked):
            total, count = means.get(cell[:depth], (np.zeros(2), 0))
            scores[row] = (total + _SHRUNK * scores[row]) / (count + _SHRUNK)
    return scores


def _cells(labels: OwnLabels, borders: Floats) -> list[tuple[str, ...]]:
    """Return the source, the language and the third of lengths of each label."""
    other, english = labels.counts[:, _NON_ASCII] > _OTHER_SCRIPT, labels.counts[:, _ENGLISH] > _SOME_ENGLISH
    language = np.where(other, "other script", np.where(english, "English", "Latin"))
    third = np.searchsorted(borders, labels.counts[:, _LENGTH]).astype(str)
    return list(zip(labels.source.tolist(), language.tolist(), third.tolist(), strict=True))
