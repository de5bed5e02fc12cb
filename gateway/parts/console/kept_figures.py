"""Keep figures that take long to make: shown again for a while, and made anew beside the pages that show them.

A page over many requests must not wait for them: it gets what was made before, or None at its first time, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from starlette.requests import Request

log = logging.getLogger("tierline.console")

T = TypeVar("T")
_PATIENCE_S: Final = 0.05
_MOST: Final = 16


def patience_for(request: Request) -> float | None:
    """Return how many seconds a page waits for figures that nobody has asked for before.

    None, as long as it takes, for a page's data, and where a page that is shown asks for its own rest.
    """
    waits = request.url.path.endswith(".json") or "hx-request" in request.headers
    return None if waits else _PATIENCE_S


@dataclass(frozen=True, slots=True)
class Made(Generic[T]):
    """A value with the Unix time, in seconds, at which it was computed, and how long that took in milliseconds."""

    value: T
    at: float
    took_ms: float


class KeptFigures(Generic[T]):
    """Make figures by a key, such as a time span: one at a time, and none while nobody asks.

    Figures that are `fresh_s` seconds old are shown once more while new ones are made, up to `stale_s`.
    """

    def __init__(self, make: Callable[[str], Awaitable[T]], *, fresh_s: float, stale_s: float = 60.0) -> None:
        self._make = make
        self._fresh_s = fresh_s
        self._stale_s = stale_s
        self._made: dict[str, Made[T]] = {}
        self._making: dict[str, asyncio.Task[Made[T]]] = {}

    async def get(self, key: str, patience_s: float | None = _PATIENCE_S) -> Made[T] | None:
        """Return the figures; None if they are not made within `patience_s` (None: as long as it takes).

        Raises what making them raises.
        """
        made = self._made.get(key)
        age = float("inf") if made is None else time.time() - made.at
        if made is not None and 0 <= age < self._fresh_s:
            return made
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(self._new(key), name=f"console.figures.{key}")
            task.add_done_callback(lambda done: self._over(key, done))
        if made is not None and age < self._stale_s and patience_s is not None:
            return made
        done, _ = await asyncio.wait({task}, timeout=patience_s)
        return task.result() if done else None

    async def _new(self, key: str) -> Made[T]:
        began = time.perf_counter()
        value = await self._make(key)
        made = self._made[key] = Made(value, time.time(), (time.perf_counter() - began) * 1000)
        while len(self._made) > _MOST:
            del self._made[next(iter(self._made))]
        return made

    def _over(self, key: str, task: asyncio.Task[Made[T]]) -> None:
        self._making.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("figures of %s could not be made: %s", key, error)
