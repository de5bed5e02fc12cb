"""Say whether the answer to a text depends on when it is asked: a linear head over words and parts of words.

The head is one table of weights. Each feature (a word, a part of a word, two words in a row, the first word of the
sentence with another) is hashed to a row of it, so there is neither a vocabulary nor an embedding, and a word with its
parts has one weight, which is remembered. `tools.train_volatile` fits the table to the texts in `tools/volatile`. A
text is judged sentence by sentence (`sentences_of`), and the highest score counts.

The artefact is two files:
    volatile.json          the data sheet: training, data, quality; `sha256` of the table; `bias`, `scale`, `threshold`
    volatile.safetensors   `weights`, int16, (2 to the power of `bits`,); a weight is `scale` times its number
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

ARTEFACT: Final = Path(__file__).parent.parent / "artefacts" / "volatile"
_END: Final = 1_000
"""Characters read of each end of a longer text: a document with a question at one end."""
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？؟])\s*|\n+")
_QUESTION_MARKS: Final = ("?", "？", "؟")
_MOST_SENTENCES: Final = 6
TOKEN: Final = re.compile(
    r"""[\u3040-\u30ff\u3400-\u9fff々]+ | [\u0e00-\u0e7f]+ | \d+(?:[.,:]\d+)*   # Chinese, Japanese; Thai; numbers
    | [^\W\d_\u3040-\u30ff\u3400-\u9fff々]+(?:['’][^\W\d_]+)* | [%$€£¥]""",
    re.VERBOSE,
)
_MARKS: Final = frozenset('"“”«»「」『』„')


class VolatileError(ValueError):
    """The artefact cannot be used; the message gives the file and the reason."""


class _Script(NamedTuple):
    """How words of a script are cut into parts.

    `lengths` of the parts in characters; `spaced`, whether spaces separate words; `word`, characters that count as one
    word where they do not.
    """

    lengths: tuple[int, ...] = (3, 4, 5)
    spaced: bool = True
    word: float = 1.0


_ALPHABET: Final = _Script()
_HANGUL: Final = _Script((1, 2, 3))
_HAN: Final = _Script((1, 2, 3, 4), False, 2.0)
_THAI: Final = _Script((2, 3, 4, 5, 6), False, 4.0)


def _script_of(sign: str) -> _Script:
    if sign < "\u0e00":
        return _ALPHABET
    if sign < "\u0e80":
        return _THAI
    if "\uac00" <= sign <= "\ud7af":
        return _HANGUL
    return _HAN if "\u3005" <= sign <= "\u9fff" else _ALPHABET


class Token(NamedTuple):
    """A word as the head reads it: the `rows` of its table, with a value each.

    `size` is the number of words that it counts as, `form` what stands for it in pairs of neighbours.
    """

    rows: tuple[int, ...]
    values: tuple[float, ...]
    size: float
    form: bytes
    """Empty for a row of words without spaces, of which no pairs are made."""


def token(word: str, bits: int) -> Token:
    """Return the features of one word in lower case, for a table of 2 to the power of `bits` rows."""
    mask = (1 << bits) - 1
    if word[0].isdigit():
        # What may be a year counts by its century: the presidents of the 1800s do not change.
        number = f"#{word[:2]}" if len(word) == 4 and word[0] in "12" and word.isdigit() else "#"
        return Token((crc32(number.encode()) & mask,), (1.0,), 1.0, number.encode())
    script = _script_of(word[0])
    framed = f"<{word}>" if script.spaced else word
    parts = [
        crc32(b"~" + framed[at : at + length].encode()) & mask
        for length in script.lengths
        for at in range(len(framed) - length + 1)
    ]
    if script.spaced:
        value = 1 / math.sqrt(max(1, len(parts)))
        form = word.encode()
        return Token((crc32(form) & mask, *parts), (1.0, *[value] * len(parts)), 1.0, form)
    size = max(1.0, len(word) / script.word)
    return Token((*parts,), (0.5,) * len(parts), size, b"")


def pairs_of(forms: Sequence[bytes], bits: int) -> list[int]:
    """Return the rows of neighbouring words, the ends of the sentence included, and of the first word with others."""
    mask = (1 << bits) - 1
    rows, before, first = list[int](), b"^", b""
    for form in forms:
        rows.append(crc32(before + b" " + form) & mask)
        if first:
            rows.append(crc32(first + b"*" + form) & mask)
        first, before = first or form, form
    rows.append(crc32(before + b" $") & mask)
    return rows


def facts_of(text: str, sentence: str, count: int, bits: int) -> list[int]:
    """Return the rows of facts around a sentence: it is the only one, it asks, the text has quotes or a colon."""
    facts = [b"#one" if count == 1 else b"#several"]
    if sentence.endswith(_QUESTION_MARKS):
        facts.append(b"#asks")
    if not _MARKS.isdisjoint(text):
        facts.append(b"#quotes")
    if ":" in text:
        facts.append(b"#colon")
    return [crc32(fact) & (1 << bits) - 1 for fact in facts]


FACT: Final = 0.5
"""Value of a fact, beside those of words, which shrink with the length of the sentence."""


def sentences_of(text: str) -> tuple[list[str], int]:
    """Return the sentences to judge, in lower case, and how many there are: the first, the last two, and questions."""
    if len(text) > 2 * _END:
        text = f"{text[:_END]}\n{text[-_END:]}"
    sentences = [sentence for sentence in map(str.strip, _SENTENCE.split(text.lower())) if sentence]
    count = len(sentences)
    if count > 3:
        asked = [sentence for sentence in sentences[1:-2] if sentence.endswith(_QUESTION_MARKS)]
        sentences = [sentences[0], *asked[: _MOST_SENTENCES - 3], *sentences[-2:]]
    return sentences, count


class VolatileHead:
    """Estimate whether a question's answer changes with time. Safe to use from several threads at once."""

    def __init__(self, weights: bytes, bits: int, scale: float, bias: float, threshold: float, version: str) -> None:
        """Hold a table of int16 weights, least byte first. A score of `threshold` or more is volatile."""
        self.version = version
        self.threshold = threshold
        self._weights = array("h", weights)
        self._bits = bits
        self._scale = scale
        self._bias = bias
        self._word = lru_cache(maxsize=8_192)(self._weighed)

    @classmethod
    def load(cls, folder: Path = ARTEFACT) -> VolatileHead:
        """Read the artefact in `folder`. Raises VolatileError."""
        sheet_path, table_path = folder / "volatile.json", folder / "volatile.safetensors"
        try:
            sheet = json.loads(sheet_path.read_text("utf-8"))
            data = table_path.read_bytes()
            if hashlib.sha256(data).hexdigest() != sheet["sha256"]:
                raise VolatileError(f"{table_path}: it is not the file that {sheet_path.name} describes (sha256)")
            bits = int(sheet["bits"])
            weights = data[-(2 << bits) :]  # of a safetensors file, one tensor stands at the end
            return cls(weights, bits, sheet["scale"], sheet["bias"], sheet["threshold"], sheet["sha256"][:12])
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise VolatileError(f"{folder}: {error!r}; `python -m tools.train_volatile` makes it again") from None

    def _weighed(self, word: str) -> tuple[float, float, bytes]:
        """Return the weight of a word with its parts, how many words it counts as, and its form in pairs."""
        made = token(word, self._bits)
        return sum(map(mul, map(self._weights.__getitem__, made.rows), made.values)), made.size, made.form

    def score(self, text: str) -> float:
        """Return the log-odds that the answer depends on when it is asked: those of the sentence with the highest."""
        sentences, count = sentences_of(text)
        highest = -math.inf
        for sentence in sentences:
            highest = max(highest, self._score(text, sentence, count))
        return highest

    def _score(self, text: str, sentence: str, count: int) -> float:
        weight_of = self._weights.__getitem__
        total, length, forms = 0.0, 0.0, list[bytes]()
        words = TOKEN.findall(sentence)
        if not words:
            return -math.inf  # signs alone ask for nothing
        for word in words:
            weight, size, form = self._word(word)
            total += weight
            length += size
            if form:
                forms.append(form)
        total += sum(map(weight_of, pairs_of(forms, self._bits)))
        facts = sum(map(weight_of, facts_of(text, sentence, count, self._bits)))
        return self._bias + self._scale * (total / math.sqrt(max(1.0, length)) + FACT * facts)


@lru_cache(maxsize=1)
def volatile_head() -> VolatileHead:
    """Return the head that ships, read once. Raises VolatileError."""
    return VolatileHead.load()


@lru_cache(maxsize=1_024)
def is_volatile(text: str) -> bool:
    """Return whether the answer may be different tomorrow. Takes some 20 microseconds; results are cached."""
    head = volatile_head()
    return head.score(text) >= head.threshold
