"""Encode a text as the mean of its tokens' static WordLlama vectors: the fast encoder, which runs no model.

Source: WordLlama l2_supercat, 256 dimensions (MIT), from the PyPI package `wordllama`; the mean and the normalisation
are those of its own `embed(norm=True)`.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from routing.embedding.embedder import (
    MAX_CHARS,
    EmbedderUnavailable,
    Vectors,
    bounded,
    package_file,
    read_tokenizer,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WEIGHTS = ("weights", "l2_supercat_256.safetensors")
_TOKENIZER = ("tokenizers", "l2_supercat_tokenizer_config.json")
# No piece of the vocabulary continues after a space, so a text's tokens are those of its words, one word after the
# other. The tokenizer merges words instead of the whole text, and the tokens of each word are kept here: the same
# tokens in a third of the time.
_WORDS: Final = "▁*[^▁]+|▁+"
_WORD: Final = re.compile(r" *[^ ]+")
_SPECIAL: Final = ("<s>", "</s>", "<unk>")
"""Texts that the tokenizer reads as single tokens wherever they stand, so that words cannot be read alone."""
_MOST_WORDS: Final = 32_768
"""Maximum number of words whose tokens are kept: about 6 MB."""
_LONGEST_WORD: Final = 32
_UNREAD: Final[list[int]] = []
_MOST_ONES: Final = 1_024
_WITHOUT_HIGH_EXPONENT: Final = np.int32(-0x70000001)
_EXPONENT_OFFSET: Final = np.float32(2.0**112)
"""What a float16's exponent lacks when its bits stand in a float32: the biases differ by 112."""


class StaticEmbedder:
    """The WordLlama encoder.

    Its matrix stays in the file, as float16: processes share the pages, and only those of words that occurred are in
    memory. A text's rows are widened to float32 with integer arithmetic, which is exact, since numpy's own conversion
    takes two to ten times as long.
    """

    name = "wordllama-256"
    whole_chars = MAX_CHARS

    def __init__(self, tokenizer: Tokenizer, halves: NDArray[np.int16]) -> None:
        """`halves` are the bits of the float16 matrix, one row for each token; all must be finite."""
        self._tokenizer = tokenizer
        self._halves = halves
        self._ones = np.ones(_MOST_ONES, np.float32)
        self._tokens_of: dict[str, list[int]] = {}
        self.dimension = int(halves.shape[1])

    @classmethod
    def load(cls) -> StaticEmbedder:
        """Map the vectors of the installed package into memory. Raises EmbedderUnavailable."""
        from tokenizers import Regex, pre_tokenizers

        tokenizer = read_tokenizer(package_file("wordllama", *_TOKENIZER))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
        return cls(tokenizer, _mapped(package_file("wordllama", *_WEIGHTS)))

    def vocabulary(self) -> list[str]:
        """Return the lower-case words that are one token, most frequent first (early merges are the frequent ones)."""
        pieces = sorted((number, piece[1:]) for piece, number in self._tokenizer.get_vocab().items() if piece[0] == "▁")
        return [word for _, word in pieces if len(word) > 1 and word.isalpha() and word.islower()]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' unit vectors; see `Embedder.embed`."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            ids = self._tokens(bounded(text))
            if ids:
                # The sum has the same direction as the mean, and as a product with ones it is one BLAS call.
                ones = self._ones[: len(ids)] if len(ids) <= _MOST_ONES else np.ones(len(ids), np.float32)
                bits = self._halves.take(ids, axis=0).astype(np.int32)
                bits <<= 13
                bits &= _WITHOUT_HIGH_EXPONENT  # copies of the sign, which widening put between it and the exponent
                rows = bits.view(np.float32)
                rows *= _EXPONENT_OFFSET
                np.dot(ones, rows, out=vector)
                if (length := math.sqrt(vector @ vector)) > 0:
                    np.divide(vector, length, out=vector)
        return vectors

    def _tokens(self, text: str) -> list[int]:
        """Return the tokens of a text, word by word where that gives the same as reading all of it at once."""
        if not text or text[-1] == " " or "▁" in text or ("<" in text and any(one in text for one in _SPECIAL)):
            return self._read([text])[0]
        words = _WORD.findall(f" {text}")
        known = self._tokens_of
        tokens = [known.get(word, _UNREAD) for word in words]
        if not all(tokens):
            # Another thread may clear the table at any time, so what was found is not looked up again.
            new = list({word for word, found in zip(words, tokens, strict=True) if not found})
            read = dict(zip(new, self._read([word[1:] for word in new]), strict=True))
            if len(known) + len(new) > _MOST_WORDS:
                known.clear()
            known.update({word: ids for word, ids in read.items() if len(word) <= _LONGEST_WORD})
            tokens = [found or read[word] for word, found in zip(words, tokens, strict=True)]
        return list(chain.from_iterable(tokens))

    def _read(self, texts: list[str]) -> list[list[int]]:
        """Return the tokenizer's tokens of each text; it puts a space before each."""
        return [one.ids for one in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _mapped(file: Path) -> NDArray[np.int16]:
    """Return the bits of the float16 matrix in a safetensors file, mapped: an 8-byte length, a JSON header, the data.

    Raises EmbedderUnavailable if the file has another form.
    """
    try:
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        start = 8 + int.from_bytes(mapped[:8], "little")
        tensor = json.loads(mapped[8:start])["embedding.weight"]
        rows, columns = tensor["shape"]
        if tensor["dtype"] != "F16":
            raise ValueError(tensor["dtype"])
        matrix = np.frombuffer(mapped, np.int16, rows * columns, start + tensor["data_offsets"][0])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise EmbedderUnavailable(f"{file} is not a float16 matrix in safetensors form: {error}") from None
    mapped.madvise(mmap.MADV_WILLNEED)  # into the page cache, not into this process
    return matrix.reshape(rows, columns)
