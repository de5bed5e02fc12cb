"""Everything that the console answers about recorded requests: each route that the app has, filled with their ids.

The routes are the app's own list, so a page that is added is asked for by itself. A parameter that is not known here is
filled with the ids of requests and the names of surfaces. A page that answers to none of them is an error; what is not
about recorded requests is left out by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.routing import Route

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.config.launch import Launch
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.page import PolicyPlaces
from gateway.parts.ledger.live import LiveArchive
from gateway.telemetry.ledger import TRACES
from tests.support.wait import SLACK

_STREAM_S: Final = 10.0 * SLACK
_APART: Final = ("/static/", "/keys/", "/teams/")
"""Files that are shipped, keys and teams: what these say is what somebody just typed."""
_QUERIES: Final = {
    "/requests": ("?since=all", "?since=all&peek={request_id}", "?q={request_id}"),
    "/requests/live": ("?since=all&after=0-0",),
}
"""What else is asked of a page that shows more with a query."""


async def asked(app: Starlette, path: str, method: str = "GET", enough: bytes = b"") -> tuple[int, bytes]:
    """Ask the app; return the status and the body, of a stream of updates up to `enough`."""
    status, body, done = 0, bytearray(), asyncio.Event()
    plain, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": plain, "raw_path": plain.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            body.extend(message.get("body", b""))
            if not message.get("more_body") or (enough and enough in body):
                done.set()

    task = asyncio.create_task(app(scope, receive, send))
    try:
        async with asyncio.timeout(_STREAM_S):
            await asyncio.wait({task, asyncio.create_task(done.wait())}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return status, bytes(body)


async def replies(folder: Path, config: Path, store_url: str, most: int) -> AsyncIterator[tuple[str, int, bytes]]:
    """Yield the path, status and body of every reply of a console on this store, with the ids of `most` requests."""
    store = RedisStore.from_url(store_url, slack=10.0)
    archive = LiveArchive(folder / "ledger", store)
    try:
        await archive.catch_up()
        archive.start()
        launch = Launch(config=config, policies=folder / "policies")
        deployment = launch.deployment()
        places = PolicyPlaces(deployment, launch.policy_source(deployment), folder / "ledger", config, store_url)
        app = ConsoleApp(archive, store, places, ConsoleAccess({})).asgi()
        values = await _values(archive, most)
        for route in [one for one in app.routes if isinstance(one, Route) and not one.path.startswith(_APART)]:
            methods = [method for method in ("GET", "POST") if method in (route.methods or ())]
            statuses = set()
            for path in _filled(route, values):
                for method in methods:
                    status, body = await _reply(app, store, path, method)
                    statuses.add(status)
                    yield f"{method} {path}", status, body
            if not statuses & {200, 303, 307, 400, 403, 422}:
                raise AssertionError(f"{route.path} answers to none of the values that are known: {statuses}")
    finally:
        await archive.aclose()
        await store.aclose()


async def _reply(app: Starlette, store: RedisStore, path: str, method: str) -> tuple[int, bytes]:
    """Ask for a page. For a stream of updates, record the newest request again, so that one comes."""
    if not path.partition("?")[0].endswith("/live"):
        return await asked(app, path, method)
    task = asyncio.create_task(asked(app, path, method, b"data: "))
    await asyncio.sleep(0)
    [(_, newest)] = await store.latest(TRACES, 1)
    while not task.done():
        await store.apply([Append(TRACES, newest, 1_000_000)])
        await asyncio.wait({task}, timeout=0.5)
    return await task


async def _values(archive: LiveArchive, most: int) -> Mapping[str, Sequence[str]]:
    rows = await archive.newest("request_id, surface, conversation, policy", "true", {}, most)
    found = {name: sorted({row[name] for row in rows if row[name]}) for name in ("surface", "conversation", "policy")}
    ids = [row["request_id"] for row in rows]
    return {"request_id": ids, "surface": found["surface"], "conversation": found["conversation"]}


def _filled(route: Route, values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the paths of a route with its parameters filled, and with the queries that show more."""
    any_of = [*values["surface"], *values["conversation"][:20], *values["request_id"][:20]]
    paths = [route.path.replace(":path}", "}")]
    for name in route.param_convertors:
        fill = values.get(name, any_of) or any_of
        paths = [path.replace(f"{{{name}}}", quote(value, safe="")) for path in paths for value in fill]
    more = [
        f"{route.path}{query.format(request_id=one)}"
        for query in _QUERIES.get(route.path.removesuffix(".json"), ())
        for one in (values["request_id"][:50] if "{" in query else [""])
    ]
    return [*paths, *more]
