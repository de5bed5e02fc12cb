"""Keeps backends warm that would go cold without calls, where their config says `warm.keep`.

A backend that nobody in any worker has called for 0.8 times `warm.after` gets a request for one token. All workers see
the same silence, for they tell each other when they were answered (see `peers`). Lest all break it at once, each waits
a random while longer, and whoever is first is heard by the others. These requests are counted in the metrics, in a
series of their own, and in no ledger.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from typing import Final, Literal

from gateway.backends.base import BackendError, Call, TimedOut
from gateway.tiers.endpoint import Endpoint

_DUE: Final = 0.8
_SPREAD: Final = 0.1
_FIRST_SPREAD_S: Final = 2.0
_PATIENCE: Final = 3.0
_NO_SOONER_S: Final = 0.05
_CALL: Final = Call({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}, ask_logprobs=False)

Warmed = Literal["warmed", "failed"]
Clock = Callable[[], float]


class KeepWarm:
    """One worker's part in it. Started and closed by the worker's assembly, on its event loop."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        counted: Callable[[str, Warmed], None],
        clock: Clock = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`counted` is told of each such request: the backend's name and how it ended."""
        self._endpoints = [one for one in endpoints if one.config.configured and one.config.warm is not None]
        self._counted = counted
        self._clock = clock
        self._chance = chance
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """One task for each backend that is to be kept warm."""
        self._tasks = [
            asyncio.create_task(
                self._keep(endpoint, warm.after, warm.ttft), name=f"tierline.warm.{endpoint.config.name}"
            )
            for endpoint in self._endpoints
            if (warm := endpoint.config.warm) is not None and warm.keep
        ]

    async def aclose(self) -> None:
        """Ends them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _keep(self, endpoint: Endpoint, after_s: float, cold_s: float) -> None:
        # All workers begin at the same time, with a backend that may be cold.
        await asyncio.sleep(self._chance() * min(_FIRST_SPREAD_S, _SPREAD * after_s))
        while True:
            due_s = after_s * (_DUE + _SPREAD * self._chance())
            idle_s = endpoint.idle_s(self._clock())
            if idle_s is not None and idle_s < due_s:
                await asyncio.sleep(max(_NO_SOONER_S, due_s - idle_s))
            elif endpoint.in_flight or endpoint.unavailable() or not await self._warm(endpoint, cold_s):
                await asyncio.sleep(_SPREAD * after_s)

    async def _warm(self, endpoint: Endpoint, cold_s: float) -> bool:
        """Whether it answered. The call holds a place as any other does, and its time to the one token is one."""
        slot = endpoint.take()
        try:
            async with asyncio.timeout(max(endpoint.config.patience, _PATIENCE * cold_s)):
                await endpoint.backend.complete(_CALL)
            slot.began()
            slot.succeeded()
        except BackendError as error:
            slot.failed(error)
        except TimeoutError:
            slot.failed(TimedOut("no answer to a request that was to keep it warm"))
        else:
            self._counted(endpoint.config.name, "warmed")
            return True
        finally:
            slot.free()
        self._counted(endpoint.config.name, "failed")
        return False
