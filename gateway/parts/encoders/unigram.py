"""Split texts into the pieces of a Unigram vocabulary, as the `tokenizers` library would, in a fifth of its memory.

The library keeps a vocabulary as nested hash tables, one for each prefix of a piece: 53 MB for 62,000 pieces. Here the
pieces are the keys of one dictionary, which takes 9 MB. How a text is normalised and cut into words is the library's.
Of all ways to split a word the likeliest is taken: that with the highest sum of its pieces' log-probabilities (Kudo
2018, "Subword regularization"), found from left to right.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import orjson

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BELOW_RAREST: Final = 10.0
"""How much less likely than the rarest piece an unknown character is: the library's constant."""
_WORDS_KEPT: Final = 8_192
_LONGEST_KEPT: Final = 32
"""Maximum characters of a word whose pieces are kept."""


_SPACE: Final = "▁"
_AT_SPACES: Final = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "always", "split": True}
"""Cuts words at spaces, each with the sign in front, as the library does in ten times the time."""
_BEFORE: Final = [{"type": "NFKC"}, {"type": "Lowercase"}]
_AFTER: Final = [
    {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
    {"type": "Strip", "strip_left": True, "strip_right": True},
]
_LATIN: Final = re.compile("[\n -~¡«»¿À-ɏ]*")
"""Spaces, and signs that no step changes together with the next one, nor into a space."""
_OTHERS: Final = re.compile(r"[^\0-ɏ]+|\[(?:[^\0-ɏ](?:-[^\0-ɏ])?)+\]")
"""Patterns that match none of these."""


class Encoded(NamedTuple):
    """The tokens of a pair: their ids, and which of the texts (0 or 1) each belongs to."""

    ids: list[int]
    type_ids: list[int]

    @property
    def attention_mask(self) -> list[int]:
        """Return 1 for each token."""
        return [1] * len(self.ids)


class UnigramTokenizer:
    """Read pairs of texts. Safe to use from several threads at once."""

    def __init__(
        self,
        words: Tokenizer,
        model: dict[str, Any],
        template: Sequence[tuple[str, list[int], int]],
        *,
        spaced: bool,
        by_word: bool,
    ) -> None:
        """Take what normalises and cuts into words, the vocabulary, and the form of a pair: its parts in order, each a
        text (`A` or `B`) or ids ('' and those), and the type of its tokens. `spaced`: words are cut at spaces alone.
        `by_word`: of Latin texts each word is normalised by itself.
        """
        self._spaced = spaced
        self._by_word = spaced and by_word
        self.unknown: int = model["unk_id"]
        self._normalized = words.normalizer.normalize_str
        self._words_of = words.pre_tokenizer.pre_tokenize_str
        self._template = template
        pieces, scores = zip(*model["vocab"], strict=True)
        self._ids = dict(zip(pieces, range(len(pieces)), strict=True))
        self._scores = array("d", scores)
        self._unknown_score = min(self._scores) - _BELOW_RAREST
        self._longest = max(map(len, self._ids))
        self._kept = lru_cache(_WORDS_KEPT)(self._split)
        self._kept_as_written = lru_cache(_WORDS_KEPT)(self._pieces_as_written)

    @classmethod
    def of(cls, content: bytes) -> Self | None:
        """Return the tokenizer of a `tokenizer.json`; None for one of another kind. Raises ValueError."""
        if b'"Unigram"' not in content:
            return None
        read = orjson.loads(content)
        model, processor = read["model"], read["post_processor"]
        if (
            model["type"] != "Unigram"
            or model["unk_id"] is None
            or model.get("byte_fallback")
            or not (read["normalizer"] and read["pre_tokenizer"])
            or read["added_tokens"]
            or processor["type"] != "TemplateProcessing"
        ):
            return None
        from tokenizers import Tokenizer

        template = []
        for part in processor["pair"]:
            ((kind, stated),) = part.items()
            ids = processor["special_tokens"][stated["id"]]["ids"] if kind == "SpecialToken" else []
            template.append(("" if ids else stated["id"], ids, stated["type_id"]))
        unknown = {"type": "Unigram", "unk_id": 0, "vocab": [model["vocab"][model["unk_id"]]]}
        words = Tokenizer.from_str(json.dumps({**read, "model": unknown, "post_processor": None}))
        spaced = read["pre_tokenizer"] == _AT_SPACES
        return cls(words, model, template, spaced=spaced, by_word=_is_by_word(read["normalizer"]))

    def encode_batch(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        """Return the tokens of each pair."""
        return [self._encoded({"A": self.pieces_of(first), "B": self.pieces_of(second)}) for first, second in pairs]

    def _encoded(self, texts: dict[str, list[int]]) -> Encoded:
        made = Encoded([], [])
        for name, ids, kind in self._template:
            part = texts[name] if name else ids
            made.ids.extend(part)
            made.type_ids.extend([kind] * len(part))
        return made

    def pieces_of(self, text: str) -> list[int]:
        """Return the ids of the pieces of a text."""
        if self._by_word and _LATIN.fullmatch(text) is not None:
            words = text.split()
            if not words or max(map(len, words)) < _LONGEST_KEPT:
                return list(chain.from_iterable(map(self._kept_as_written, words)))
        text = self._normalized(text)
        words = text.split(" ")
        if self._spaced and all(words) and _SPACE not in text:
            words = [_SPACE + word for word in words]
        else:
            words = [word for word, _ in self._words_of(text)]
        found: list[int] = []
        for word in words:
            found += self._kept(word) if len(word) <= _LONGEST_KEPT else self._split(word)
        return found

    def _pieces_as_written(self, word: str) -> list[int]:
        """Return the ids of the pieces of a word that is not normalised yet."""
        return self._split(_SPACE + self._normalized(word))

    def _split(self, word: str) -> list[int]:
        """Return the ids of the likeliest pieces of a word; of equally likely ways the first found is taken."""
        piece_of, scores, size = self._ids.get, self._scores, len(word)
        best = [0.0, *[-inf] * size]
        last = [(0, 0)] * (size + 1)  # by end: where the last piece of the likeliest way to it begins, and its id
        for start in range(size):
            until = best[start]
            for end in range(start + 1, min(start + self._longest, size) + 1):
                piece = piece_of(word[start:end])
                if piece is not None:
                    score = until + scores[piece]
                elif end == start + 1:
                    piece, score = self.unknown, until + self._unknown_score
                else:
                    continue
                if score > best[end]:
                    best[end], last[end] = score, (start, piece)
        found = []
        end = size
        while end:
            end, piece = last[end]
            found.append(piece)
        return found[::-1]


def _is_by_word(normalizer: dict[str, Any]) -> bool:
    """Return whether the steps normalise each word of a text in the signs of _LATIN by itself: those between the first
    and the last replace other signs.
    """
    steps = normalizer.get("normalizers", [])
    return (
        steps[:2] == _BEFORE
        and steps[-2:] == _AFTER
        and all(
            step["type"] == "Replace" and all(map(_OTHERS.fullmatch, step["pattern"].values())) for step in steps[2:-2]
        )
    )
