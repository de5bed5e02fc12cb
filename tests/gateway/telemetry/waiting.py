"""Waiting on the event loop for something to become true, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(condition: Callable[[], T | Awaitable[T]], timeout_s: float = 10.0) -> T:
    """The first true value of `condition()`, which may be a coroutine function; TimeoutError when none came."""
    async with asyncio.timeout(timeout_s):
        while True:
            value = condition()
            result: T = await value if inspect.isawaitable(value) else value  # type: ignore[assignment]
            if result:
                return result
            await asyncio.sleep(0.002)
