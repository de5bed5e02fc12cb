"""Score whether the answer to one question may be served for another, with vetoes, in well under a millisecond.

The guards (`cache.text.guards`) refuse what changes an answer however similar the wording. A small
model of boosted trees scores the rest, fitted by `tools.train_verifier` to how similar two texts are and to the words
that only one of them has. Every feature is monotonic, so that a rule learned from templates stays plausible on real
questions. Fail closed: a text that cannot be parsed, or is too long, is refused.

An artefact is two files, beside the one table of word vectors that all share:
    verifier.json          the data sheet: training, data, quality; `sha256` of the tensors; `features`; `strict`;
                           `scripts` that it was made for
    verifier.safetensors   the trees, as arrays of equal length; the steps of the calibration
    ../words.safetensors   words in order of rarity, and their vectors as bytes; `words.json` says where they are from
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.text.guards import SWITCHED, Pair
from cache.text.normalized_question import NormalizedQuestion, gist
from cache.text.pair_features import FEATURES, WordTable, features
from cache.text.reading import SCRIPTS
from policies.tensors import map_file, release, tensors_in
from policies.value_type import from_fields

WORDS: Final = "words.safetensors"
"""File name of the table of word vectors that artefacts share."""


Read = Callable[[str], NormalizedQuestion]


class VerifierError(ValueError):
    """An artefact cannot be used; the message gives the file and the reason."""


class VerifierVerdict(NamedTuple):
    """`score`: the probability that both have the same answer, 0..1. `refused`: the veto's name, '' for none."""

    score: float
    refused: str


_verdict = from_fields(VerifierVerdict)


class VerifierWords:
    """Words, commonest first, and their static vectors; implements `pair_features.WordTable`."""

    def __init__(self, words: Sequence[str], vectors: NDArray[np.int8]) -> None:
        self._rows = {word: row for row, word in enumerate(words)}
        self._vectors = vectors
        squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32)
        self._lengths = np.maximum(np.sqrt(squares), 1e-6)[:, None]
        self._scale = 1 / max(1, len(words) - 1)

    @classmethod
    def load(cls, path: Path) -> VerifierWords:
        """Read words.safetensors: `words`, UTF-8 joined by newlines, as bytes; `vectors`, int8, (words, dimension)."""
        content = map_file(path)
        tensors = tensors_in(content)
        table = cls(tensors["words"].tobytes().decode().split("\n"), tensors["vectors"])
        release(content)
        return table

    def rarity(self, word: str) -> float:
        """Return 0 for the commonest word, up to 1 for one that is not in the table."""
        row = self._rows.get(word)
        return 1.0 if row is None else row * self._scale

    def similarities(self, left: Sequence[str], right: Sequence[str]) -> list[list[float]]:
        """Return the cosine of each word of `left` with each of `right`; 0 where one has no vector."""
        rows = [self._rows.get(word, -1) for word in (*left, *right)]
        # As few calls of NumPy as there can be: each takes as long as the arithmetic of a few words.
        units = self._vectors[rows] / self._lengths[rows]
        if -1 in rows:
            units[[row < 0 for row in rows]] = 0.0
        cosines: list[list[float]] = (units[: len(left)] @ units[len(left) :].T).tolist()
        return cosines


