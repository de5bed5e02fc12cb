"""Provide the seam `encoders` of `gateway.seams`. The models' libraries are imported when a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cache.semantic.cross_encoder_queue import MeasuredPairScorer
    from cache.text.languages import ForeignLanguages
    from routing.embedder import PublicEncoder

__all__ = ["foreign_languages", "load_minilm", "load_pair_scorer"]


def load_minilm(state: Path) -> PublicEncoder:
    """Return the encoder MiniLM; its graph is kept under `state`. Raises EmbedderUnavailable or OSError."""
    from gateway.parts.encoders.minilm import MiniLmEmbedder

    return MiniLmEmbedder.load(state)


def load_pair_scorer(folder: Path) -> MeasuredPairScorer:
    """Return the cross-encoder of a folder. Raises CrossEncoderError."""
    from gateway.parts.encoders.cross_encoder import CrossEncoder

    return CrossEncoder.load(folder)


def foreign_languages() -> ForeignLanguages:
    """Return what reads other languages than English. Its files are read with the first text, or by its `load`."""
    from gateway.parts.encoders.languages import ShippedLanguages

    return ShippedLanguages()
