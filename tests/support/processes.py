"""What the system says of other processes; one that ends while it is looked at is one that has ended."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """The pids of the living children of a process."""
    with contextlib.suppress(OSError):
        threads = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for thread in threads for child in thread.read_text().split()]
    return []


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    return [found for child in children_of(pid) for found in (child, *descendants(child))]


def command_line(pid: int) -> str:
    """What a process was started as; empty when it is gone, and for a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def is_alive(pid: int) -> bool:
    """Whether the process still runs; one that is dead but not yet reaped does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
