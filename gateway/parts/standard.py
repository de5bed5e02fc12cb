"""List the parts: folders of `gateway` that can be deleted, and the commands that do not run without them.

Plain data, read without importing a part. The core imports none (contracts in pyproject.toml), and serves without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

_GATEWAY: Final = Path(__file__).parents[1]
_PACKAGE: Final = __name__.removesuffix(".parts.standard")
"""The package of the folders: in the wheel it has another name than in the tree."""


class StandardPart(NamedTuple):
    """Describe a part: its folders in `gateway`, its commands, and those of other parts that do not run without it."""

    name: str
    folders: tuple[str, ...]
    commands: tuple[str, ...]
    needed_by: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether this installation has all its folders; one that is broken is installed."""
        return all((_GATEWAY / folder / "__init__.py").is_file() for folder in self.folders)


PARTS: Final = (
    StandardPart(
        "lab",
        ("lab",),
        ("policy test", "policy explain", "policy replay", "policy plan", "policy apply"),
        ("console", "mcp"),
    ),
    StandardPart("fit", ("fit",), ("collect", "train", "learn", "calibrate", "eval")),
    StandardPart("console", ("console", "mcp"), ("console", "top", "mcp")),
    StandardPart(
        "ledger",
        ("archive",),
        ("ledger", "usage", "policy judge"),
        ("console", "top", "mcp", "learn", "policy replay", "policy plan"),
    ),
)


def part_missing_for(command: str) -> StandardPart | None:
    """Return a part that a command, such as `usage` or `policy test`, needs and this installation lacks."""
    return next((part for part in PARTS if command in part.commands + part.needed_by and not part.installed), None)


def part_missing_of(module: str) -> StandardPart | None:
    """Return the part that a module which was not found belongs to; None if this installation has that part."""
    folder = module.partition(f"{_PACKAGE}.")[2].partition(".")[0]
    return next((part for part in PARTS if folder in part.folders and not part.installed), None)
