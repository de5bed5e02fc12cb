"""Provide the seam `encoders` of `gateway.seams`. The models' libraries are imported when a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cache.semantic.cross_encoder import MeasuredPairScorer, PairQueue, TextPairScorer, TurnByTurn
    from cache.text.languages import ForeignLanguages
    from routing.embedder import PublicEncoder

__all__ = ["build_pair_queue", "compares_turns", "foreign_languages", "load_minilm", "load_pair_scorer"]


def load_minilm(state: Path) -> PublicEncoder:
    """Return the encoder MiniLM; its graph is kept under `state`. Raises EmbedderUnavailable or OSError."""
    from gateway.parts.encoders.minilm import MiniLmEmbedder

    return MiniLmEmbedder.load(state)


def load_pair_scorer(folder: Path) -> MeasuredPairScorer:
    """Return the cross-encoder of a folder; see the seam. Raises CrossEncoderError."""
    from gateway.parts.encoders.cross_encoder import CrossEncoder

    return CrossEncoder.load(folder, later=True)


def build_pair_queue(scorer: TextPairScorer) -> PairQueue:
    """Return what lets requests wait for a cross-encoder, which is not called yet."""
    from gateway.parts.encoders.cross_encoder import CrossEncoder
    from gateway.parts.encoders.pair_queue import CrossEncoderQueue
    from gateway.parts.encoders.turns import TurnScorer

    return CrossEncoderQueue(TurnScorer(scorer), opens=scorer.open if isinstance(scorer, CrossEncoder) else None)


def compares_turns() -> TurnByTurn:
    """Return what compares conversations turn by turn, and long texts by sentences."""
    from gateway.parts.encoders.turns import turn_by_turn

    return turn_by_turn


def foreign_languages() -> ForeignLanguages:
    """Return what reads other languages than English. Its files are read with the first text, or by its `load`."""
    from gateway.parts.encoders.languages import ShippedLanguages

    return ShippedLanguages()
