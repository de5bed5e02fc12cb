"""Estimate how hard a request is: how likely each tier's answer is right, and what the strongest tier would gain.

First the kind of the request is judged (`KINDS`: exam questions, maths, chat, code, tools), by its vector, its counts,
the words that occur in it and whether it has tools. Then logistic heads of that kind alone, over the request's words,
its vector and some counts, give P(right) of every tier. A kind has a group of heads for each data set that it was
fitted to, mixed by how likely the request belongs to it; chat has one group, over a Gaussian kernel of the vector. The
score is P(right) of the strongest tier minus that of the cheapest (ranking by it beats ranking by "the cheap one is
wrong": APGR 0.667 against 0.588). Heads of one kind say nothing about another: in transfers between kinds they rank at
an APGR of 0.43 to 0.60, so they are never mixed.

The quantile compares the score with those of the kind's reference prompts, as the labels' models gave it: the level of
the models in use shifts P(right) alone. Were it shifted too, requests that are too hard for the strongest tier would
count among the easiest where the cheapest tier is hardly ever right.

A request is in the domain where the ranking was good on what was left out of the fits: only kinds of which that holds
have a domain (`gateway.parts.fit.training.ranking_left_out`), and it ends where their labelled prompts do. Elsewhere
the classifier abstains, and the policy's default decides. Where its kind's prompts are not even near, by the vector or
by any of the counts, its probabilities come from the counts alone (trained on MMLU, words and vectors rank GSM8K at an
APGR of 0.45, the counts alone at 0.58).

Beside that, and never mixed with it, stands the request's `effort`: how much work it asks for by common sense
(`routing.difficulty.effort`), which is known in and out of the domain.

An artefact of one's own (`fit learn`) is a copy of another with `own_heads` added, which correct it by labels of a
surface's own traffic.

An artefact is a folder with `difficulty.safetensors` (the numbers) and `difficulty.json` (its data sheet, with the
numbers' SHA-256). Reading one needs numpy and safetensors only; `gateway.parts.fit.training.difficulty` writes it.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.tensors import map_file, release, tensors_in
from policies.value_type import value_type
from routing.difficulty.effort import EffortError, EffortHead, effort_head
from routing.difficulty.own_heads import OwnHeads
from routing.difficulty.text_statistics import (
    BUCKETS,
    COUNTS,
    SHAPE,
    CountRange,
    LexiconReading,
    buckets_of,
    counts_of,
    distinct,
    shortened,
    tokenise,
)
from routing.embedder import Embedder, EmbedderKind, bounded

if TYPE_CHECKING:
    from routing.features import Features

CLASSIFIER: Final = "classifier"
"""Name of the artefact that estimates difficulty, among those that decide."""
WEIGHTS_FILE: Final = "difficulty.safetensors"
SHEET_FILE: Final = "difficulty.json"
_FAMILY = "tierline-difficulty-"
FORMAT: Final = f"{_FAMILY}5"
_BEFORE: Final = f"{_FAMILY}4"
"""The format before, of which an artefact is still read: its kinds have no words, and their domain is what is near."""
OWN_FORMAT: Final = f"{FORMAT}+own"
"""Format of an artefact with `own_heads`, which a version that knows none of them must refuse."""
NEIGHBOURS_FORMAT: Final = f"{FORMAT}+neighbours"
"""Format of an artefact whose `own_heads` are neighbours, which a version that knows linear ones alone must refuse."""
TENSORS: Final = (
    "words.buckets", "words.rarity", "heads.words", "heads.vector", "heads.counts", "heads.bias", "heads.kind",
    "kernel.landmarks", "kernel.weights", "kinds.vector", "kinds.counts", "kinds.words", "kinds.bias", "kinds.shift",
    "general.counts", "general.bias", "domain.centroids", "domain.kind", "domain.min_similarity", "domain.min_chars",
    "domain.strict", "domain.counts_low", "domain.counts_high", "domain.counts_mean", "kinds.quantiles",
)  # fmt: skip

KINDS: Final = ("choices", "maths", "chat", "code", "tools")
"""Kinds of requests: exam questions (mostly with choices), maths, chat, programming tasks, and requests with tools."""

CHAT: Final = "chat"
"""The kind whose heads weigh the vector by a kernel."""

TOOLS: Final = "tools"
"""The kind of every request that has tools, whatever its text."""

QUANTILES: Final = np.linspace(0, 1, 101)

_STEEPNESS: Final = 2.0
"""Of the kernel of unit vectors, exp(-|a - b|^2) = exp(2 (a.b - 1)); part of the artefact's format."""

