"""The least a Python proxy can do: raw ASGI and aiohttp, the body passed on unread. The yardstick of the bench.

Run by uvicorn with uvloop and httptools; `BENCH_UPSTREAM` is the origin to pass requests to.
"""

from __future__ import annotations

import os
from typing import Any

import aiohttp

_UPSTREAM = os.environ.get("BENCH_UPSTREAM", "")
_session: aiohttp.ClientSession | None = None


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Passes one request on, and its reply back, in the pieces in which they come."""
    if scope["type"] != "http":
        await _lifespan(receive, send)
        return
    assert _session is not None
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    async with _session.request(
        scope["method"], _UPSTREAM + scope["path"], data=body, headers={"content-type": "application/json"}
    ) as reply:
        headers = [(b"content-type", reply.headers["content-type"].encode())]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        if reply.headers["content-type"] == "application/json":
            await send({"type": "http.response.body", "body": await reply.read()})
            return
        async for chunk in reply.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _lifespan(receive: Any, send: Any) -> None:
    global _session  # noqa: PLW0603  (one session a process, as long as the process)
    await receive()
    _session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await _session.close()
    await send({"type": "lifespan.shutdown.complete"})
