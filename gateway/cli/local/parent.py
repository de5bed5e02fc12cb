"""Dying with the parent: what makes `kill -9` of the supervisor leave nothing running.

Linux has the kernel do it (PR_SET_PDEATHSIG). Elsewhere only the children that look for themselves are covered.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def death_signal(number: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn` that has the kernel send `number` to the child when its parent is gone; None where it cannot."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork: nothing may be loaded after it

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died between the fork and the call above
            os._exit(1)

    return set_death_signal
