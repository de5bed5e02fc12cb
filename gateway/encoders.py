"""Load the models that read texts: the static vectors, which are the core's, and those of the part `encoders`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cache.semantic.cross_encoder_queue import CrossEncoderError
from gateway.parts.standard import missing_for
from gateway.seams import encoders_part
from routing.embedding.embedder import EmbedderUnavailable, StaticEmbedder

if TYPE_CHECKING:
    from cache.semantic.cross_encoder_queue import MeasuredPairScorer
    from routing.embedding.embedder import EmbedderKind, PublicEncoder


def load_embedder(kind: EmbedderKind, state_dir: Path) -> PublicEncoder:
    """Open the encoder of that kind; files that it has to build first are cached under `state_dir`.

    Raises EmbedderUnavailable.
    """
    if kind == "static":
        return StaticEmbedder.load()
    if (part := encoders_part()) is None:
        raise EmbedderUnavailable(missing_for("encoders", f"the embedding {kind}"))
    return part.load_minilm(state_dir)


def load_cross_encoder(folder: Path) -> MeasuredPairScorer:
    """Open the cross-encoder in a folder and score one pair as a check. Raises CrossEncoderError."""
    if (part := encoders_part()) is None:
        raise CrossEncoderError(missing_for("encoders", "a cross-encoder"))
    return part.load_pair_scorer(folder)
