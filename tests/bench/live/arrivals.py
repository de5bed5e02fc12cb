"""When clients come: as they please (open loop), or always so many at a time.

Open loop: requests leave at times fixed beforehand, however many are still unanswered, so that a slow answer delays no
later request and is not left out of the figures (coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from tests.bench.live.client import Answer, Ask


def poisson(rate: float, seconds: float, seed: int, start_s: float = 0.0, most: int | None = None) -> list[float]:
    """Arrival times of a Poisson process of `rate` per second, for so many seconds or until there are `most`."""
    chance = random.Random(seed)
    times: list[float] = []
    at = chance.expovariate(rate)
    while at < seconds and len(times) != most:
        times.append(start_s + at)
        at += chance.expovariate(rate)
    return times


class Sender(Protocol):
    """Whatever can have a request answered."""

    async def send(self, ask: Ask, due_ns: int = 0) -> Answer:
        """Asks, and gives the answer when it is there."""
        ...


async def open_loop(clients: Sender, offers: Iterable[tuple[float, Ask]]) -> list[Answer]:
    """Sends each request at its time (seconds from now, ascending), and gives all answers when the last is there."""
    started = time.monotonic_ns()
    sent: list[asyncio.Task[Answer]] = []
    loop = asyncio.get_running_loop()
    for at, ask in offers:
        due = started + int(at * 1e9)
        if (wait := due - time.monotonic_ns()) > 0:
            await asyncio.sleep(wait / 1e9)
        sent.append(loop.create_task(clients.send(ask, due)))
    return list(await asyncio.gather(*sent))


async def fixed(clients: Sender, asks: Sequence[Ask], concurrent: int) -> list[Answer]:
    """Keeps so many requests under way until all are answered."""
    left = iter(asks)

    async def one() -> list[Answer]:
        return [await clients.send(ask) for ask in left]

    groups = await asyncio.gather(*(one() for _ in range(concurrent)))
    return [answer for group in groups for answer in group]
