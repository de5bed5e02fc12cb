"""Waiting for something to become true, with a deadline: what tests do instead of sleeping and hoping.

The deadlines that tests give are those of a machine that does nothing else, and is as fast as most are now; `SLACK`
times as long is waited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_POLL_S = 0.002
_UNIT_S = 0.0005
"""CPU seconds of `_once` where a core adds twenty million squares in a second."""


def _once() -> float:
    since = time.thread_time()
    sum(number * number for number in range(10_000))
    return time.thread_time() - since


SLOWNESS = max(2.0, min(_once() for _ in range(20)) / _UNIT_S)
"""How many times as long work in Python takes here, when nothing is in its way; never less than twice as long, because
a machine that others use too is half as fast a minute later."""
SLACK = 3.0 * SLOWNESS
"""Several pytest processes share the machine, each with servers of its own, so that a start may take seconds."""


def until(condition: Callable[[], T], timeout_s: float = 5.0, what: str = "", poll_s: float = _POLL_S) -> T:
    """The first true value of `condition()`; raises AssertionError when none came within `SLACK * timeout_s`."""
    deadline = time.monotonic() + SLACK * timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {SLACK * timeout_s:g} s: {what or condition}")
        time.sleep(poll_s)
    return value


async def eventually(holds: Callable[[], bool], timeout_s: float = 5.0, what: str = "") -> None:
    """`until`, without holding the event loop."""
    deadline = time.monotonic() + SLACK * timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {SLACK * timeout_s:g} s: {what or holds}"
        await asyncio.sleep(_POLL_S)
