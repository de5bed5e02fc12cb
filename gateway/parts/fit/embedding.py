"""Embed texts with progress, each text only once, however many fits need it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cache.semantic.cross_encoder import TokenSums
from cache.text.languages import language_of
from gateway.report import OnProgress
from routing.embedder import Embedder, Vector, Vectors

_BATCH = 64


class Remembered:
    """Wrap an encoder: cache every vector, and report progress."""

    def __init__(self, embedder: Embedder, on_progress: OnProgress) -> None:
        self._embedder = embedder
        self._on_progress = on_progress
        self._vectors: dict[str, Vector] = {}
        self.name = embedder.name
        self.dimension = embedder.dimension
        self.whole_chars = embedder.whole_chars
        self.vectors: TokenSums | None = None
        """Vectors that the cache searches by in other languages, where they are wanted."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' unit vectors, shape (texts, dimension)."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            self._vectors.update(zip(batch, self._embed(batch), strict=True))
            if len(missing) > _BATCH:
                self._on_progress("embedding", start + len(batch), len(missing))
        return np.array([self._vectors[text] for text in texts], np.float32).reshape(len(texts), self.dimension)

    def _embed(self, texts: Sequence[str]) -> list[Vector]:
        vectors = list(self._embedder.embed(texts))
        if self.vectors is not None:
            for place, text in enumerate(texts):
                if language_of(text) in self.vectors.languages:
                    vectors[place] = self.vectors.embed(text, self.dimension)
        return vectors
