"""Tell in which language a text is written, by its groups of letters, and provide the lexicons. Reads one artefact.

Among languages in Latin, Cyrillic and Arabic script a linear model decides over the words and over the groups of two to
four letters in them, each by its hash; it was fitted by `tools.train_languages`. It takes about 40 us for ten words,
and knows languages that no model here was made for too, so that these can be refused.

The artefact, in `artefacts`:
    languages.json         the data sheet: the languages in the order of the columns, data, quality, `sha256`
    languages.safetensors  `weights` int8 (2 ** 16, languages), `scale` and `bias` float32 (languages,)
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.text.languages import Language
from gateway.parts.encoders.lexicon import Lexicon, lexicons
from gateway.parts.encoders.typos import load_words, respelled

SHEET: Final = Path(__file__).parent / "artefacts" / "languages.json"
BUCKETS: Final = 1 << 16
_WORDS: Final = re.compile(r"[^\W\d_]+")
_READ_WORDS: Final = 40
_LONGEST_GROUP: Final = 4
_LEAST_SHARE: Final = 0.01
"""Smaller shares are not kept: thousands of texts are remembered, each in a few of some forty languages."""


def groups_of_letters(text: str) -> list[int]:
    """Return the hashes, 0..BUCKETS, of the words of a text and of the groups of letters in them."""
    grams = []
    for word in _WORDS.findall(text.lower())[:_READ_WORDS]:
        marked = f"<{word}>".encode("utf-32-le")
        size = len(marked)
        grams.append(zlib.crc32(marked))
        for width in range(8, min(4 * _LONGEST_GROUP + 1, size), 4):
            grams += [zlib.crc32(marked[at : at + width]) for at in range(0, size - width + 1, 4)]
    return [gram % BUCKETS for gram in grams]


class ShippedLanguages:
    """The languages that this part reads."""

    respelled = staticmethod(respelled)

    @property
    def lexicons(self) -> Mapping[str, Lexicon]:
        """The lexicons by the code of their language."""
        return lexicons()

    def compared(self, text: str) -> Language:
        """Return the language of a text in Latin, Cyrillic or Arabic script."""
        groups = groups_of_letters(text)
        if not groups:
            return Language("")
        model = _model()
        logits = model.weights[groups].sum(axis=0, dtype=np.int32) * (model.scale / len(groups)) + model.bias
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        likely = {
            code: share for code, share in zip(model.codes, shares.tolist(), strict=True) if share >= _LEAST_SHARE
        }
        return Language(model.codes[int(shares.argmax())], likely)

    def load(self) -> None:
        """Read the model's files, the lexicons and the words of dictionaries. Raises ValueError, OSError."""
        _model()
        lexicons()
        load_words()


class _Model(NamedTuple):
    codes: tuple[str, ...]
    weights: NDArray[np.int8]
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]


@lru_cache(maxsize=1)
def _model() -> _Model:
    """Return the model that ships. Raises ValueError where its two files do not belong together."""
    from safetensors.numpy import load

    sheet: dict[str, Any] = json.loads(SHEET.read_bytes())
    path = SHEET.with_suffix(".safetensors")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sheet["sha256"]:
        raise ValueError(f"{path}: its SHA-256 is not that of {SHEET.name}; install both files again")
    tensors = load(data)
    return _Model(tuple(sheet["languages"]), tensors["weights"], tensors["scale"], tensors["bias"])
