"""Build the applications of what is not hot with FastAPI: the rest of the public port, and the admin port.

They are imported and built on the first request for one of their paths (see `LazyApp`): FastAPI takes 0.13 s to import
and 5 MB, and many gateways answer nothing but chats and probes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import orjson
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.errors import ApiError
from gateway.http.api_route import as_invalid_request
from gateway.http.docs import HEADERS, STYLE, docs_page
from gateway.http.error_replies import ErrorReplies
from gateway.http.openapi import ERROR, document, documents, hot_routes, probes
from gateway.http.routes import models
from gateway.request.body import ChatBodies
from gateway.request.context import ClientGone
from gateway.request.options import known_headers
from gateway.seams import public_routers
from gateway.steps import Steps

_FAILURES: Final = (ApiError, ClientGone, HTTPException, StoreUnavailable, Exception)


def public_api(steps: Steps) -> FastAPI:
    """Return the application of the public port's cold routes; its document has the hot ones, too."""
    of_apis = [api.routes() for api in steps.client_apis]
    routers = [*(router for routers, _ in of_apis for router in routers), models.router, *public_routers()]
    described = [*hot_routes(), *(route for _, routes in of_apis for route in routes), *probes()]
    keyed = not steps.deployment.keyless
    api = cold_api(
        steps,
        "Tierline",
        routers,
        described,
        lambda request: steps.authenticator.find(known_headers(request.scope["headers"])),
        keyed=keyed,
    )
    api.state.typed, api.state.sheds = steps.guard.active, True
    return api


def cold_api(
    steps: Steps,
    title: str,
    routers: Sequence[APIRouter],
    beside: Sequence[APIRoute],
    admit: Callable[[Request], Awaitable[Any]],
    *,
    keyed: bool,
) -> FastAPI:
    """Return the application of these routers, described together with the routes `beside` it."""
    api = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        strict_content_type=False,
        responses=ERROR,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    api.add_middleware(_HeadAsGet)
    for router in routers:
        api.include_router(router)
    whole = document(title, [*beside, *api.routes, *documents()], keyed=keyed)
    _add_documents(api, whole)
    replies = ErrorReplies((method.upper(), path) for path, methods in whole["paths"].items() for method in methods)
    for failure in _FAILURES:
        api.add_exception_handler(failure, replies.reply)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        return await replies.reply(request, as_invalid_request(error))

    api.add_exception_handler(RequestValidationError, invalid)
    api.state.steps, api.state.admit, api.state.bodies = steps, admit, ChatBodies(steps.deployment.limits)
    return api


def _add_documents(api: FastAPI, whole: dict[str, Any]) -> None:
    """Serve `/openapi.json`, and `/docs`, which shows it without any other host."""

    def serve(path: str, content: bytes, media_type: str) -> None:
        async def answer(_: Request) -> Response:
            return Response(content, media_type=media_type, headers=HEADERS)

        api.add_route(path, answer)

    serve("/openapi.json", orjson.dumps(whole), "application/json")
    serve("/docs", docs_page(whole), "text/html")
    serve("/docs.css", STYLE, "text/css")


class _HeadAsGet:
    """Answer HEAD as GET, as Starlette's routes do and FastAPI's do not; the server sends no body."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        await self._app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)
