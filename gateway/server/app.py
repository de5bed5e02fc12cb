"""Route requests: chat completions directly, for speed, and all others through Starlette; errors share one envelope."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.assembly import running
from gateway.dialects.messages.client import MessagesClient
from gateway.errors import (
    ApiError,
    Forbidden,
    Headers,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    UpgradeRequired,
)
from gateway.http.messages import REQUEST_ID, RequestIdMiddleware, send_json
from gateway.http.openapi import PASSED
from gateway.http.routes import health, models, responses
from gateway.http.routes.admin import cache_routes, gatekeeper
from gateway.http.routes.chat import ChatCompletions
from gateway.http.routes.completions import TextCompletions
from gateway.http.routes.documents import Served, document_routes, served_by
from gateway.http.routes.embeddings import Embeddings
from gateway.http.routes.feedback import feedback_route
from gateway.http.routes.messages import CountTokens, Messages
from gateway.http.routes.passthrough import PATHS as PASSED_ON
from gateway.http.routes.passthrough import PassedOn, endpoint_of
from gateway.http.routes.policies import policy_routes
from gateway.request.options import known_headers
from gateway.request.reply import REPLY_HEADERS
from gateway.server.connection_limits import ConnectionLimits

if TYPE_CHECKING:
    from gateway.steps import Steps

_MESSAGES: Final = "/v1/messages"
"""The beginning of the paths whose clients are Anthropic's."""
_VERSION: Final = b"anthropic-version"
"""The header by which Anthropic's clients are known at the paths that they share with OpenAI's."""
_ROOTS: Final = frozenset(
    {"chat", "completions", "embeddings", "feedback", "messages", "models", "responses"}
    | {path.removeprefix("/v1/") for path in PASSED_ON}
)
"""First segments of the paths under `/v1`."""
CHAT: Final = frozenset({"/v1/chat/completions", "/chat/completions"})


