"""Read the lists of mutants beside this file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """Describe a change that breaks a rule: where `old` stands `new`, once in `file`; `test` is what pytest runs."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    test: str

    def mutated(self, root: Path) -> str:
        """Return the changed text of the file below `root`.

        Raises:
            ValueError: the text to change is not there exactly once.
        """
        text = (root / self.file).read_text()
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} has the text to change {times} times, not once")
        return text.replace(self.old, self.new)


def mutants() -> list[Mutant]:
    """Return every mutant, in the order of the files and of what they say."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for name, fields in tomllib.loads(path.read_text()).items():
            found.append(Mutant(f"{path.stem}.{name}", **fields))
    return found
