"""Send a one-token request to an idle backend before it grows cold, where its config says `warm.keep`.

A backend that no worker has called for 0.8 times `warm.after` gets such a request. Workers exchange the time of the
last answer (see the part `fleet`), so all see the same idle time; each waits a random time longer (up to 0.1 times
`warm.after`), so that one of them calls first and the others learn of it. These requests are counted in a metric of
their own and are in no ledger.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal

from gateway.backends.base import BackendError, BackendRequest, TimedOut

if TYPE_CHECKING:
    from gateway.tiers.endpoint import Endpoint

_DUE: Final = 0.8
_SPREAD: Final = 0.1
_FIRST_SPREAD_S: Final = 2.0
_PATIENCE: Final = 3.0
_NO_SOONER_S: Final = 0.05
_CALL: Final = BackendRequest({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}, ask_logprobs=False)

Warmed = Literal["warmed", "failed"]
Clock = Callable[[], float]


class KeepWarm:
    """Keep one worker's endpoints warm with one task each. Start and close it on the worker's event loop."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        counted: Callable[[str, Warmed], None],
        clock: Clock = time.monotonic,
        chance: Callable[[], float] = random.random,
        with_fields: Callable[[BackendRequest, Endpoint], BackendRequest] = lambda asked, _: asked,
    ) -> None:
        """Call `counted` with a backend's name and a request's outcome; `with_fields` adds what its config sets."""
        self._endpoints = [one for one in endpoints if one.config.configured and one.config.warm is not None]
        self._counted = counted
        self._clock = clock
        self._chance = chance
        self._with_fields = with_fields
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start one task for each backend that is to be kept warm."""
        self._tasks = [
            asyncio.create_task(
                self._keep(endpoint, warm.after, warm.ttft), name=f"tierline.warm.{endpoint.config.name}"
            )
            for endpoint in self._endpoints
            if (warm := endpoint.config.warm) is not None and warm.keep
        ]

    async def aclose(self) -> None:
        """Cancel the tasks and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _keep(self, endpoint: Endpoint, after_s: float, cold_s: float) -> None:
        # All workers start at the same time, when the backend may be cold: spread their first requests.
        await asyncio.sleep(self._chance() * min(_FIRST_SPREAD_S, _SPREAD * after_s))
        while True:
            due_s = after_s * (_DUE + _SPREAD * self._chance())
            idle_s = endpoint.idle_s(self._clock())
            if idle_s is not None and idle_s < due_s:
                await asyncio.sleep(max(_NO_SOONER_S, due_s - idle_s))
            elif endpoint.in_flight or endpoint.unavailable() or not await self._warm(endpoint, cold_s):
                await asyncio.sleep(_SPREAD * after_s)

    async def _warm(self, endpoint: Endpoint, cold_s: float) -> bool:
        """Send the request; return whether it was answered. It takes a slot, and its time counts as a TTFT."""
        slot = endpoint.take()
        try:
            async with asyncio.timeout(max(endpoint.config.patience, _PATIENCE * cold_s)):
                await endpoint.backend.complete(self._with_fields(_CALL, endpoint))
            slot.began()
            slot.succeeded()
        except BackendError as error:
            slot.failed(error)
        except TimeoutError:
            slot.failed(TimedOut("no answer to the keep-warm request"))
        else:
            self._counted(endpoint.config.name, "warmed")
            return True
        finally:
            slot.free()
        self._counted(endpoint.config.name, "failed")
        return False
