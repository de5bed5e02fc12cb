"""Tell in which language a question is written, by its script and by groups of letters. Pure, but for one artefact.

Where a script is of one language here, it decides: Thai, Hangul, any Japanese syllable, Chinese characters. Among
languages in Latin, Cyrillic and Arabic script a linear model decides over the words and over the groups of two to four
letters in them, each by its hash; it was fitted by `tools.train_languages`. It takes about 40 us for ten words, and
knows languages that no model here was made for too, so that these can be refused.

The artefact, in `cache/artefacts`:
    languages.json         the data sheet: the languages in the order of the columns, data, quality, `sha256`
    languages.safetensors  `weights` int8 (2 ** 16, languages), `scale` and `bias` float32 (languages,)
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.text.reading import is_english, script_of

SHEET: Final = Path(__file__).parents[1] / "artefacts" / "languages.json"
BUCKETS: Final = 1 << 16
ENGLISH: Final = "en"
_WORDS: Final = re.compile(r"[^\W\d_]+")
_READ_WORDS: Final = 40
_LONGEST_GROUP: Final = 4
_OF_SCRIPT: Final = {
    "Han": "zh", "Hiragana": "ja", "Katakana": "ja", "Hangul": "ko", "Thai": "th", "Greek": "el", "Hebrew": "he",
    "Devanagari": "hi", "": "",
}  # fmt: skip
"""Languages of the scripts that are of one language for us."""
_COMPARED: Final = frozenset({"Latin", "Cyrillic", "Arabic"})
_NOT_LISTED: Final = 0.7
"""Share of the languages that are not listed from which a text is taken for one of them: short English questions have a
few per cent often, and 70% in one of two hundred."""


class Language(NamedTuple):
    """The likeliest language of a text as its ISO 639-1 code, '' for a text without letters, the script's name in lower
    case where no language is known; and the shares of the languages that it may be, from 1% on.
    """

    code: str
    shares: Mapping[str, float] = MappingProxyType({})

    def is_one_of(self, listed: Collection[str]) -> bool:
        """Return whether the text may be in one of these languages."""
        if not self.shares:
            return not self.code or self.code in listed
        return sum(share for code, share in self.shares.items() if code not in listed) < _NOT_LISTED


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


@lru_cache(maxsize=16_384)
def language(text: str) -> Language:
    """Return the language of a text; cached, because stored questions are compared repeatedly."""
    if text.isascii() and is_english(text):
        return _ENGLISH
    script = script_of(text)
    if script not in _COMPARED:
        return Language(_OF_SCRIPT.get(script, script.lower()))
    groups = groups_of_letters(text)
    if not groups:
        return Language("")
    model = _model()
    logits = model.weights[groups].sum(axis=0, dtype=np.int32) * (model.scale / len(groups)) + model.bias
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    likely = {code: share for code, share in zip(model.codes, shares.tolist(), strict=True) if share >= _LEAST_SHARE}
    return Language(model.codes[int(shares.argmax())], likely)


def language_of(text: str) -> str:
    """Return the code of the language of a text; see `Language`."""
    return language(text).code


_ENGLISH: Final = Language(ENGLISH)


class _Model(NamedTuple):
    codes: tuple[str, ...]
    weights: NDArray[np.int8]
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]


def load_languages() -> None:
    """Read the model's files now rather than at the first text that needs them. Raises ValueError, OSError."""
    _model()


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
