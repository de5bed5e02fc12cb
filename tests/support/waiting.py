"""Waiting for something to become true, with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(holds: Callable[[], bool], within_s: float = 5.0, what: str = "the condition") -> None:
    """Returns as soon as `holds()`; fails the test when it does not in time."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come true within {within_s} s"
        await asyncio.sleep(0.005)
