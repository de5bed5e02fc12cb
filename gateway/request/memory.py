"""Measure which share of the memory that this process may use is in use.

In a container, that is the control group's working set divided by its limit, or a parent group's share if that is
higher. Without a limit, it is this process's resident memory divided by that memory plus what the machine has left;
memory used by other processes is no reason to reject requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class _Limited:
    """A control group with a limit. Inactive file pages do not count as used: the kernel can reclaim them."""

    limit: int
    usage: Path
    stat: Path
    inactive: str

    def share(self) -> float:
        idle = next((int(line.split()[1]) for line in _lines(self.stat) if line.startswith(self.inactive)), 0)
        return max(0, int(self.usage.read_text()) - idle) / self.limit


def used_share(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Callable[[], float]:
    """Return a function that returns the share in use, 0 to 1, or 0 if it cannot be read; a call takes about 100 us.

    `proc` and `groups` are the folders where the kernel exposes processes and control groups.
    """
    limited = list(_limited(proc, groups))

    def share() -> float:
        try:
            return max((group.share() for group in limited), default=0.0) if limited else _of_machine(proc)
        except (OSError, ValueError, IndexError, StopIteration):
            return 0.0

    return share


def _of_machine(proc: Path) -> float:
    held = int((proc / "self/statm").read_text().split()[1]) * _PAGE
    left = _meminfo(proc, "MemAvailable:")
    return held / (held + left)


def _limited(proc: Path, groups: Path) -> Iterator[_Limited]:
    try:
        total = _meminfo(proc, "MemTotal:")
        entries = [line.split(":", 2) for line in _lines(proc / "self/cgroup")]
    except (OSError, ValueError, StopIteration):
        return
    for _, controllers, path in entries:
        if not controllers:
            base, names = groups, ("memory.max", "memory.current", "inactive_file ")
        elif "memory" in controllers.split(","):
            base, names = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        else:
            continue
        # In a container the path may be the host's, while the group's own folder is the root of the visible tree.
        folder = base / path.strip("/")
        for group in dict.fromkeys((folder, *folder.parents, base)):
            if group.is_relative_to(base) and (limit := _limit(group / names[0])) is not None and limit < total:
                yield _Limited(limit, group / names[1], group / "memory.stat", names[2])


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max", or none
        return None


def _meminfo(proc: Path, name: str) -> int:
    """Return the value of a line of /proc/meminfo in bytes."""
    with (proc / "meminfo").open() as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()
