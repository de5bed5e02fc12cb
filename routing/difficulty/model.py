"""How hard a request is: how likely each tier's answer is right, and what the strongest is expected to gain.

Logistic heads over the request's words, its vector and a few counts give P(right) of every tier; the score is what the
strongest has over the cheapest (design.md: ranking by it beats ranking by "the cheap one is wrong", APGR 0.667 to
0.588). Each kind of task it was trained on has heads of its own, mixed by how much the request looks like that kind.
The model knows its domain: a text unlike all it was trained on, by its vector or by any of its counts, is not judged,
and the policy's default takes it. What it says of such a text nevertheless comes from its counts alone: words and
vectors do not carry over (trained on MMLU they rank GSM8K at an APGR of 0.45, the counts alone at 0.58).

An artefact is a folder with `difficulty.safetensors` (the numbers) and `difficulty.json` (its data sheet, with the
numbers' SHA-256). Reading one needs numpy and safetensors only; `routing.offline.training.difficulty` writes it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from routing.difficulty.lexicon import BUCKETS, LexiconReading, read, shortened, terms_of
from routing.difficulty.text_statistics import COUNTS, CountRange, counts_of
from routing.embedding.embedder import Embedder, EmbedderKind, bounded
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
    """An artefact is missing, altered, of another format or for another encoder; the message says which file."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How likely each tier is right on one request, cheapest first. Out of the domain it means nothing."""

    p_right: tuple[float, ...]
    in_domain: bool
    model_version: str

    @property
    def score(self) -> float:
        """The difficulty, 0..1: the expected gain of asking the strongest tier instead of the cheapest."""
        return max(0.0, self.p_right[-1] - self.p_right[0])

    @property
    def p_adequate(self) -> float:
        """The probability that asking the strongest tier instead of the cheapest would gain nothing."""
        return 1.0 - self.score

    def p_right_of(self, position: int, tiers: int) -> float:
        """P(right) of the tier at `position` in a ladder of `tiers`, which may be another number than was trained for.

        The ends of both ladders are taken for one another; a tier between them, for the one at or below its height:
        what is not known of a tier is not promised.
        """
        known = len(self.p_right)
        return self.p_right[position * (known - 1) // max(tiers - 1, 1)]

    def p_adequate_of(self, position: int, tiers: int) -> float:
        """`p_adequate` for another tier of the ladder than its cheapest; what start rules compare."""
        return 1.0 - max(0.0, self.p_right[-1] - self.p_right_of(position, tiers))


@dataclass(frozen=True, slots=True)
class DifficultyModel:
    """The heads and the domain. `version` names the numbers by their hash.

    A kind of task has `tiers` + 1 logits: each tier is right, cheapest first, and the request is of this kind. They are
    the rows of `vector_weights` (rows, dimension), `count_weights` (rows, len(COUNTS)) and `bias` (rows,), and the
    columns of `word_weights` (known + 1, rows). `word_places` (BUCKETS,) says which line of these and of `rarity`
    (known + 1,) a bucket has: the first, all zeros, where nothing is known of it. `centroids` (k, dimension) are unit
    vectors; a text is in the domain when its vector's cosine with one of them reaches `min_similarity`, it has at least
    `min_chars` characters and no count of it is far out of `count_range`. Outside, `general_counts` (tiers,
    len(COUNTS)) and `general_bias` (tiers,) give the logits of the tiers.
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
        """Reads the artefact in `folder`, made for `embedder` if one is given. Raises ArtefactError."""
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
        """The difficulty of the request with these features, whose text has this unit vector, shape (dimension,)."""
        reading = read(bounded(features.text))
        counts, far = self.count_range.heard(counts_of(features, reading))
        if not np.count_nonzero(far) and self._knows(vector, features):
            return Difficulty(self._of_known(vector, counts, reading), True, self.version)
        right = 1.0 / (1.0 + np.exp(-(self.general_counts @ counts + self.general_bias)))
        return Difficulty(tuple(right.tolist()), False, self.version)

    def probabilities(self, vector: Vector, features: Features) -> tuple[float, ...]:
        """P(right) of each tier, cheapest first."""
        return self.assess(vector, features).p_right

    def _of_known(self, vector: Vector, counts: Vector, reading: LexiconReading) -> tuple[float, ...]:
        logits = self.vector_weights @ vector + self.count_weights @ counts + self.bias
        if reading.words:
            buckets, often = terms_of(reading)
            places = self.word_places[buckets]
            logits += shortened(often * self.rarity[places]) @ self.word_weights[places].astype(np.float32)
        return tuple(mix(logits.reshape(1, -1, self.tiers + 1))[0].tolist())

    def _knows(self, vector: Vector, features: Features) -> bool:
        # What an image asks is not in the text; a word or two say too little to be like anything.
        if features.has_images or len(features.text) < self.min_chars:
            return False
        return float((self.centroids @ vector).max()) >= self.min_similarity


def _by_bucket(
    buckets: NDArray[np.int32], rarity: Vector, weights: NDArray[np.float16]
) -> tuple[NDArray[np.int32], Vector, NDArray[np.float16]]:
    """`word_places`, and the two tables with a line of zeros in front."""
    places = np.zeros(BUCKETS, np.int32)
    places[buckets] = np.arange(1, len(buckets) + 1)
    return places, np.concatenate([[np.float32(0)], rarity]), np.pad(weights, ((1, 0), (0, 0)))


def mix(logits: NDArray[Any]) -> NDArray[Any]:
    """P(right), shape (texts, tiers), of logits (texts, tasks, tiers + 1): each task's, by how likely the task is."""
    tasks = logits[:, :, -1]
    weights = np.exp(tasks - tasks.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    right = 1.0 / (1.0 + np.exp(-logits[:, :, :-1]))
    return np.asarray((weights[:, :, None] * right).sum(axis=1))


def gain_of(probabilities: NDArray[Any]) -> NDArray[Any]:
    """What prompts are ranked by, shape (texts,), of P(right) (texts, tiers): the strongest's over the cheapest's."""
    return np.asarray(probabilities[:, -1] - probabilities[:, 0])


def shipped_artefact(kind: EmbedderKind) -> Path:
    """The folder of the artefact that comes with Tierline for that encoder."""
    return Path(__file__).parents[1] / "artefacts" / kind


def _checked_weights(folder: Path) -> bytes:
    """The bytes of the artefact's numbers, which are those its data sheet was written for."""
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
    """What the artefact says of its making. Raises ArtefactError where it is of an older format."""
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
    """The header's own words: safetensors is a length, a JSON header and the tensors."""
    length = int.from_bytes(weights[:8], "little")
    metadata: dict[str, str] = json.loads(weights[8 : 8 + length])["__metadata__"]
    return metadata
