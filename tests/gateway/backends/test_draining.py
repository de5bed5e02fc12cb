"""The end of a reply that is read in the background."""

from __future__ import annotations

import asyncio

from gateway.backends.base import drain
from tests.support.garbage import leaving_nothing


async def test_a_drain_that_is_cancelled_before_it_began_leaves_nothing_behind() -> None:
    """As at the end of a process."""
    ended = asyncio.Event()

    async def to_end() -> None:
        ended.set()

    before = asyncio.all_tasks()
    with leaving_nothing():
        drain(to_end(), None)
        (task,) = asyncio.all_tasks() - before
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task
        await asyncio.sleep(0)  # the loop lets go of it
    assert not ended.is_set()
    drain(to_end(), None)
    await asyncio.wait_for(ended.wait(), 5)
