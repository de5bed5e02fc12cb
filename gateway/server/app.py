"""Route requests: chat completions directly, for speed, and all others through Starlette; errors share one envelope."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from gateway.assembly import running
from gateway.errors import ApiError
from gateway.http import health
from gateway.http.error_replies import ErrorReplies, body_of, method_not_allowed, no_upgrade
from gateway.http.exchange import CHAT, ChatCompletions
from gateway.http.messages import RequestIdMiddleware, send_json
from gateway.parts.standard import PARTS, is_provided
from gateway.request.context import REPLY_HEADERS
from gateway.request.options import known_headers
from gateway.seams import build_admin_port, cold_routes, note_config
from gateway.server.connection_limits import ConnectionLimits

if TYPE_CHECKING:
    from gateway.steps import Steps

_ROOTS: Final = frozenset({"chat"}.union(*(part.paths for part in PARTS)))
"""First segments of the paths under `/v1`."""


class App:
    """The ASGI application. Paths under `/v1` are served without it, too, and with a slash at the end; there are no
    redirects.

    Requests to the admin port get the admin API only, and requests to the public port never do.
    """

    def __init__(self, steps: Steps, config: Path | None = None) -> None:
        """Serve these steps; `config` is the file that they were built from, whose changes the audit trail has."""
        self._steps = steps
        self._config = config and config.resolve()
        self._chat = ChatCompletions(steps)
        served = [api.serve(steps) for api in steps.client_apis]
        self._posts = {path: endpoint for paths in served for path, endpoint in paths.posts.items()}
        """The other endpoints that only take POST, by path."""
        self._finders = tuple(paths.find for paths in served if paths.find is not None)
        protocols = [paths.socket_protocol for paths in served if paths.socket_protocol is not None]
        self._socket_protocol = next(iter(protocols), None)
        self._sockets = {path: endpoint for paths in served for path, endpoint in paths.sockets.items()}
        self._probes = health.probes()
        self._rest = _watched(steps, self._probes)
        self._others = RequestIdMiddleware(self._cold)
        pages = steps.deployment.access.cors_pattern
        self._cors = None if pages is None else _for_pages(self._route, pages)
        admin = steps.deployment.admin_place
        self._admin_port = admin.port if admin is not None else None
        self._admin = None if admin is None else RequestIdMiddleware(LazyApp(lambda: build_admin_port(steps)))

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one ASGI request, or that runs the application's lifespan."""
        if scope["type"] == "http":
            if self._admin is not None and scope["server"][1] == self._admin_port:
                return self._admin(scope, receive, send)
            if self._cors is not None and any(name == b"origin" for name, _ in scope["headers"]):
                return self._cors(scope, receive, send)
            if scope["path"] in CHAT and scope["method"] == "POST":
                return self._chat(scope, receive, send)
            if (endpoint := self._posts.get(scope["path"])) is not None and scope["method"] == "POST":
                return endpoint(scope, receive, send)
            return self._route(scope, receive, send)
        if scope["type"] == "lifespan":
            return self._lifespan(scope, receive, send)
        return self._sockets[scope["path"]](scope, receive, send)

    def _route(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers a request, by its path: in another spelling, if it is known by none."""
        path, post = scope["path"], scope["method"] == "POST"
        if (spelt := _spelt(path)) != path:
            raw = spelt.encode() if scope["raw_path"] == path.encode() else scope["raw_path"]
            path, scope = spelt, {**scope, "path": spelt, "raw_path": raw}
        if path in CHAT and post:
            return self._chat(scope, receive, send)
        if (endpoint := self._posts.get(path)) is not None and post:
            return endpoint(scope, receive, send)
        for find in self._finders:
            if (endpoint := find(path)) is not None:
                return endpoint(scope, receive, send)
        return self._others(scope, receive, send)

    async def _cold(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            self._steps.guard.check(known_headers(scope["headers"]))
            if scope["path"] in CHAT or scope["path"] in self._posts:
                raise no_upgrade(scope) or method_not_allowed(scope["method"], "POST")
        except ApiError as refused:
            await send_json(send, refused.status, [*refused.headers], body_of(refused, scope))
        else:
            await self._rest(scope, receive, send)

    async def _lifespan(self, scope: Any, receive: Any, send: Any) -> None:
        steps, limits = self._steps, self._steps.deployment.limits
        connections = ConnectionLimits(limits.connections, limits.silent)
        scope["state"].update(  # the server reads these
            gate=steps.gate,
            limits=limits,
            connections=connections,
            first_bytes=steps.metrics.first_bytes,
            sockets=frozenset(map(str.encode, self._sockets)),
            socket_protocol=self._socket_protocol,
            probes=frozenset(route.path.encode() for route in self._probes),
            admin_port=self._admin_port,
        )
        await receive()
        async with running(steps):
            connections.start()
            noting = None if self._config is None else asyncio.create_task(note_config(steps.store, self._config))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            connections.stop()
            if noting is not None:
                noting.cancel()
        await send({"type": "lifespan.shutdown.complete"})


def _spelt(path: str) -> str:
    """Return a path as it is served: a client's base URL may lack `/v1` or have it twice, and a slash may follow."""
    while path.startswith("/v1/v1/"):
        path = path[len("/v1") :]
    path = path.rstrip("/") or "/"
    first = path[1:].partition("/")[0]  # of `OPTIONS *` there is none
    return f"/v1{path}" if first in _ROOTS else path


def _for_pages(app: Any, pages: re.Pattern[str]) -> CORSMiddleware:
    """Return the application for requests of web pages: it tells the browser which of them may read the replies.

    Keys come in headers, never in cookies, so no page is allowed credentials.
    """
    return CORSMiddleware(
        app,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        allow_origin_regex=f"(?i:{pages.pattern})",
        allow_private_network=True,
        expose_headers=[name.decode() for name, header in REPLY_HEADERS.items() if header.text],
    )


def _watched(steps: Steps, probes: Sequence[Route]) -> Starlette:
    """Return the application that answers who watches the gateway, and gives all other requests to the cold routes."""
    served = [
        *(("POST", path) for path in CHAT),
        *((method, route.path) for route in probes for method in sorted(route.methods or ())),
    ]
    replies = ErrorReplies(served).reply
    api = Starlette(routes=probes, exception_handlers=dict.fromkeys((ApiError, HTTPException, Exception), replies))
    api.router.redirect_slashes = False
    if is_provided("routes"):
        api.router.default = LazyApp(lambda: cold_routes(steps))
    api.state.steps = steps
    return api


class LazyApp:
    """The ASGI application that `build` returns, on the first request: it is called once, and again only if it failed.

    It is built in a thread, so that requests under way go on meanwhile.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._building: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if self._building is None or (self._building.done() and _failed(self._building)):
            self._building = asyncio.create_task(asyncio.to_thread(self._build), name="tierline.cold_routes")
        app = await asyncio.shield(self._building)
        await app(scope, receive, send)


def _failed(building: asyncio.Task[Any]) -> bool:
    return building.cancelled() or building.exception() is not None
