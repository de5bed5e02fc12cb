"""Read the files of labelled prompts that a command is given, with the facts on each for a report or a data sheet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline.datasets import DataError, Example, choose_ladder, label, read_rows


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labelled prompts of one or more files, and for each file its name, SHA-256, number of rows and models."""

    examples: list[Example]
    sources: list[dict[str, Any]]

    def pair(self) -> tuple[str, str]:
        """Return the names of the small and the large model; joined by a slash if they differ between files."""
        return self._names("small"), self._names("large")

    def _names(self, role: str) -> str:
        return " / ".join(dict.fromkeys(str(source[role]) for source in self.sources))


def read_labelled(
    paths: Sequence[Path], small: Sequence[str], large: Sequence[str], middle: Sequence[Sequence[str]] = ()
) -> Labelled:
    """Read the prompts that the models of all tiers answered. Raises DataError.

    `small`, `large` and each of `middle` list alternative model names, of which the first in a file is used.
    """
    read = Labelled([], [])
    for path in paths:
        rows = read_rows(path)
        try:
            ladder = choose_ladder(rows, small, middle, large)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        some = list(label(rows, *ladder))
        if not some:
            raise DataError(f"{path}: no prompt was answered by all of {', '.join(ladder)}")
        read.examples.extend(some)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        between = {"middle": list(ladder[1:-1])} if middle else {}
        tiers = {"small": ladder[0], **between, "large": ladder[-1]}
        read.sources.append({"file": path.name, "sha256": digest, "rows": len(some), **tiers})
    return read
