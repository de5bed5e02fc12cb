"""Estimate how hard a request is: how likely each tier's answer is right, and what the strongest tier would gain.

Logistic heads over the request's words, its vector and some counts give P(right) of every tier. The score is P(right)
of the strongest tier minus that of the cheapest (ranking by it beats ranking by "the cheap one is wrong": APGR 0.667
against 0.588). Each kind of task in the training data has heads of its own, mixed by how likely the request is of that
kind. The model has a domain: a text unlike all training texts, by its vector or by any of its counts, is marked as
outside, and the policy's default decides. Its probabilities then come from the counts alone, because words and vectors
do not transfer (trained on MMLU they rank GSM8K at an APGR of 0.45, the counts alone at 0.58).

An artefact is a folder with `difficulty.safetensors` (the numbers) and `difficulty.json` (its data sheet, with the
numbers' SHA-256). Reading one needs numpy and safetensors only; `offline.training.difficulty` writes it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from routing.difficulty.text_statistics import (
    BUCKETS,
    COUNTS,
    CountRange,
    LexiconReading,
    counts_of,
    read,
    shortened,
    terms_of,
)
from routing.embedding.embedder import Embedder, EmbedderKind, bounded

if TYPE_CHECKING:
    from routing.features import Features

WEIGHTS_FILE: Final = "difficulty.safetensors"
SHEET_FILE: Final = "difficulty.json"
_FAMILY = "tierline-difficulty-"
FORMAT: Final = f"{_FAMILY}3"
TENSORS: Final = (
    "words.buckets",
    "words.rarity",
    "heads.words",
    "heads.vector",
    "heads.counts",
    "heads.bias",
    "general.counts",
    "general.bias",
    "domain.centroids",
    "domain.min_similarity",
    "domain.min_chars",
    "domain.counts_low",
    "domain.counts_high",
    "domain.counts_mean",
)

Vector = NDArray[np.float32]


class ArtefactError(Exception):
    """An artefact is missing, altered, of another format or for another encoder; the message names the file."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """P(right) of each tier on one request, cheapest first; not to be used if `in_domain` is False.

    `kind` names the kind of task that the request is. `quantile` is the share of that kind's reference prompts that are
    easier, 0..1; None if the classifier abstains or has no reference prompts of that kind.
    """

    p_right: tuple[float, ...]
    in_domain: bool
    model_version: str
    kind: str = ""
    quantile: float | None = None

    @property
    def score(self) -> float:
        """The difficulty, 0..1: the expected gain of calling the strongest tier instead of the cheapest."""
        return max(0.0, self.p_right[-1] - self.p_right[0])

    @property
    def p_adequate(self) -> float:
        """The probability that calling the strongest tier instead of the cheapest would gain nothing."""
        return 1.0 - self.score

    def p_right_of(self, position: int, tiers: int) -> float:
        """Return P(right) of the tier at `position` in a ladder of `tiers`, which may differ from the trained number.

        The first and last tiers of both ladders correspond; a tier in between gets the probability of the trained tier
        at or below its relative height, which is the cautious choice.
        """
        known = len(self.p_right)
        return self.p_right[position * (known - 1) // max(tiers - 1, 1)]

    def p_adequate_of(self, position: int, tiers: int) -> float:
        """Return `p_adequate` of the tier at `position` in a ladder of `tiers`; start rules compare it."""
        return 1.0 - max(0.0, self.p_right[-1] - self.p_right_of(position, tiers))


@dataclass(frozen=True, slots=True)
class DifficultyModel:
    """The heads and the domain. `version` is the first 12 hex digits of the SHA-256 of the numbers' file.

    A kind of task has `tiers` + 1 logits: each tier is right, cheapest first, and the request is of this kind. They are
    the rows of `vector_weights` (rows, dimension), `count_weights` (rows, len(COUNTS)) and `bias` (rows,), and the
    columns of `word_weights` (known + 1, rows). `word_places` (BUCKETS,) maps a bucket to its line of `word_weights`
    and `rarity` (known + 1,); line 0, all zeros, is for buckets without training data. `centroids` (k, dimension) are
    unit vectors; a text is in the domain when its vector's cosine with one of them reaches `min_similarity`, it has at
    least `min_chars` characters and no count of it is far outside `count_range`. Outside the domain, `general_counts`
    (tiers, len(COUNTS)) and `general_bias` (tiers,) give the tiers' logits.
    """

    embedder: str
    version: str
    tiers: int
    word_places: NDArray[np.int32]
    rarity: Vector
    word_weights: NDArray[np.float16]
    vector_weights: Vector
    count_weights: Vector
    bias: Vector
    general_counts: Vector
    general_bias: Vector
    centroids: Vector
    min_similarity: float
    min_chars: int
    count_range: CountRange

    @classmethod
    def load(cls, folder: Path, embedder: Embedder | None = None) -> DifficultyModel:
        """Read the artefact in `folder`, trained for `embedder` if one is given. Raises ArtefactError."""
        weights = _checked_weights(folder)
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            tensors = load(weights)
            made = json.loads(_made(weights, folder))
            buckets, rarity, words, heads, counts, bias, *rest = (tensors[name] for name in TENSORS)
            general_counts, general_bias, centroids, similarity, chars, *ends = rest
            made_for, tiers = str(made["embedder"]), int(made["tiers"])
        except (SafetensorError, KeyError, ValueError) as error:
            raise ArtefactError(f"{folder / WEIGHTS_FILE} is not a {FORMAT} artefact: {error}") from None
        if counts.shape[1] != len(COUNTS):
            raise ArtefactError(
                f"{folder / WEIGHTS_FILE} counts {counts.shape[1]} features, this version {len(COUNTS)}"
            )
        if embedder is not None and (embedder.name, embedder.dimension) != (made_for, heads.shape[1]):
            raise ArtefactError(f"{folder} was trained on {made_for} vectors, the encoder in use is {embedder.name}")
        version = hashlib.sha256(weights).hexdigest()[:12]
        return cls(
            made_for,
            version,
            tiers,
            *_by_bucket(buckets, rarity, words),
            vector_weights=heads,
            count_weights=counts,
            bias=bias,
            general_counts=general_counts,
            general_bias=general_bias,
            centroids=centroids,
            min_similarity=float(similarity[0]),
            min_chars=int(chars[0]),
            count_range=CountRange.between(*ends),
        )

    def assess(self, vector: Vector, features: Features) -> Difficulty:
        """Return the difficulty of the request with these features, whose unit vector has shape (dimension,)."""
        reading = read(bounded(features.text))
        counts, far = self.count_range.heard(counts_of(features, reading))
        if not np.count_nonzero(far) and self._knows(vector, features):
            return Difficulty(self._of_known(vector, counts, reading), True, self.version)
        right = 1.0 / (1.0 + np.exp(-(self.general_counts @ counts + self.general_bias)))
        return Difficulty(tuple(right.tolist()), False, self.version)

    def probabilities(self, vector: Vector, features: Features) -> tuple[float, ...]:
        """Return P(right) of each tier, cheapest first."""
        return self.assess(vector, features).p_right

    def _of_known(self, vector: Vector, counts: Vector, reading: LexiconReading) -> tuple[float, ...]:
        logits = self.vector_weights @ vector + self.count_weights @ counts + self.bias
        if reading.words:
            buckets, often = terms_of(reading)
            places = self.word_places[buckets]
            logits += shortened(often * self.rarity[places]) @ self.word_weights[places].astype(np.float32)
        return tuple(mix(logits.reshape(1, -1, self.tiers + 1))[0].tolist())

    def _knows(self, vector: Vector, features: Features) -> bool:
        # An image's content is not in the text, and a word or two are too few to compare.
        if features.has_images or len(features.text) < self.min_chars:
            return False
        return float((self.centroids @ vector).max()) >= self.min_similarity


def _by_bucket(
    buckets: NDArray[np.int32], rarity: Vector, weights: NDArray[np.float16]
) -> tuple[NDArray[np.int32], Vector, NDArray[np.float16]]:
    """Return `word_places`, and the two tables with a line of zeros in front."""
    places = np.zeros(BUCKETS, np.int32)
    places[buckets] = np.arange(1, len(buckets) + 1)
    return places, np.concatenate([[np.float32(0)], rarity]), np.pad(weights, ((1, 0), (0, 0)))


def mix(logits: NDArray[Any]) -> NDArray[Any]:
    """Mix the tasks' P(right) by task probability: logits (texts, tasks, tiers + 1) to P(right) (texts, tiers)."""
    tasks = logits[:, :, -1]
    weights = np.exp(tasks - tasks.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    right = 1.0 / (1.0 + np.exp(-logits[:, :, :-1]))
    return np.asarray((weights[:, :, None] * right).sum(axis=1))


def gain_of(probabilities: NDArray[Any]) -> NDArray[Any]:
    """Return the ranking score, shape (texts,), of P(right) (texts, tiers): the strongest's minus the cheapest's."""
    return np.asarray(probabilities[:, -1] - probabilities[:, 0])


def shipped_artefact(kind: EmbedderKind) -> Path:
    """Return the folder of the artefact shipped with Tierline for that encoder."""
    return Path(__file__).parents[1] / "artefacts" / kind


def version_in(folder: Path) -> str:
    """Return the version that the data sheet in `folder` states; '' where there is none."""
    try:
        return str(json.loads((folder / SHEET_FILE).read_bytes())["sha256"])[:12]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _checked_weights(folder: Path) -> bytes:
    """Return the bytes of the artefact's numbers. Raises ArtefactError if the data sheet's SHA-256 differs."""
    try:
        weights = (folder / WEIGHTS_FILE).read_bytes()
        expected = json.loads((folder / SHEET_FILE).read_bytes())["sha256"]
    except OSError as error:
        raise ArtefactError(f"{error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ArtefactError(f"{folder / SHEET_FILE} is not a data sheet: it has no sha256") from None
    if hashlib.sha256(weights).hexdigest() != expected:
        raise ArtefactError(f"{folder / WEIGHTS_FILE} is not the file its data sheet describes: the SHA-256 differs")
    return weights


def _made(weights: bytes, folder: Path) -> str:
    """Return the artefact's own metadata as JSON. Raises ArtefactError where it has an older format."""
    metadata = _metadata(weights)
    if FORMAT not in metadata:
        older = [name for name in metadata if name.startswith(_FAMILY)]
        if older:
            raise ArtefactError(
                f"{folder / WEIGHTS_FILE} is of format {older[0]}, which lacks the fitted range of each count; "
                f"train it again (`command` in {SHEET_FILE} says how) to get {FORMAT}"
            )
    return metadata[FORMAT]


def _metadata(weights: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file: eight bytes of length, a JSON header, then the tensors."""
    length = int.from_bytes(weights[:8], "little")
    metadata: dict[str, str] = json.loads(weights[8 : 8 + length])["__metadata__"]
    return metadata
