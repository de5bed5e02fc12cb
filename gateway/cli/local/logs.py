"""The children's logs: files the children write themselves, so that a slow terminal or a full pipe stops nobody."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

MAX_LOG_BYTES = 8 << 20
_TAIL_BYTES = 16 << 10


def rotate(log: Path) -> int:
    """Copies a log that has grown too long to `NAME.1` and empties it. Returns its size after that, in bytes.

    The file is emptied in place: a child that has it open goes on writing to it (they append). Never raises: what is
    wrong with a log is no reason to stop a child.
    """
    size = 0
    with contextlib.suppress(OSError):
        size = log.stat().st_size
        if size > MAX_LOG_BYTES:
            with contextlib.suppress(OSError):  # on a full disk the old text is what can go
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)
            size = 0
    return size


def tail(log: Path, start: int, lines: int = 12) -> list[str]:
    """The last lines written after byte `start`, blank ones left out; none when the log cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
