"""Random requests that are passed on to a service: does each arrive as it was sent?

Random requests of all kinds (methods, paths, queries, types, bodies in pieces, with and without a length) go through a
gateway to a service that knows what must arrive, and checks it byte for byte; the client does so with the replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import aiohttp
from yarl import URL

from tests.support.seeded import SeededExchange, seeded

_AT_ONCE: Final = 16


async def run(origin: str, seeds: Sequence[int]) -> list[str]:
    """Send the exchanges of these numbers to a gateway; return what differed, in words."""
    free = asyncio.Semaphore(_AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:

        async def one(seed: int) -> str:
            async with free:
                return await _sent(session, origin, seeded(seed))

        differences = await asyncio.gather(*map(one, seeds))
    return [difference for difference in differences if difference]


async def _sent(session: aiohttp.ClientSession, origin: str, exchange: SeededExchange) -> str:
    headers = {"x-tierline-surface": "remote"}
    data: bytes | AsyncIterator[bytes] | None = None
    if exchange.parts:
        headers["Content-Type"] = exchange.content_type
        data = exchange.body if exchange.announced else _pieces(exchange)
    url = URL(origin + exchange.path, encoded=True)
    async with session.request(exchange.method, url, data=data, headers=headers) as reply:
        got = await reply.read()
    what = f"{exchange.seed}: {exchange.method} {exchange.path}"
    if reply.status != 200:
        return f"{what}: status {reply.status}, {got[:300]!r}"
    if reply.headers["Content-Type"] != exchange.reply_type:
        return f"{what}: type {reply.headers['Content-Type']}, not {exchange.reply_type}"
    return "" if got == exchange.reply else f"{what}: another reply, {len(got)} bytes, not {len(exchange.reply)}"


async def _pieces(exchange: SeededExchange) -> AsyncIterator[bytes]:
    for part in exchange.parts:
        yield part
        await asyncio.sleep(0)