Vector = NDArray[np.float32]

_LEAST_LOGIT: Final = -700.0
"""Below it the logistic function is 0, and the exponential that it takes may be too large for a number."""
_NO_LINES: Final = np.zeros(0, np.intp)
_NO_TERMS: Final = np.zeros(0, np.float32)


class ArtefactError(Exception):
    """An artefact is missing, altered, of another format or for another encoder; the message names the file."""


@value_type
class Difficulty:
    """P(right) of each tier on one request, cheapest first; not to be used if `in_domain` is False.

    `kind` names the kind of task that the request is, also where the classifier abstains from its difficulty; empty
    where the text does not hold the task. `p_kind` is the probability that it is of that kind, 0..1. `quantile` is the
    share of that kind's reference prompts that are easier, 0..1; None if the classifier abstains or has none. `effort`
    is how much work the request asks for, 0..1, by common sense and not by any label; None where the text does not
    tell.
    """

    p_right: tuple[float, ...]
    in_domain: bool
    model_version: str
    kind: str = ""
    quantile: float | None = None
    p_kind: float = 0.0
    effort: float | None = None

    @property
    def score(self) -> float:
        """The difficulty, 0..1: the expected gain of calling the strongest tier instead of the cheapest."""
        return max(0.0, self.p_right[-1] - self.p_right[0])

    @property
    def p_adequate(self) -> float:
        """The probability that calling the strongest tier instead of the cheapest would gain nothing."""
        return 1.0 - max(0.0, self.p_right[-1] - self.p_right[0])

    def p_right_of(self, position: int, tiers: int) -> float:
        """Return P(right) of the tier at `position` in a ladder of `tiers`, which may differ from the trained number.

        The first and last tiers of both ladders correspond; a tier in between gets the probability of the trained tier
        at or below its relative height, which is the cautious choice.
        """
        known = len(self.p_right)
        return self.p_right[position * (known - 1) // max(tiers - 1, 1)]

    def p_adequate_of(self, position: int, tiers: int) -> float:
        """Return `p_adequate` of the tier at `position` in a ladder of `tiers`; start rules compare it."""
        known = len(self.p_right)
        return 1.0 - max(0.0, self.p_right[-1] - self.p_right[position * (known - 1) // max(tiers - 1, 1)])


class KindNumbers(NamedTuple):
    """What a model has for one kind, as `DifficultyModel` describes it; what is not multiplied, as plain numbers."""

    rows: slice
    """Its groups' rows of `heads`."""
    columns: slice
    """Its groups' columns of `word_weights`."""
    count_weights: Vector
    shift: list[float]
    centroids: Vector
    min_similarity: float
    min_chars: int
    limits: list[tuple[float, float]]
    """Between which each count of the text's shape is not far outside."""
    quantiles: list[float]


@dataclass(frozen=True, slots=True)
class DifficultyModel:
    """The heads and the domain. `version` is the first 12 hex digits of the SHA-256 of the numbers' file.

    Each of the `kinds` (k) has the groups of heads `groups_of` it, a slice of all groups (g). A group has `tiers` + 1
    logits: each tier is right, cheapest first, and the request is of this group. They are the rows of `vector_weights`
    (rows, dimension), `count_weights` (rows, len(COUNTS)) and `bias` (rows,); the columns of `word_weights`
    (known, g * tiers) have no logit of the group. `word_places` (BUCKETS,) maps a bucket to its line of `word_weights`
    and `rarity` (known + 1,), whose last, 0, is that of buckets without training data: so any line does for them. The
    kernel of the vector and each of `landmarks` (l, dimension) is weighted by `kernel_weights` (tiers, l) in CHAT's
    logits. `kind_*` (2 k, ...) give the logit of each kind, then for each kind whether a request of it lies in its
    domain (above 0); the columns of `kind_words` (known, 2 k) weigh the terms that occur, however often. `shift`
    (k, tiers) moves the tiers' logits from the models of the labels to those in use; `quantiles` (k, 101) are those of
    each kind's reference prompts' scores without it.

    `centroids` (m, dimension) are unit vectors, sorted by the kind that each belongs to; `starts` (k,) is the index of
    each kind's first, of which it has at least one. A text is near a kind when its vector's cosine with one of its
    centroids reaches its `min_similarity` (k,), it has at least its `min_chars` (k,) characters and no count of it is
    far outside its row of `count_range`, whose last row is that of all kinds together. Outside the domain,
    `general_counts` (tiers, len(COUNTS)) and `general_bias` (tiers,) give the tiers' logits.
    """

    embedder: str
    version: str
    tiers: int
    kinds: tuple[str, ...]
    word_places: NDArray[np.int32]
    rarity: Vector
    word_weights: NDArray[np.float16]
    vector_weights: Vector
    count_weights: Vector
    bias: Vector
    groups_of: tuple[slice, ...]
    landmarks: Vector
    kernel_weights: Vector
    kind_vectors: Vector
    kind_counts: Vector
    kind_words: NDArray[np.float16]
    kind_bias: Vector
    shift: Vector
    general_counts: Vector
    general_bias: Vector
    centroids: Vector
    starts: NDArray[np.intp]
    min_similarity: Vector
    min_chars: NDArray[np.int32]
    count_range: CountRange
    quantiles: Vector
    own: OwnHeads | None = None
    """Heads fitted to a surface's own labels, which decide near those."""
    effort: EffortHead = field(default_factory=effort_head)
    """What rates the work that requests ask for, the same in every artefact."""
    heads: Vector = field(init=False)
    """`kind_vectors` and `vector_weights` as one, so that a vector is multiplied once."""
    biases: Vector = field(init=False)
    """`kind_bias` and `bias` as one."""
    of_kinds: tuple[KindNumbers, ...] = field(init=False)
    """What is read of each kind alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", np.vstack([self.kind_vectors, self.vector_weights]))
        object.__setattr__(self, "biases", np.concatenate([self.kind_bias, self.bias]))
        object.__setattr__(self, "of_kinds", tuple(map(self._numbers_of, range(len(self.kinds)))))

    def _numbers_of(self, kind: int) -> KindNumbers:
        """Cut what is read of one kind out of what is held of all."""
        groups, tiers, ranges = self.groups_of[kind], self.tiers, self.count_range
        rows = slice(groups.start * (tiers + 1), groups.stop * (tiers + 1))
        return KindNumbers(
            slice(len(self.kind_bias) + rows.start, len(self.kind_bias) + rows.stop),
            slice(groups.start * tiers, groups.stop * tiers),
            self.count_weights[rows],
            self.shift[kind].tolist(),
            np.split(self.centroids, self.starts[1:])[kind],
            float(self.min_similarity[kind]),
            int(self.min_chars[kind]),
            list(zip(ranges.lowest[kind, :SHAPE].tolist(), ranges.highest[kind, :SHAPE].tolist(), strict=True)),
            self.quantiles[kind].tolist(),
        )

    @classmethod
    def load(cls, folder: Path, embedder: Embedder | None = None) -> DifficultyModel:
        """Read the artefact in `folder`, trained for `embedder` if one is given. Raises ArtefactError."""
        weights, version = _checked_weights(folder)
        try:
            tensors = tensors_in(weights)
            made = json.loads(_made(weights, folder))
            if "kinds.words" not in tensors:
                tensors |= _kinds_of_before(tensors)
            buckets, rarity, words, heads, counts, bias, *more = (tensors[name] for name in TENSORS)
            group_kinds, landmarks, kernel, kind_vectors, kind_counts, kind_words, kind_bias, shift, *rest = more
            general_counts, general_bias, centroids, owners, similarity, chars, strict, low, high, mean, quantiles = (
                rest
            )
            own, effort = OwnHeads.of(tensors), effort_head()
            made_for, tiers, kinds = str(made["embedder"]), int(made["tiers"]), tuple(map(str, made["kinds"]))
        except EffortError as error:
            raise ArtefactError(str(error)) from None
        except (KeyError, ValueError) as error:
            raise ArtefactError(f"{folder / WEIGHTS_FILE} is not a {FORMAT} artefact: {error}") from None
        if counts.shape[1] != len(COUNTS):
            raise ArtefactError(
                f"{folder / WEIGHTS_FILE} counts {counts.shape[1]} features, this version {len(COUNTS)}"
            )
        if embedder is not None and (embedder.name, embedder.dimension) != (made_for, heads.shape[1]):
            raise ArtefactError(f"{folder} was trained on {made_for} vectors, the encoder in use is {embedder.name}")
        ends = np.searchsorted(group_kinds, np.arange(len(kinds) + 1)).tolist()
        return cls(
            made_for,
            version,
            tiers,
            kinds,
            *_by_bucket(buckets, rarity),
            word_weights=words,
            vector_weights=heads,
            count_weights=counts,
            bias=bias,
            groups_of=tuple(slice(*pair) for pair in pairwise(ends)),
            landmarks=landmarks,
            kernel_weights=kernel,
            kind_vectors=kind_vectors,
            kind_counts=kind_counts,
            kind_words=kind_words,
            kind_bias=kind_bias,
            shift=shift,
            general_counts=general_counts,
            general_bias=general_bias,
            centroids=centroids,
            starts=np.searchsorted(owners, np.arange(len(kinds))),
            min_similarity=similarity,
            min_chars=chars,
            count_range=CountRange.between(low, high, mean, strict[:, None] > 0),
            quantiles=quantiles,
            own=own,
            effort=effort,
        )

    def assess(self, vector: Vector, features: Features) -> Difficulty:
        """Return the difficulty of the request with these features, whose unit vector has shape (dimension,)."""
        if features.in_context:
            features = features.as_rated
        reading = tokenise(bounded(features.text))
        counts = counts_of(features, reading)
        clamped = self.count_range.clamped(counts)
        logits = self.heads.dot(vector)
        logits += self.biases
        terms = self._terms(reading)
        kind, p_kind, inside = self._kind_of(logits, clamped, terms, features)
        # An image's content is not in the text.
        name, effort = ("", None) if features.has_images else (self.kinds[kind], self.effort.rate(reading))
        if self._near(kind, vector, counts, features):
            of_kind = self.of_kinds[kind]
            rows = self._logits(kind, vector, logits, counts, clamped, terms)
            quantile = None
            if inside:
                of_labels = _mixed(rows, [0.0] * self.tiers)
                quantile = _quantile(of_kind.quantiles, of_labels[-1] - of_labels[0])
            right = tuple(_mixed(rows, of_kind.shift))
            rated = Difficulty(right, inside, self.version, name, quantile, p_kind, effort)
        else:
            general = self.general_counts.dot(self.count_range.heard(counts, -1)) + self.general_bias
            right = tuple(map(_probability, general.tolist()))
            rated = Difficulty(right, False, self.version, name, None, p_kind, effort)
        own = self.own
        if own is None or features.has_images or not own.near(vector):
            return rated
        ends = own.p_right(vector, counts, np.array(rated.p_right), rated.in_domain).tolist()
        quantile = _quantile(own.quantiles[kind].tolist(), ends[1] - ends[0])
        return Difficulty(tuple(ends), True, self.version, name, quantile, p_kind, effort)

    def probabilities(self, vector: Vector, features: Features) -> tuple[float, ...]:
        """Return P(right) of each tier, cheapest first."""
        return self.assess(vector, features).p_right

    def _terms(self, reading: LexiconReading) -> tuple[NDArray[np.intp], Vector, Vector]:
        """Return the line of each distinct known term, what it weighs in the heads, and its rarity."""
        if not reading.words:
            return _NO_LINES, _NO_TERMS, _NO_TERMS
        places = self.word_places.take(buckets_of(reading))
        places.sort()
        lines, often = distinct(places[: places.searchsorted(len(self.word_weights))])
        rarity = self.rarity.take(lines)
        return lines, shortened(rarity if often is None else often * rarity), rarity

    def _logits(
        self,
        kind: int,
        vector: Vector,
        by_vector: Vector,
        counts: Vector,
        clamped: Vector,
        terms: tuple[NDArray[np.intp], Vector, Vector],
    ) -> list[list[float]]:
        """Return the logits of each group of heads of this kind: `tiers` + 1 of each."""
        numbers = self.of_kinds[kind]
        # Only among requests with tools is any near with a count far outside.
        heard = self.count_range.heard(counts, kind) if self.kinds[kind] == TOOLS else clamped[kind]
        logits = (by_vector[numbers.rows] + numbers.count_weights.dot(heard)).reshape(-1, self.tiers + 1)
        if self.kinds[kind] == CHAT:
            logits[:, :-1] += self.kernel_weights.dot(kernel(self.landmarks.dot(vector)))
        lines, weights, _ = terms
        words = weights.dot(self.word_weights.take(lines, axis=0, mode="clip")[:, numbers.columns].astype(np.float32))
        logits[:, :-1] += words.reshape(-1, self.tiers)
        rows: list[list[float]] = logits.tolist()
        return rows

    def _kind_of(
        self,
        by_vector: Vector,
        clamped: Vector,
        terms: tuple[NDArray[np.intp], Vector, Vector],
        features: Features,
    ) -> tuple[int, float, bool]:
        """Return the number of the request's kind and its probability, and whether it lies in that kind's domain."""
        lines, _, rarity = terms
        logits = by_vector[: len(self.kind_bias)] + self.kind_counts.dot(clamped[-1])
        logits += rarity.dot(self.kind_words.take(lines, axis=0, mode="clip").astype(np.float32))
        numbers = logits.tolist()
        among, domains = numbers[: len(self.kinds)], numbers[len(self.kinds) :]
        if features.has_tools and TOOLS in self.kinds:
            tools = self.kinds.index(TOOLS)
            return tools, 1.0, domains[tools] > 0
        most = max(among)
        kind = among.index(most)
        return kind, 1.0 / sum([math.exp(logit - most) for logit in among]), domains[kind] > 0

    def _near(self, kind: int, vector: Vector, counts: Vector, features: Features) -> bool:
        """Return whether the request resembles the labelled ones of this kind, by its vector and by every count."""
        if features.has_images:
            return False
        if self.kinds[kind] == TOOLS and features.has_tools:
            return True
        numbers = self.of_kinds[kind]
        if len(features.text) < numbers.min_chars:
            return False
        cosines = numbers.centroids.dot(vector)
        if cosines[cosines.argmax()] < numbers.min_similarity:
            return False
        shape = counts[:SHAPE].tolist()
        return all(low <= count <= high for count, (low, high) in zip(shape, numbers.limits, strict=True))


def _probability(logit: float) -> float:
    """Return the logistic function of a logit."""
    return 1.0 / (1.0 + math.exp(-logit)) if logit > _LEAST_LOGIT else 0.0


def _mixed(rows: list[list[float]], shift: list[float]) -> list[float]:
    """Return P(right) of each tier as `mix` does, of one text whose tiers' logits are moved by `shift`."""
    if len(rows) == 1:
        return [_probability(logit + moved) for logit, moved in zip(rows[0][:-1], shift, strict=True)]
    most = max([row[-1] for row in rows])
    weights = [math.exp(row[-1] - most) for row in rows]
    total = sum(weights)
    return [
        sum([weight * _probability(row[tier] + moved) for row, weight in zip(rows, weights, strict=True)]) / total
        for tier, moved in enumerate(shift)
    ]


def kernel(cosines: NDArray[Any]) -> NDArray[Any]:
    """Return the Gaussian kernel exp(-|a - b|^2) of unit vectors with these cosines."""
    return np.asarray(np.exp(_STEEPNESS * (cosines - 1)))


def mix(logits: NDArray[Any]) -> NDArray[Any]:
    """Return P(right), shape (texts, tiers), mixed from the groups by how likely a text belongs to each.

    `logits` (texts, groups, tiers + 1) are those of P(right) and, last, of the group.
    """
    right = 1.0 / (1.0 + np.exp(-logits[:, :, :-1]))
    if logits.shape[1] == 1:
        return np.asarray(right[:, 0])
    groups = logits[:, :, -1]
    weights = np.exp(groups - np.maximum.reduce(groups, axis=1, keepdims=True))
    weights /= np.add.reduce(weights, axis=1, keepdims=True)
    return np.asarray(np.add.reduce(weights[:, :, None] * right, axis=1))


def _quantile(quantiles: Sequence[float], score: float) -> float:
    """Return the share, 0..1, of scores below this one, by their `quantiles` in even steps: linear between two."""
    above = bisect_right(quantiles, score)
    if not 0 < above < len(quantiles):
        return float(above > 0)
    low, high = quantiles[above - 1 : above + 1]
    return (above - 1 + (score - low) / (high - low)) / (len(quantiles) - 1)


def _by_bucket(buckets: NDArray[np.int32], rarity: Vector) -> tuple[NDArray[np.int32], Vector]:
    """Return `word_places` and `rarity` of an artefact's terms."""
    places = np.full(BUCKETS, len(buckets), np.int32)
    places[buckets] = np.arange(len(buckets))
    return places, np.append(rarity, np.float32(0))


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


def _checked_weights(folder: Path) -> tuple[bytes | mmap, str]:
    """Return the artefact's numbers, and their version. Raises ArtefactError if the data sheet's SHA-256 differs.

    Those that ship are mapped; others may be written over while they are in use.
    """
    try:
        expected = json.loads((folder / SHEET_FILE).read_bytes())["sha256"]
        path = folder / WEIGHTS_FILE
        weights = map_file(path) if folder.parent == shipped_artefact("static").parent else path.read_bytes()
    except OSError as error:
        raise ArtefactError(f"{error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ArtefactError(f"{folder / SHEET_FILE} is not a data sheet: it has no sha256") from None
    digest = hashlib.sha256(weights).hexdigest()
    if isinstance(weights, mmap):
        release(weights)
    if digest != expected:
        raise ArtefactError(f"{folder / WEIGHTS_FILE} is not the file its data sheet describes: the SHA-256 differs")
    return weights, digest[:12]


def _made(weights: bytes | mmap, folder: Path) -> str:
    """Return the artefact's own metadata as JSON. Raises ArtefactError where it has an older format."""
    metadata = _metadata(weights)
    for format_ in (OWN_FORMAT, NEIGHBOURS_FORMAT, _BEFORE, f"{_BEFORE}+own"):
        if format_ in metadata:
            return metadata[format_]
    if FORMAT not in metadata:
        older = [name for name in metadata if name.startswith(_FAMILY)]
        if older:
            raise ArtefactError(
                f"{folder / WEIGHTS_FILE} is of format {older[0]}, which this version cannot read; "
                f"train it again (`command` in {SHEET_FILE} says how) to get {FORMAT}"
            )
    return metadata[FORMAT]


def _kinds_of_before(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the tensors of kinds of an artefact of the format before: each domain's logit is 1 wherever it is near."""
    known, kinds = len(tensors["words.buckets"]), len(tensors["kinds.bias"])
    made = {name: np.vstack([tensors[name], np.zeros_like(tensors[name])]) for name in ("kinds.vector", "kinds.counts")}
    bias = np.concatenate([tensors["kinds.bias"], np.ones(kinds, np.float32)])
    return {**made, "kinds.bias": bias, "kinds.words": np.zeros((known, 2 * kinds), np.float16)}


def _metadata(weights: bytes | mmap) -> dict[str, str]:
    """Return the metadata of a safetensors file: eight bytes of length, a JSON header, then the tensors."""
    length = int.from_bytes(weights[:8], "little")
    metadata: dict[str, str] = json.loads(weights[8 : 8 + length])["__metadata__"]
    return metadata
