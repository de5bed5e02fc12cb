"""Waiting, in the background and not for long, for the end of a reply whose answer is already complete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.backends.base import BackendError

PATIENCE_S = 0.1
_draining: set[asyncio.Task[None]] = set()


def drain(to_end: Coroutine[Any, Any, None], otherwise: Callable[[], None] | None) -> None:
    """Runs `to_end` for at most 100 ms; calls `otherwise` if the end does not come."""
    task = asyncio.create_task(_drain(to_end, otherwise))
    # The event loop holds tasks weakly; this set keeps them until they are done.
    _draining.add(task)
    task.add_done_callback(_draining.discard)


async def _drain(to_end: Coroutine[Any, Any, None], otherwise: Callable[[], None] | None) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            await to_end
    except (TimeoutError, BackendError):
        if otherwise is not None:
            otherwise()
