"""Run the driver of leases in virtual time: hours of many workers in seconds, each exchange a millisecond long."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

from cache.store.base import Command, Store
from gateway.parts.access.quotas.authority import Authority
from gateway.parts.access.quotas.leases import QuotaLeases
from gateway.parts.access.quotas.machine import LeaseRequest
from gateway.telemetry.ledger import ACCOUNT_PREFIX

T = TypeVar("T")
_TRIP_S = 0.001
_WORDS = len(LeaseRequest._fields) + 3


class _SkippingSelector(selectors.SelectSelector):
    """Waits for nothing: what would be waited is added to `passed_s`."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.passed_s += max(timeout or 0.0, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes as soon as nothing is left to do at a moment."""

    def __init__(self) -> None:
        self.skipping = _SkippingSelector()
        super().__init__(self.skipping)

    def time(self) -> float:
        return self.skipping.passed_s


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end in virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class SharedAuthority:
    """A store that does what the script does, in this process. Of the store's operations, it has the one it needs."""

    def __init__(self) -> None:
        self.authority = Authority()
        self.exchanges = 0

    async def ask(self, commands: Sequence[Command], limit_s: float | None = None) -> list[Any]:
        """Executes one exchange, half a round trip after it is sent."""
        await asyncio.sleep(_TRIP_S / 2)
        words = commands[0].words
        count = int(words[2])
        names = [key.decode().removeprefix(ACCOUNT_PREFIX) for key in words[5 : 3 + count : 2]]
        worker, number, given = words[3 + count].decode(), int(words[4 + count]), words[6 + count :]
        requests = [
            (name, LeaseRequest(given[at].decode(), *map(int, given[at + 1 : at + _WORDS - 3])))  # type: ignore[arg-type]
            for name, at in zip(names, range(0, len(given), _WORDS), strict=True)
        ]
        now = int(asyncio.get_running_loop().time() * 1000)
        replies = self.authority.exchange(worker, number, requests, now)
        self.exchanges += 1
        await asyncio.sleep(_TRIP_S / 2)
        return [[figure for reply in replies for figure in reply]]

    def workers(self, count: int) -> list[QuotaLeases]:
        """Returns the leases of so many workers that share it."""
        clock = asyncio.get_running_loop().time
        return [QuotaLeases(cast(Store, self), clock=clock, wall_clock=clock) for _ in range(count)]
