"""Provide the seam `heads`: the confidence heads that the config names."""

from __future__ import annotations

from pathlib import Path

from gateway.parts.heads.head import ConfidenceHead, shipped_head


def load_head(file: Path | None, model: str) -> ConfidenceHead | None:
    """Return the head in a file, or the one that ships for a model; None without one. Raises ArtefactError."""
    file = file or shipped_head(model)
    return None if file is None else ConfidenceHead.load(file)
