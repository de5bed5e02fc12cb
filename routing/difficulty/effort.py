"""Say how much work a request asks for, by common sense: a proof or a design much, a look-up or a greeting little.

This is an order of its own, assumed and not measured on any model: it says nothing of how likely an answer is right
(`routing.difficulty.model` does, where it knows), and the two are never mixed. It is one linear head over words and
parts of words, hashed to rows of one table, fitted to prompts that were written for it in fourteen languages
(`tools/effort`, `tools.train_effort`).

By construction it does not hang on case or final punctuation, hardly on length, as the sum is divided by the root of
the number of words, nor on politeness and frames (`Quick question:`, `Answer in one sentence.`): their words count for
nothing. A word with its parts has one weight, which is remembered. Where words are not separated by spaces, or are cut
by the signs for vowels (Chinese, Japanese, Korean, Thai, the scripts of India), the rows are those of the text's
sequences of 2, 3, 4 and 6 characters.

The artefact is two files:
    effort.json          the data sheet: data, quality; `sha256` of the table; `scale`, `bias`, `frames`, `words`
    effort.safetensors   `weights`, int8, (2 to the power of `bits`,); a weight is `scale` times its number
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from policies.tensors import map_file, release, tensors_in

if TYPE_CHECKING:
    from routing.difficulty.text_statistics import LexiconReading

ARTEFACT: Final = Path(__file__).parents[1] / "artefacts" / "effort"
SHEET_FILE: Final = "effort.json"
WEIGHTS_FILE: Final = "effort.safetensors"

_LENGTHS: Final = (3, 4, 5, 6)
"""Lengths of a word's parts in characters, its ends included."""
_PART: Final = crc32(b"~")
"""What the CRC-32 of a part of a word goes on from."""
_LONGEST: Final = 32
"""Characters of the longest word that is read; longer ones are addresses, keys and the like."""
_WORDS_AT_END: Final = 64
_SIGNS_AT_END: Final = 500
"""How much of each end of a longer text is read: instructions stand at the beginning, and the question at the end."""
_STEEPEST: Final = 60.0
"""Log-odds beyond which a rating is 0 or 1."""
_KNOWN: Final = 1 / 3
"""Share of a word's rows that must have a weight: below it, the word is taken for one of another language."""
_READ: Final = re.compile("[\u0900-\u097f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Signs of the unspaced scripts that prompts were fitted in: Devanagari, kana, Chinese characters, Hangul."""
_AROUND: Final = " \t\r\n.,;:!?…。！？；：、，؟،।\"'“”«»「」『』()（）"
"""Signs at the ends of a text that count for nothing."""
_SEQUENCES: Final = (2, 3, 4, 6)
"""Lengths of the sequences of characters that are read where words are not."""
_END: Final = "\0" * (_SEQUENCES[-1] - 1)


def _multipliers() -> NDArray[np.uint32]:
    """Return a column for each length of a sequence: odd factors of its characters, 0 for those behind it."""
    factors = np.zeros((_SEQUENCES[-1], len(_SEQUENCES)), np.uint32)
    for column, length in enumerate(_SEQUENCES):
        factors[:length, column] = [crc32(b"%d of %d" % (place, length)) | 1 for place in range(length)]
    return factors


_MULTIPLIERS: Final = _multipliers()

_SPACED: Final = re.compile("[0-9_a-z\u00aa-\u024f\u0400-\u052f\u0600-\u06ff]")
"""How a word begins in the other scripts that prompts were fitted in: Latin, Cyrillic, Arabic."""

Rows = NDArray[np.intp]


class EffortError(ValueError):
    """The artefact cannot be used; the message gives the file and the reason."""


def rows_of_word(word: str, bits: int) -> list[int]:
    """Return the rows of a word in lower case, its own first, in a table of 2 to the power of `bits`."""
    word = word.replace("ß", "ss")  # as it is in capitals
    mask, framed = (1 << bits) - 1, f"<{word}>"
    parts = [framed[at : at + length] for length in _LENGTHS for at in range(len(framed) - length + 1)]
    return [crc32(word.encode()) & mask, *[crc32(part.encode(), _PART) & mask for part in parts]]


def is_unspaced(text: str) -> bool:
    """Return whether most of a text is in a script whose words spaces do not show: three bytes for a character."""
    return len(text.encode("utf-8", "replace")) > 2 * len(text)


def rows_of_text(text: str, bits: int) -> Rows:
    """Return the rows of each sequence of 2, 3, 4 and 6 characters of a text, its ends counted as spaces."""
    signs = f" {text.lower().strip(_AROUND)} {_END}".encode("utf-32-le", "replace")
    longest = _SEQUENCES[-1]
    windows = np.ndarray((len(signs) // 4 - longest, longest), np.uint32, signs, strides=(4, 4))
    # The high bits of a sum of products depend on all of its factors' bits.
    return ((windows @ _MULTIPLIERS) >> np.uint32(32 - bits)).ravel().astype(np.intp)


def without_frames(frames: Collection[str]) -> re.Pattern[str]:
    """Return what finds any of these frames, the longest first; nothing where there are none."""
    return re.compile("|".join(map(re.escape, sorted(frames, key=len, reverse=True))) or r"(?!)")


class EffortHead:
    """Rate how much work requests ask for. Safe to use from several threads at once."""

    def __init__(self, weights: NDArray[np.int8], scale: float, bias: float, sheet: dict[str, Any]) -> None:
        """`sheet` has `words` that count for nothing, and `frames`, texts in unspaced scripts that do not either."""
        self.version = str(sheet.get("sha256", ""))[:12]
        self.bits = len(weights).bit_length() - 1
        self._weights = weights
        self._scale, self._bias = scale, bias
        self._words = frozenset(map(str.encode, sheet["words"]))
        self._frames = without_frames(sheet["frames"])
        self._weighed = lru_cache(maxsize=8_192)(self._weight_of)

    @classmethod
    def load(cls, folder: Path = ARTEFACT) -> EffortHead:
        """Read the artefact in `folder`. Raises EffortError."""
        try:
            sheet = json.loads((folder / SHEET_FILE).read_text("utf-8"))
            data = map_file(folder / WEIGHTS_FILE)
            if hashlib.sha256(data).hexdigest() != sheet["sha256"]:
                raise EffortError(f"{folder / WEIGHTS_FILE}: it is not the file that {SHEET_FILE} describes (sha256)")
            release(data)
            return cls(tensors_in(data)["weights"], float(sheet["scale"]), float(sheet["bias"]), sheet)
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise EffortError(f"{folder}: {error!r}; `python -m tools.train_effort` makes it again") from None

    def _weight_of(self, encoded: bytes) -> float:
        """Return the weight of a word in UTF-8 with its parts; 0 for one that counts for nothing or is not known."""
        word = encoded.decode("utf-8", "replace")
        if encoded in self._words or len(word) > _LONGEST or not _SPACED.match(word):
            return 0.0
        own, *parts = self._weights.take(rows_of_word(word, self.bits)).tolist()
        if not own and len(parts) - parts.count(0) < _KNOWN * len(parts):
            return 0.0
        return float(own + sum(parts) / math.sqrt(max(1, len(parts))))

    def rate(self, reading: LexiconReading) -> float | None:
        """Return the effort, 0..1, that a text asks for; None where too little of it is known.

        A text of nothing but politeness and greetings asks for none: 0.
        """
        words: Sequence[bytes] = reading.words
        if is_unspaced(reading.text):
            return self._rate_unspaced(reading.text)
        if len(words) > 2 * _WORDS_AT_END:
            words = [*words[:_WORDS_AT_END], *words[-_WORDS_AT_END:]]
        weights = list(map(self._weighed, words))
        count = len(weights) - weights.count(0.0)
        if not count:
            return 0.0 if words and self._words.issuperset(words) else None
        return self._probability(sum(weights) / math.sqrt(count))

    def _rate_unspaced(self, text: str) -> float | None:
        if not _READ.search(text):
            return None
        if len(text) > 2 * _SIGNS_AT_END:
            text = text[:_SIGNS_AT_END] + text[-_SIGNS_AT_END:]
        left = self._frames.sub("", text)
        if not left.strip(_AROUND):
            return 0.0
        weights = self._weights.take(rows_of_text(left, self.bits))
        count = np.count_nonzero(weights)
        return self._probability(float(np.add.reduce(weights, dtype=np.float32)) / math.sqrt(count)) if count else None

    def _probability(self, total: float) -> float:
        return 1.0 / (1.0 + math.exp(max(-_STEEPEST, min(_STEEPEST, -(self._bias + self._scale * total)))))


@lru_cache(maxsize=1)
def effort_head() -> EffortHead:
    """Return the head that ships, read once. Raises EffortError."""
    return EffortHead.load()
