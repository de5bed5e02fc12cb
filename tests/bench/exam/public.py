"""Read a public set of labelled pairs of questions, which is evaluated in place, and draw unselected pairs from it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.parts.fit.datasets import DataError, read_pairs
from tests.bench.exam.questions import ExamPair

RANDOM: Final = 1_500
"""Pairs that are drawn of each file, as they come: nobody has selected them."""


def unselected_pairs(files: Sequence[Path], limit: int, seed: int) -> list[ExamPair]:
    """Return random pairs of each file, whose name is their language and kind. Raises DataError."""
    chosen: list[ExamPair] = []
    for file in files:
        pairs = [
            ExamPair(pair.a, pair.b, pair.same_answer, file.name.split(".")[0], pair.group or pair.dataset or "all")
            for pair in read_pairs(file)
            if isinstance(pair.a, str) and isinstance(pair.b, str)
        ]
        if not pairs:
            raise DataError(f"{file}: no pairs of questions")
        rng = random.Random(seed)
        chosen += rng.sample(pairs, min(limit or RANDOM, len(pairs)))
    return chosen
