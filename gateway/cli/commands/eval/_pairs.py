"""Read pairs of texts, labelled with whether they ask the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline.datasets import DataError, json_lines


@dataclass(frozen=True, slots=True)
class QuestionPair:
    """Two texts. `same_answer`: the answer to one may be served for the other."""

    dataset: str
    group: str
    a: str
    b: str
    same_answer: bool


def read_pairs(path: Path) -> tuple[list[QuestionPair], int]:
    """Return the pairs in a file of JSON lines (or .gz), and how many were left out because they are conversations.

    Raises DataError.
    """
    every = [_pair(line, place) for place, line in json_lines(path)]
    pairs = [pair for pair in every if pair is not None]
    return pairs, len(every) - len(pairs)


def _pair(line: bytes, place: str) -> QuestionPair | None:
    try:
        row: dict[str, Any] = json.loads(line)
        a, b, same = row["a"], row["b"], row["same_answer"]
        if isinstance(a, list) and isinstance(b, list):
            return None
        if not (isinstance(a, str) and isinstance(b, str) and isinstance(same, bool)):
            raise TypeError("a and b are texts, same_answer is true or false")
        (a + b).encode()  # raises for a lone surrogate, which JSON can hold and no tokenizer accepts
        return QuestionPair(str(row["dataset"]), str(row["group"]), a, b, same)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{place}: not a row of pairs: {type(error).__name__}: {error}") from None
