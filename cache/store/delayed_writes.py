"""Collect small writes that no request waits for, and send those of a few milliseconds in one round trip.

One batch is sent after the other, and in each the leases are released after its writes. So a worker that finds a lease
gone also finds what was written before its release.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from cache.store.base import Operation, Release, Store, StoreUnavailable

_DELAY_S: Final = 0.005
_MOST_WRITES: Final = 1_000


class DelayedWrites:
    """Send the delayed writes of one worker. Close it after use."""

    def __init__(self, store: Store, lost: Callable[[], None] | None = None) -> None:
        """Send writes in the background; `lost` is called when some were dropped, or refused by the store."""
        self._store = store
        self._lost = lost
        self._writes: list[Operation] = []
        self._releases: list[Release] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, operations: Sequence[Operation]) -> None:
        """Send operations soon; they are dropped when too many are waiting, or if the store fails."""
        if len(self._writes) < _MOST_WRITES:
            self._writes += operations
            self._start()
        elif self._lost is not None:
            self._lost()

    def release(self, lease: str, holder: bytes) -> None:
        """Release a lease soon, if the holder still has it: after the operations that were added before."""
        self._releases.append(Release(lease, holder))
        self._start()

    async def aclose(self) -> None:
        """Send what is waiting."""
        while self._task is not None:
            await asyncio.wait({self._task})

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="tierline.delayed_writes")

    async def _run(self) -> None:
        try:
            await asyncio.sleep(_DELAY_S)
            while self._writes or self._releases:
                await self._send()
        finally:
            self._task = None

    async def _send(self) -> None:
        writes, self._writes = self._writes, []
        releases, self._releases = self._releases, []
        if writes:
            try:
                await self._store.apply([*writes, *releases])
            except StoreUnavailable:
                if self._lost is not None:
                    self._lost()
            else:
                return
        # A store that refuses writes, such as a full one, still releases leases.
        if releases:
            with contextlib.suppress(StoreUnavailable):
                await self._store.apply(releases)
