"""Embed texts with progress, each text only once, however many fits need it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.progress import OnProgress
from routing.embedding.embedder import Embedder, Vectors

_BATCH = 64


class Remembered:
    """Wrap an encoder: cache every vector, and report progress."""

    def __init__(self, embedder: Embedder, on_progress: OnProgress) -> None:
        self._embedder = embedder
        self._on_progress = on_progress
        self._vectors: dict[str, Vectors] = {}
        self.name = embedder.name
        self.dimension = embedder.dimension
        self.whole_chars = embedder.whole_chars

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' unit vectors, shape (texts, dimension)."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            self._vectors.update(zip(batch, self._embedder.embed(batch), strict=True))
            if len(missing) > _BATCH:
                self._on_progress("embedding", start + len(batch), len(missing))
        return np.array([self._vectors[text] for text in texts], np.float32).reshape(len(texts), self.dimension)
