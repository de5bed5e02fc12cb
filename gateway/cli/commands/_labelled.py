"""Files of labelled prompts, as commands are given them: read, with what a report or a data sheet says of each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.offline.dataset import DataError, Example, choose_ladder, label, read_rows


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labelled prompts of one or more files, and what a report says of each file."""

    examples: list[Example]
    sources: list[dict[str, Any]]

    def pair(self) -> tuple[str, str]:
        """The names of the small and of the large model, where a file has its own, joined by a slash."""
        return self._names("small"), self._names("large")

    def _names(self, role: str) -> str:
        return " / ".join(dict.fromkeys(str(source[role]) for source in self.sources))


def read_labelled(
    paths: Sequence[Path], small: Sequence[str], large: Sequence[str], middle: Sequence[Sequence[str]] = ()
) -> Labelled:
    """The prompts of these files that the models of all tiers answered. Raises DataError."""
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
