"""Keep long work off the event loop, so that it serves requests meanwhile.

The CPU work of a large request runs in one thread. One, not several: this work holds Python's lock nearly all the time,
so more threads would make nothing faster and the loop would have to wait for each of them. Work on many items after
their replies stays on the loop, in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Result = TypeVar("Result")

_LEAST_SLICE: Final = 4
_LARGEST_SLICE: Final = 32
_PART: Final = 8
_THREAD: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tierline-large")


async def off_loop(work: Callable[[], Result]) -> Result:
    """Run `work` in the thread, after earlier work, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)


def slice_of(waiting: int) -> int:
    """Return how many of `waiting` items to work on in one turn of the event loop, at about 30 us each.

    A request that comes meanwhile waits no longer. The more items wait, the more are taken: the fuller the loop, the
    fewer turns it has in a second, and slices of one size would fall behind until the queue is full.
    """
    return max(_LEAST_SLICE, min(waiting // _PART, _LARGEST_SLICE))
