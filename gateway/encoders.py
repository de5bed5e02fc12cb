"""Load the model that makes vectors of texts: the static vectors, which are the core's, or one of a part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gateway.seams import load_minilm
from routing.embedder import StaticEmbedder

if TYPE_CHECKING:
    from routing.embedder import EmbedderKind, PublicEncoder


def load_embedder(kind: EmbedderKind, state_dir: Path) -> PublicEncoder:
    """Open the encoder of that kind; files that it has to build first are cached under `state_dir`.

    Raises EmbedderUnavailable.
    """
    return StaticEmbedder.load() if kind == "static" else load_minilm(state_dir)
