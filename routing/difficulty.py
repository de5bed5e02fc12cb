"""How hard a request is: what is expected to be gained by asking the strong tier instead of the cheap one.

Logistic heads over the request's vector and a few counts give P(cheap tier right) and P(strong tier right); the score
is their difference (design.md: ranking by it beats ranking by "the cheap one is wrong", APGR 0.667 to 0.588). Each kind
of task it was trained on has heads of its own, mixed by how much the request looks like that kind. The model knows its
domain: a text unlike all it was trained on is not judged, and the policy's default takes it.

An artefact is a folder with `difficulty.safetensors` (the numbers) and `difficulty.json` (its data sheet, with the
numbers' SHA-256). Reading one needs numpy and safetensors only; `routing.training.difficulty` writes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from routing.embedder import Embedder, EmbedderKind, bounded
from routing.features import Features

WEIGHTS_FILE: Final = "difficulty.safetensors"
SHEET_FILE: Final = "difficulty.json"
FORMAT: Final = "tierline-difficulty-1"
TENSORS: Final = (
    "heads.vector",
    "heads.counts",
    "heads.bias",
    "domain.centroids",
    "domain.min_similarity",
    "domain.min_chars",
)

COUNTS: Final = (
    "log_chars",
    "log_words",
    "log_lines",
    "log_questions",
    "log_choices",
    "share_digits",
    "share_mathematics",
    "share_brackets",
    "share_non_ascii",
    "code",
    "log_context_tokens",
    "log_turns",
    "tools",
    "json",
)
"""What `counts_of` counts, in order; part of the artefact's format."""

_CHOICE = re.compile(r"\n\(?[A-J][.):] ")
# Plain substrings: looking for eight of them takes a tenth of the time of one expression that means the same.
_CODE = ("```", "#include", "def ", "import ", "function ", "return ", "SELECT ", "public static ")
_CHARS_PER_TOKEN = 4

Vector = NDArray[np.float32]


def _byte_classes() -> NDArray[np.intp]:
    classes = np.zeros(256, np.intp)
    classes[128:] = 1
    for index, members in enumerate((b" \t", b"\n", b"?", b"0123456789", b"=+*/^<>%$\\|", b"{}[]();_`#"), start=2):
        classes[list(members)] = index
    return classes


_CLASS_OF_BYTE = _byte_classes()


class ArtefactError(Exception):
    """An artefact is missing, altered, of another format or for another encoder; the message says which file."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """One request's difficulty, 0..1: the expected gain of the strong tier. Out of the domain it means nothing."""

    score: float
    in_domain: bool
    model_version: str

    @property
    def p_adequate(self) -> float:
        """The probability that asking the strong tier instead would gain nothing; what start rules compare."""
        return 1.0 - self.score


@dataclass(frozen=True, slots=True)
class DifficultyModel:
    """The heads and the domain. `version` names the numbers by their hash.

    `vector_weights` (3 * tasks, dimension), `count_weights` (3 * tasks, len(COUNTS)) and `bias` (3 * tasks,) give three
    logits for each kind of task: the cheap tier is right, the strong tier is right, the request is of this kind.
    `centroids` (k, dimension) are unit vectors; a text is in the domain when its vector's cosine with one of them
    reaches `min_similarity` and it has at least `min_chars` characters.
    """

    embedder: str
    version: str
    vector_weights: Vector
    count_weights: Vector
    bias: Vector
    centroids: Vector
    min_similarity: float
    min_chars: int

    @classmethod
    def load(cls, folder: Path, embedder: Embedder | None = None) -> DifficultyModel:
        """Reads the artefact in `folder`, made for `embedder` if one is given. Raises ArtefactError."""
        weights = _checked_weights(folder)
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            tensors = load(weights)
            made_for = json.loads(_metadata(weights)[FORMAT])["embedder"]
            heads, counts, bias, centroids, similarity, chars = (tensors[name] for name in TENSORS)
        except (SafetensorError, KeyError, ValueError) as error:
            raise ArtefactError(f"{folder / WEIGHTS_FILE} is not a {FORMAT} artefact: {error}") from None
        if counts.shape[1] != len(COUNTS):
            raise ArtefactError(
                f"{folder / WEIGHTS_FILE} counts {counts.shape[1]} features, this version {len(COUNTS)}"
            )
        if embedder is not None and (embedder.name, embedder.dimension) != (made_for, heads.shape[1]):
            raise ArtefactError(f"{folder} was trained on {made_for} vectors, the encoder in use is {embedder.name}")
        version = hashlib.sha256(weights).hexdigest()[:12]
        return cls(made_for, version, heads, counts, bias, centroids, float(similarity[0]), int(chars[0]))

    def assess(self, vector: Vector, features: Features) -> Difficulty:
        """The difficulty of the request with these features, whose text has this unit vector, shape (dimension,)."""
        cheap, strong = self.probabilities(vector, features)
        return Difficulty(min(1.0, max(0.0, strong - cheap)), self._knows(vector, features), self.version)

    def probabilities(self, vector: Vector, features: Features) -> tuple[float, float]:
        """P(the cheap tier is right), P(the strong tier is right)."""
        logits = self.vector_weights @ vector + self.count_weights @ counts_of(features) + self.bias
        cheap, strong = mix(logits.reshape(1, -1, 3))[0].tolist()
        return cheap, strong

    def _knows(self, vector: Vector, features: Features) -> bool:
        # What an image asks is not in the text; a word or two say too little to be like anything.
        if features.has_images or len(features.text) < self.min_chars:
            return False
        return float((self.centroids @ vector).max()) >= self.min_similarity


def mix(logits: NDArray[Any]) -> NDArray[Any]:
    """Probabilities, shape (texts, 2), of logits (texts, tasks, 3): the tasks', each weighted by how likely it is."""
    tasks = logits[:, :, 2]
    weights = np.exp(tasks - tasks.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    right = 1.0 / (1.0 + np.exp(-logits[:, :, :2]))
    return np.asarray((weights[:, :, None] * right).sum(axis=1))


def shipped_artefact(kind: EmbedderKind) -> Path:
    """The folder of the artefact that comes with Tierline for that encoder."""
    return Path(__file__).parent / "artefacts" / kind


def counts_of(features: Features) -> Vector:
    """The cheap features, in the order of COUNTS, shape (len(COUNTS),). Only the bounded text is read."""
    text = bounded(features.text)
    data = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    _, non_ascii, spaces, lines, questions, digits, maths, brackets = np.bincount(
        _CLASS_OF_BYTE[data], minlength=8
    ).tolist()
    size = max(len(data), 1)
    logs = np.log1p(
        [
            len(features.text),
            spaces + lines,
            lines,
            questions,
            len(_CHOICE.findall(text)),
            max(0, features.approx_tokens - len(features.text) // _CHARS_PER_TOKEN - 4),
            features.turns,
        ]
    )
    shares = [digits / size, maths / size, brackets / size, non_ascii / size]
    flags = [features.has_tools, features.wants_json]
    return np.array([*logs[:5], *shares, any(mark in text for mark in _CODE), *logs[5:], *flags], np.float32)


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


def _metadata(weights: bytes) -> dict[str, str]:
    """The header's own words: safetensors is a length, a JSON header and the tensors."""
    length = int.from_bytes(weights[:8], "little")
    metadata: dict[str, str] = json.loads(weights[8 : 8 + length])["__metadata__"]
    return metadata
