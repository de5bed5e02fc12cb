"""Run the CPU work of large requests in one thread, so that the event loop serves other requests meanwhile.

One, not several: this work holds Python's lock nearly all the time, so more threads would make nothing faster and the
loop would have to wait for each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Result = TypeVar("Result")

_THREAD: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tierline-large")


async def off_loop(work: Callable[[], Result]) -> Result:
    """Run `work` in the thread, after earlier work, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)
