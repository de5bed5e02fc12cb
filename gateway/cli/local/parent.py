"""End children with their parent, so that `kill -9` of the supervisor leaves no process running.

On Linux the kernel does it (PR_SET_PDEATHSIG). Elsewhere only children that check for their parent themselves end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def death_signal(number: signal.Signals) -> Callable[[], None] | None:
    """Return a `preexec_fn` that makes the kernel signal the child when its parent ends; None if not on Linux."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here, because loading is unsafe after the fork

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended between the fork and the call above
            os._exit(1)

    return set_death_signal
