"""Write and read the data sheet of an artefact: what it was fitted to, when, and by which command."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Remade:
    """How an artefact was made: the words of the command that makes it again, and the user's remarks."""

    command: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, program: str, data: Sequence[Path], out: Path, options: Sequence[str], notes: Sequence[str] = ()
    ) -> Remade:
        """Return the command of a program that reads --data and writes --out, with files by their names alone.

        `notes` are those of --note, which has no effect on the artefact.
        """
        words = (*shlex.split(program), "--data", *(path.name for path in data), "--out", out.name, *options)
        return cls(words, tuple(notes))


def data_sheet(what: str, facts: dict[str, Any], remade: Remade) -> dict[str, Any]:
    """Return the sheet as JSON values."""
    return {
        "what": what,
        **facts,
        "trained_at": datetime.now(UTC).date().isoformat(),
        "tierline": version("tierline"),
        "scikit_learn": version("scikit-learn"),
        "command": shlex.join(remade.command),
        "notes": list(remade.notes),
    }


def trained_on(sheet: Path) -> set[str]:
    """Return the SHA-256 of every file that the data sheet lists as training data."""
    try:
        content = json.loads(sheet.read_bytes())
    except (OSError, ValueError):
        return set()
    sources = content.get("trained_on", []) if isinstance(content, dict) else []
    return {source["sha256"] for source in sources if isinstance(source, dict) and "sha256" in source}


def write_artefact(folder: Path, files: Mapping[str, bytes], name: str, sheet: Mapping[str, Any]) -> None:
    """Write an artefact's files, then its JSON under `name`: each appears at once, and whole. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in {**files, name: json.dumps(sheet, indent=2).encode() + b"\n"}.items():
        scratch = folder / f".{file}.{os.getpid()}.new"
        scratch.write_bytes(content)
        scratch.replace(folder / file)
