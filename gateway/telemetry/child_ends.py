"""Note when a process of `tierline up` ended unexpectedly, beside its log, and read that for the console."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from gateway.config.environment import write_private

_ENDS: Final = ".ends"
_MOST: Final = 50


def note_end(log: Path, how: str) -> None:
    """Write an unexpected end of the process with this log; the latest _MOST are kept. Nothing where it cannot be."""
    file = log.with_name(log.name.removesuffix(".log") + _ENDS)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lines = file.read_text().splitlines() if file.is_file() else []
        lines = [*lines, f"{time.time():.3f} {how}"][-_MOST:]
        write_private(file, "".join(f"{line}\n" for line in lines).encode())


def ends_of(logs: Path) -> dict[str, list[tuple[float, str]]]:
    """Return the latest unexpected ends of each process with its log in a folder: Unix seconds, and how it ended."""
    ends = {}
    for file in logs.glob(f"*{_ENDS}"):
        with contextlib.suppress(OSError, ValueError):
            lines = (line.partition(" ") for line in file.read_text().splitlines())
            ends[file.name.removesuffix(_ENDS)] = [(float(at), how) for at, _, how in lines]
    return ends
