"""Build the applications of what is not hot with FastAPI: the rest of the public port, and the admin port.

They are imported and built on the first request for one of their paths (see `LazyApp`): FastAPI takes 0.13 s to import
and 5 MB, and many gateways answer nothing but chats and probes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.errors import ApiError
from gateway.http import health, models
from gateway.http.api_route import as_invalid_request
from gateway.http.error_replies import ErrorReplies
from gateway.http.exchange import CHAT
from gateway.request.body import ChatBodies
from gateway.request.context import ClientGone
from gateway.request.options import known_headers
from gateway.seams import Described, add_documents, common_replies, public_routers
from gateway.steps import Steps

_FAILURES: Final = (ApiError, ClientGone, HTTPException, StoreUnavailable, Exception)


def public_api(steps: Steps) -> FastAPI:
    """Return the application of the public port's cold routes; its replies to other paths name the hot ones, too."""
    of_apis = [api.routes() for api in steps.client_apis]
    of_parts = chain.from_iterable(public_routers())
    routers = [*(router for routers, _ in of_apis for router in routers), models.router, *of_parts]
    probes = [Described("GET", route.path) for route in health.probes()]
    chat = [Described("POST", path) for path in sorted(CHAT, reverse=True)]
    beside = [*chat, *(route for _, routes in of_apis for route in routes), *probes]
    keyed = not steps.deployment.keyless
    api = cold_api(
        steps,
        "Tierline",
        routers,
        beside,
        lambda request: steps.authenticator.find(known_headers(request.scope["headers"])),
        keyed=keyed,
    )
    api.state.typed, api.state.sheds = steps.guard.active, True
    return api


def cold_api(
    steps: Steps,
    title: str,
    routers: Sequence[APIRouter],
    beside: Sequence[Described],
    admit: Callable[[Request], Awaitable[Any]],
    *,
    keyed: bool,
) -> FastAPI:
    """Return the application of these routers, which knows of the routes that are served `beside` it."""
    api = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        strict_content_type=False,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    api.add_middleware(_HeadAsGet)
    api.router.responses.update(common_replies())
    for router in routers:
        api.include_router(router)
    add_documents(api, title, beside, keyed=keyed)
    routes = [(str(route.path), route.methods or ()) for route in iter_route_contexts(api.routes)]
    served = [(method, path) for path, methods in routes for method in methods]
    replies = ErrorReplies([*((route.method, route.path) for route in beside), *served])
    for failure in _FAILURES:
        api.add_exception_handler(failure, replies.reply)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        return await replies.reply(request, as_invalid_request(error))

    api.add_exception_handler(RequestValidationError, invalid)
    api.state.steps, api.state.admit, api.state.bodies = steps, admit, ChatBodies(steps.deployment.limits)
    return api


class _HeadAsGet:
    """Answer HEAD as GET, as Starlette's routes do and FastAPI's do not; the server sends no body."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        await self._app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)
