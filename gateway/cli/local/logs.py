"""Rotate and read the children's log files; children write to files so that a slow terminal cannot block them."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

MAX_LOG_BYTES = 8 << 20
_TAIL_BYTES = 16 << 10


def rotate(log: Path) -> int:
    """Copy a log of more than 8 MiB to `NAME.1` and empty it; return its size after that, in bytes.

    The file is emptied in place, because the child has it open for appending. Never raises: a child must not be stopped
    for a problem with its log.
    """
    size = 0
    with contextlib.suppress(OSError):
        size = log.stat().st_size
        if size > MAX_LOG_BYTES:
            with contextlib.suppress(OSError):  # on a full disk the old text is dropped
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)
            size = 0
    return size


def tail(log: Path, start: int, lines: int = 12) -> list[str]:
    """Return the last `lines` non-blank lines written after byte `start`; none if the log cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
