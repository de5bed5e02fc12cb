"""Questions for the bench of the indexes, with their vectors: real ones where there are files of them, else made up."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors.numpy import load_file

from cache.planning import eligibility
from cache.semantic.verifier import WORDS, shipped_verifier
from gateway.encoders import load_embedder
from tests.support.gateway import ROOT

Vectors = NDArray[np.float32]

_FOLDER = ROOT.parent / "shared" / "data" / "cache"
PUBLIC = [path for path in (_FOLDER / "qqp.jsonl.gz", _FOLDER / "semanticmemo.jsonl.gz") if path.exists()]
"""What people asked; where it is."""
_AT_ONCE = 500
_FORMS = (
    ("How do I {0} the {1} of {2} {3}?", "What is the way to {0} the {1} of {2} {3}?"),
    ("Why does {0} {1} make {2} {3}?", "What is the reason that {0} {1} makes {2} {3}?"),
    ("Which {0} is best for {1} with {2} and {3}?", "What {0} should one take for {1} with {2} and {3}?"),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Texts and their vectors, a row each: float32, of unit length."""

    texts: list[str]
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Questions:
    """`kept` go into the index, `asked` are looked up. `what` says where they are from."""

    kept: Asked
    asked: Asked
    what: str


def questions(files: Sequence[Path], entries: int, lookups: int, seed: int = 7) -> Questions:
    """So many questions to keep and others to look up, all of which the semantic cache would take.

    Those of the files in their order, a pair's two sides among them, shuffled; made-up ones where that is not enough.
    """
    needed = entries + lookups
    rng = np.random.default_rng(seed)
    texts = _of_files(files, needed)
    what = f"{len(texts):,} real questions"
    if len(texts) < needed:
        what += f", {needed - len(texts):,} made up"
        texts += _made_up(needed - len(texts), rng)
    texts = [texts[place] for place in rng.permutation(len(texts))]
    vectors = _vectors(texts)
    return Questions(Asked(texts[:entries], vectors[:entries]), Asked(texts[entries:], vectors[entries:]), what)


def _of_files(files: Sequence[Path], most: int) -> list[str]:
    found: dict[str, None] = {}
    for path in files:
        with gzip.open(path) as lines:
            for line in lines:
                row = orjson.loads(line)
                for side in (row["a"], row["b"]):
                    if isinstance(side, str) and not eligibility.why_not_the_question(side):
                        found[side] = None
                if len(found) >= most:
                    return list(found)[:most]
    return list(found)


def _made_up(count: int, rng: np.random.Generator) -> list[str]:
    """Pairs of one meaning, of words that the verifier's table knows."""
    table = load_file(shipped_verifier("static").parent / WORDS)["words"].tobytes().decode().split("\n")
    words = [word for word in table if word.isalpha() and len(word) > 3][1_000:20_000]
    found: dict[str, None] = {}
    while len(found) < count:
        chosen = [words[place] for place in rng.integers(0, len(words), 4)]
        for form in _FORMS[int(rng.integers(0, len(_FORMS)))]:
            text = form.format(*chosen)
            if not eligibility.why_not_the_question(text):
                found[text] = None
    return list(found)[:count]


def _vectors(texts: Sequence[str]) -> Vectors:
    with tempfile.TemporaryDirectory() as folder:
        embedder = load_embedder("static", Path(folder))
        parts = [embedder.embed(texts[first : first + _AT_ONCE]) for first in range(0, len(texts), _AT_ONCE)]
    return np.vstack(parts)