class Trees:
    """Boosted trees. Node i tests `feature[i] <= at[i]` and goes to `left[i]` or `right[i]`; a leaf goes to itself.

    All arrays have shape (trees, nodes); `value` counts at leaves only. `depth` is the length of the longest path.
    """

    def __init__(
        self,
        feature: NDArray[np.intp],
        at: NDArray[np.float64],
        left: NDArray[np.intp],
        right: NDArray[np.intp],
        value: NDArray[np.float64],
        base: float,
        depth: int,
    ) -> None:
        rows = np.arange(len(feature))
        level = [np.zeros_like(rows)]
        tests: list[NDArray[np.intp]] = []
        for _ in range(depth):
            tests += level
            level = [after[rows, node] for node in level for after in (left, right)]
        self._base = base
        # As complete trees, of which all tests are made at once: level by level, shape (2 ** depth - 1, trees).
        self._feature = np.array([feature[rows, node] for node in tests])
        self._at = np.array([at[rows, node] for node in tests])
        self._leaves = [value[rows, node] for node in level]

    def margin(self, features: NDArray[np.float64]) -> float:
        """Return the log-odds for one pair; `features` has shape (features,)."""
        below = features.take(self._feature) <= self._at
        values = self._leaves
        while len(values) > 1:
            first = len(values) // 2 - 1
            values = [np.where(below[first + i], values[2 * i], values[2 * i + 1]) for i in range(len(values) // 2)]
        return self._base + float(np.add.reduce(values[0]))


class Verifier:
    """Score pairs of questions by boosted trees over features of their words. Safe to use from several threads."""

    def __init__(
        self,
        trees: Trees,
        steps: NDArray[np.float64],
        table: WordTable,
        strict: float,
        version: str,
        read: Read = gist,
        scripts: Collection[str] = SCRIPTS,
    ) -> None:
        self.scripts = scripts
        self.strict = strict
        """Score threshold used until the live error rate has been measured."""
        self.version = version
        self._trees = trees
        self._margins: list[float]
        self._scores: list[float]
        self._margins, self._scores = steps.tolist()
        self._table = table
        self._read = read

    @classmethod
    def load(cls, folder: Path, read: Read = gist) -> Verifier:
        """Read the artefact in `folder`; `read` parses a question. Raises VerifierError."""
        sheet_path, tensors_path = folder / "verifier.json", folder / "verifier.safetensors"
        try:
            sheet: dict[str, Any] = json.loads(sheet_path.read_bytes())
            data = tensors_path.read_bytes()
            table = _shared_table(folder.parent / WORDS)
        except (OSError, ValueError) as error:
            raise VerifierError(f"{folder}: {error}; rebuild it with `python -m tools.train_verifier`") from None
        digest = hashlib.sha256(data).hexdigest()
        if digest != sheet.get("sha256") or sheet.get("features") != list(FEATURES):
            raise VerifierError(
                f"{folder}: another version, or its two files do not match; rebuild it with "
                "`python -m tools.train_verifier`"
            )
        tensors = tensors_in(data)
        scripts = frozenset(map(str, sheet.get("scripts", SCRIPTS)))
        return cls(trees_from(tensors), tensors["steps"], table, float(sheet["strict"]), digest[:12], read, scripts)

    def score(
        self,
        stored: str,
        asked: str,
        cosine: float,
        guards: Collection[str] = SWITCHED,
        *,
        screening: bool = False,
    ) -> VerifierVerdict:
        """Return the verdict on one pair, with the vetoes that `guards` names.

        `screening`: a cross-encoder reads what is left, so only the vetoes hold that it needs.
        Takes about 100 us for questions of ten words, and as much again to parse a text for the first time.
        """
        if stored == asked:
            return VerifierVerdict(1.0, "")
        pair = Pair(stored, asked, self._read)
        if refused := pair.refusal(guards, "screened" if screening else "alone"):
            return _verdict((0.0, refused))
        numbers = features(pair.a, pair.b, pair.rest, cosine, self._table)
        return VerifierVerdict(self._calibrated(self._trees.margin(np.array(numbers))), "")

    def _calibrated(self, margin: float) -> float:
        """Interpolate the isotonic calibration; it never reaches 0 or 1, so that thresholds can rank high scores."""
        margins, scores = self._margins, self._scores
        after = bisect_right(margins, margin)
        if not 0 < after < len(margins):
            return scores[min(after, len(scores) - 1)]
        low, score = margins[after - 1], scores[after - 1]
        return (scores[after] - score) / (margins[after] - low) * (margin - low) + score


def trees_from(tensors: Mapping[str, NDArray[Any]]) -> Trees:
    """Build the trees from an artefact's tensors."""
    return Trees(
        tensors["feature"].astype(np.intp),
        tensors["at"].astype(np.float64),
        tensors["left"].astype(np.intp),
        tensors["right"].astype(np.intp),
        tensors["value"].astype(np.float64),
        float(tensors["base"][0]),
        int(tensors["depth"][0]),
    )


def shipped_verifier(embedding: str) -> Path:
    """Return the folder of the artefact shipped for that kind of embedding."""
    return Path(__file__).parents[1] / "artefacts" / embedding


@lru_cache(maxsize=4)
def _shared_table(path: Path) -> VerifierWords:
    return VerifierWords.load(path)
