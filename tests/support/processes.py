"""Other processes: what the system says of them (one that ends meanwhile has ended), and how one is started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path


def children_cpu_s() -> float:
    """Return the CPU seconds of all children that have ended: unlike a clock, it does not count the wait for a core."""
    times = os.times()
    return times.children_user + times.children_system


def ignoring(numbers: Sequence[signal.Signals], command: Sequence[str]) -> list[str]:
    """The command, started with these signals ignored, as a shell does in the background and nohup with SIGHUP."""
    names = " ".join(number.name.removeprefix("SIG") for number in numbers)
    return ["sh", "-c", f"trap '' {names}; exec \"$@\"", "sh", *command] if numbers else list(command)


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
