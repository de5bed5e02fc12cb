"""Encode a text as the mean of its tokens' static WordLlama vectors: the fast encoder, which runs no model.

Source: WordLlama l2_supercat, 256 dimensions (MIT), from the PyPI package `wordllama`; the mean and the normalisation
are those of its own `embed(norm=True)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from routing.embedding.embedder import MAX_CHARS, Vectors, bounded, package_file, read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WEIGHTS = ("weights", "l2_supercat_256.safetensors")
_TOKENIZER = ("tokenizers", "l2_supercat_tokenizer_config.json")
# No piece of the vocabulary continues after a space, so words can be looked up one by one in the tokenizer's cache,
# instead of merging the whole text at once: the same tokens in two thirds of the time.
_WORDS = "▁*[^▁]+|▁+"
_MOST_ONES = 1_024


class StaticEmbedder:
    """The WordLlama encoder. Takes 32 MB: the matrix is float32, whose mean is 15 times faster than float16's."""

    name = "wordllama-256"
    whole_chars = MAX_CHARS

    def __init__(self, tokenizer: Tokenizer, matrix: Vectors) -> None:
        self._tokenizer = tokenizer
        self._matrix = matrix
        self._ones = np.ones(_MOST_ONES, np.float32)
        self.dimension = int(matrix.shape[1])

    @classmethod
    def load(cls) -> StaticEmbedder:
        """Read the vectors from the installed package. Raises EmbedderUnavailable."""
        from safetensors import safe_open
        from tokenizers import Regex, pre_tokenizers

        tokenizer = read_tokenizer(package_file("wordllama", *_TOKENIZER))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
        with safe_open(package_file("wordllama", *_WEIGHTS), framework="numpy") as file:
            matrix = file.get_tensor("embedding.weight").astype(np.float32)
        return cls(tokenizer, matrix)

    def vocabulary(self) -> list[str]:
        """Return the lower-case words that are one token, most frequent first (early merges are the frequent ones)."""
        pieces = sorted((number, piece[1:]) for piece, number in self._tokenizer.get_vocab().items() if piece[0] == "▁")
        return [word for _, word in pieces if len(word) > 1 and word.isalpha() and word.islower()]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' unit vectors; see `Embedder.embed`."""
        encodings = self._tokenizer.encode_batch_fast([bounded(text) for text in texts], add_special_tokens=False)
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for vector, encoding in zip(vectors, encodings, strict=True):
            ids = encoding.ids
            if ids:
                # The sum has the same direction as the mean, and as a product with ones it is one BLAS call.
                ones = self._ones[: len(ids)] if len(ids) <= _MOST_ONES else np.ones(len(ids), np.float32)
                np.dot(ones, self._matrix.take(ids, axis=0), out=vector)
                if (length := math.sqrt(vector @ vector)) > 0:
                    np.divide(vector, length, out=vector)
        return vectors