class App:
    """The ASGI application. Paths under `/v1` are served without it, too, and with a slash at the end; there are no
    redirects.

    Requests to the admin port get the admin API only, and requests to the public port never do.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        steps.metrics.watch_gate(lambda: (steps.gate.lag_s, steps.gate.memory, steps.gate.waiting))
        self._chat = ChatCompletions(steps)
        self._posts: dict[str, Callable[[Any, Any, Any], Coroutine[Any, Any, None]]] = {
            "/v1/completions": TextCompletions(steps),
            "/v1/embeddings": Embeddings(steps),
            **dict.fromkeys(responses.PATHS, responses.ResponsesEndpoint(steps)),
            "/v1/messages": Messages(steps),
            "/v1/messages/count_tokens": CountTokens(steps),
        }
        """The other endpoints that only take POST, by path."""
        self._passed_on = PassedOn(steps)
        rest = (*models.ROUTES, *health.ROUTES, *responses.ROUTES, feedback_route())
        keyed = not steps.deployment.keyless
        posts = [("POST", path) for path in ("/v1/chat/completions", "/chat/completions", *self._posts)]
        served = [*posts, *PASSED, *served_by(rest)]
        documents = document_routes("Tierline", served, keyed=keyed)
        self._rest = _api(steps, [*rest, *documents], [*served, *served_by(documents)])
        self._others = RequestIdMiddleware(self._cold)
        pages = steps.deployment.access.cors_pattern
        self._cors = None if pages is None else _for_pages(self._route, pages)
        admin = steps.deployment.admin
        self._admin_port = admin.port if admin is not None else None
        self._admin = None
        if admin is not None:
            admitted = gatekeeper(admin)
            routes = [*cache_routes(steps, admitted), *policy_routes(steps, admitted)]
            routes += document_routes("Tierline: the admin API", served_by(routes), keyed=True)
            self._admin = RequestIdMiddleware(_api(steps, routes, served_by(routes)))

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
            return _lifespan(self._steps, scope, receive, send)
        closed: Coroutine[Any, Any, None] = send({"type": "websocket.close", "code": 1000})
        return closed

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
        if (passed := endpoint_of(path)) is not None:
            return self._passed_on(passed, scope, receive, send)
        return self._others(scope, receive, send)

    async def _cold(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            self._steps.guard.check(known_headers(scope["headers"]))
        except Forbidden as refused:
            await send_json(send, refused.status, [*refused.headers], _body_of(refused, scope))
            return
        if scope["path"] in CHAT or scope["path"] in self._posts:
            error = _no_upgrade(scope) or _method_not_allowed(scope["method"], "POST")
            await send_json(send, error.status, [*error.headers], _body_of(error, scope))
        else:
            await self._rest(scope, receive, send)


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


async def _lifespan(steps: Steps, scope: Any, receive: Any, send: Any) -> None:
    limits = steps.deployment.limits
    connections = ConnectionLimits(limits.connections, limits.silent)
    scope["state"].update(  # the server reads these
        gate=steps.gate, limits=limits, connections=connections, first_bytes=steps.metrics.first_bytes
    )
    await receive()
    async with running(steps):
        sweeping = asyncio.create_task(connections.keep_sweeping(), name="tierline.connections")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        sweeping.cancel()
    await send({"type": "lifespan.shutdown.complete"})


def _api(steps: Steps, routes: Sequence[Route], served: Served) -> Starlette:
    """Return the application of these routes; its 404 lists the paths that are `served`."""
    paths = dict.fromkeys(path for _, path in served)
    api = Starlette(routes=routes, exception_handlers=dict.fromkeys((ApiError, HTTPException, Exception), _as_envelope))
    api.router.redirect_slashes = False
    api.state.steps = steps
    api.state.paths = tuple(paths)
    return api


async def _as_envelope(request: Request, error: Exception) -> Response:
    shown = error if isinstance(error, ApiError) else _api_error(request, error)
    headers = {name.decode(): value.decode() for name, value in shown.headers}
    return Response(_body_of(shown, request.scope), shown.status, headers, media_type="application/json")


def _body_of(error: ApiError, scope: Any) -> bytes:
    """Return the body of an error, in the envelope that clients of the path know."""
    if scope["path"].startswith(_MESSAGES) or any(name == _VERSION for name, _ in scope["headers"]):
        return MessagesClient({}, scope[REQUEST_ID]).error(error)
    return error.body()


def _api_error(request: Request, error: Exception) -> ApiError:
    if not isinstance(error, HTTPException):
        return InternalError()
    if error.status_code == 404 or (error.status_code == 405 and responses.is_other_path(request.url.path)):
        return _nothing_at(request.url.path, request.app.state.paths)
    if error.status_code == 405:
        return _method_not_allowed(
            request.method, ", ".join(sorted((error.headers or {}).get("Allow", "GET").split(", ")))
        )
    return InvalidRequest(str(error.detail))


def _nothing_at(path: str, paths: Sequence[str]) -> NotFound:
    """Return the error of a path that is not served, with all that are, the nearest first."""
    near = get_close_matches(path.rstrip("/") or "/", paths, n=1, cutoff=0.75)
    hint = f" Do you mean {near[0]}?" if near else ""
    if path.rstrip("/") == "/v1":
        hint = " This is the base URL."
    return NotFound(f"There is no {path} here.{hint} What there is, described at /docs: {', '.join(paths)}.")


def _no_upgrade(scope: Any) -> ApiError | None:
    """Return the refusal of a request to speak WebSocket, as agents send it first; None for any other request."""
    if dict(scope["headers"]).get(b"upgrade", b"").lower() != b"websocket":
        return None
    headers: Headers = ((b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade"))
    return UpgradeRequired("There are no WebSockets here; send the request by POST.", headers=headers)


def _method_not_allowed(method: str, allow: str) -> ApiError:
    headers: Headers = ((b"allow", allow.encode()),)
    return MethodNotAllowed(f"{method} is not a method of this URL; use {allow}.", headers=headers)
