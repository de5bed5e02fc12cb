"""Exact and semantic caches of answers, with a bound on wrong hits."""

from __future__ import annotations

from pathlib import Path


def shipped_cross_encoder() -> Path:
    """Return the folder of the cross-encoder that ships with Tierline."""
    return Path(__file__).parent / "artefacts" / "cross-encoder"
