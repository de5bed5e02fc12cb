"""Say whether the answer to a text depends on when it is asked: a linear head over words and parts of words.

It gives a score, and two thresholds: from `threshold` on the text is volatile, from `doubt` on it may be.

The head is one table of weights. Each feature (a word, a part of a word, two words in a row, the first word of the
sentence with another) is hashed to a row of it, so there is neither a vocabulary nor an embedding, and a word with its
parts has one weight, which is remembered. `tools.train_volatile` fits the table to the texts in `tools/volatile`. A
text is judged sentence by sentence (`sentences_of`), and the highest score counts.

The artefact is two files:
    volatile.json          the data sheet: training, data, quality; `sha256` of the table; `bias`, `scale`, and the
                           thresholds
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
from typing import Final, Literal, NamedTuple
from zlib import crc32

from cache.text.reading import letters_of, text_letters

ARTEFACT: Final = Path(__file__).parent.parent / "artefacts" / "volatile"
_END: Final = 1_000
"""Characters read of each end of a longer text: a document with a question at one end."""
_SENTENCE_END: Final = re.compile(r"[.!?।。！？؟\n]")
_BETWEEN: Final = re.compile(r"(?<=[.!?।])\s+|(?<=[。！？؟])\s*|\n+")
_UNSPACED_ENDS: Final = "。！？؟"
_BETWEEN_SPACED: Final = re.compile(r"\s(?:(?<=[.!?।]\s)\s*|(?<=\n)\n*)")
"""The same as `_BETWEEN` where no sentence ends without a space: tried at each space, not at each character."""
_QUESTION_MARKS: Final = ("?", "？", "؟")
_MOST_SENTENCES: Final = 6
TOKEN: Final = re.compile(
    r"""[\u3040-\u30ff\u3400-\u9fff々]+ | [\u0e00-\u0e7f]+ | \d+(?:[.,:]\d+)*   # Chinese, Japanese; Thai; numbers
    | [\u0900-\u0963\u0970-\u0dff]+      # scripts of India, whose vowel signs are no letters to `re`
    | [^\W\d_\u3040-\u30ff\u3400-\u9fff々]+(?:[\u0300-\u036f]+[^\W\d_\u3040-\u30ff\u3400-\u9fff々]*)*
      (?:['’][^\W\d_]+)*
    | [%$€£¥]""",
    re.VERBOSE,
)
_ASCII_TOKEN: Final = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+(?:[.,:]\d+)*|[%$]")
"""The same as TOKEN for a text in ASCII and lower case, in half the time."""
_NO_PLAIN_TOKEN: Final = re.compile(r"[\d'’%$€£¥\u0300-\u036f\u0900-\u0dff\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff々]")
"""What a text has if its tokens are not its rows of letters."""
_QUOTE: Final = re.compile("[“”«»「」『』„]")


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


_PART: Final = crc32(b"~")
"""What the CRC-32 of a part of a word goes on from."""


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
        crc32(framed[at : at + length].encode(), _PART) & mask
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


_FACTS: Final = (b"#one", b"#several", b"#asks", b"#quotes", b"#colon")
_ONE, _SEVERAL, _ASKS, _QUOTES, _COLON = _FACTS


def facts_of(text: str, sentence: str, count: int, bits: int) -> list[int]:
    """Return the rows of facts around a sentence: it is the only one, it asks, the text has quotes or a colon."""
    facts = facts_of_text(text, count)
    if sentence.endswith(_QUESTION_MARKS):
        facts.append(_ASKS)
    return [crc32(fact) & (1 << bits) - 1 for fact in facts]


def facts_of_text(text: str, count: int) -> list[bytes]:
    """Return the facts that hold for each of a text's sentences, of which there are `count`."""
    facts = [_ONE if count == 1 else _SEVERAL]
    if '"' in text or (not text.isascii() and _QUOTE.search(text)):
        facts.append(_QUOTES)
    if ":" in text:
        facts.append(_COLON)
    return facts


FACT: Final = 0.5
"""Value of a fact, beside those of words, which shrink with the length of the sentence."""


def sentences_of(text: str) -> tuple[list[str], int]:
    """Return the sentences to judge, in lower case, and how many there are: the first, the last two, and questions."""
    if len(text) > 2 * _END:
        text = f"{text[:_END]}\n{text[-_END:]}"
    text = text.lower()
    end = _SENTENCE_END.search(text)
    if end is None or end.end() == len(text):
        sentence = text.strip()
        return ([sentence], 1) if sentence else ([], 0)
    sentences = list(filter(None, map(str.strip, _parted(text))))
    count = len(sentences)
    if count > 3:
        asked = [sentence for sentence in sentences[1:-2] if sentence.endswith(_QUESTION_MARKS)]
        sentences = [sentences[0], *asked[: _MOST_SENTENCES - 3], *sentences[-2:]]
    return sentences, count


def _parted(text: str) -> list[str]:
    """Return what stands between the ends of sentences in a text, with spaces around it."""
    if any(map(text.__contains__, _UNSPACED_ENDS)):
        return _BETWEEN.split(text)
    if not text.replace("\n", " ").isprintable():  # it may have other spaces
        return _BETWEEN_SPACED.split(text)
    for end in (". ", "! ", "? "):
        text = text.replace(end, f"{end}\n")
    return text.split("\n")


class VolatileHead:
    """Estimate whether a question's answer changes with time. Safe to use from several threads at once."""

    def __init__(
        self, weights: bytes, bits: int, scale: float, bias: float, threshold: float, doubt: float, version: str
    ) -> None:
        """Hold a table of int16 weights, least byte first. A score of `threshold` or more is volatile, one of `doubt`
        or more may be.
        """
        self.version = version
        self.threshold = threshold
        self.doubt = doubt
        self._weights = array("h", weights)
        self._bits = bits
        self._mask = (1 << bits) - 1
        self._scale = scale
        self._bias = bias
        self._word = lru_cache(maxsize=8_192)(self._weighed)
        self._facts = {fact: self._weights[crc32(fact) & self._mask] for fact in _FACTS}

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
            scale, bias, version = sheet["scale"], sheet["bias"], sheet["sha256"][:12]
            return cls(weights, bits, scale, bias, sheet["threshold"], sheet["doubt"], version)
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise VolatileError(f"{folder}: {error!r}; `python -m tools.train_volatile` makes it again") from None

    def _weighed(self, word: str) -> tuple[float, float, bytes, int]:
        """Return the weight of a word with its parts, how many words it counts as, its form in pairs, and the CRC-32
        that a pair with this word in front goes on from.
        """
        made = token(word, self._bits)
        weight = sum(map(mul, map(self._weights.__getitem__, made.rows), made.values))
        return weight, made.size, made.form, crc32(made.form + b" ")

    def score(self, text: str) -> float:
        """Return the log-odds that the answer depends on when it is asked: those of the sentence with the highest."""
        sentences, count = sentences_of(text)
        facts = sum(map(self._facts.__getitem__, facts_of_text(text, count)))
        highest = -math.inf
        for sentence in sentences:
            asks = self._facts[_ASKS] if sentence.endswith(_QUESTION_MARKS) else 0
            if _NO_PLAIN_TOKEN.search(sentence):
                words = (_ASCII_TOKEN if sentence.isascii() else TOKEN).findall(sentence)
            else:
                words = text_letters(text) if count == 1 else letters_of(sentence)
            highest = max(highest, self._score(words, facts + asks))
        return highest

    def _score(self, words: Sequence[str], facts: int) -> float:
        """Return the log-odds of a sentence with facts of this weight. Its pairs are those of `pairs_of`."""
        if not words:
            return -math.inf  # signs alone ask for nothing
        weights, mask = self._weights, self._mask
        total, length, pairs = 0.0, 0.0, 0
        before, first = _BEGIN, None
        for weight, size, form, next_before in map(self._word, words):
            total += weight
            length += size
            if form:
                pairs += weights[crc32(form, before) & mask]
                if first is not None:
                    pairs += weights[crc32(form, first) & mask]
                else:
                    first = crc32(form + b"*")
                before = next_before
        total += pairs + weights[crc32(b"$", before) & mask]
        return self._bias + self._scale * (total / math.sqrt(max(1.0, length)) + FACT * facts)


_BEGIN: Final = crc32(b"^ ")


@lru_cache(maxsize=1)
def volatile_head() -> VolatileHead:
    """Return the head that ships, read once. Raises VolatileError."""
    return VolatileHead.load()


Volatility = Literal["stable", "doubtful", "volatile"]


@lru_cache(maxsize=1_024)
def volatility_of(text: str) -> Volatility:
    """Return whether the answer may be different tomorrow. Takes some 8 microseconds; results are cached."""
    head = volatile_head()
    score = head.score(text)
    return "stable" if score < head.doubt else "doubtful" if score < head.threshold else "volatile"
