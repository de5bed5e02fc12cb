"""Provide the seam `routes`, and build with FastAPI what is not hot: the rest of the public port, the admin port.

They are imported and built on the first request for one of their paths (see `LazyApp`): FastAPI takes 0.13 s to import
and 5 MB, and many gateways answer nothing but chats and probes. The routes of `/v1/models` are here too: the surfaces,
as models that an application can request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, Final, Literal

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.caller import Caller
from gateway.errors import ApiError, NotFound
from gateway.http import health
from gateway.http.api_route import BodyRoute, CallerOf, Served, as_invalid_request
from gateway.http.build_context import models_of
from gateway.http.error_replies import ErrorReplies
from gateway.http.exchange import CHAT
from gateway.request.body import ChatBodies
from gateway.request.context import ClientGone
from gateway.request.options import known_headers
from gateway.seams import add_documents, common_replies, public_routers
from gateway.steps import Described, Steps
from policies.loader import AUTO
from policies.model import Policy

_FAILURES: Final = (ApiError, ClientGone, HTTPException, StoreUnavailable, Exception)


def cold_routes(steps: Steps) -> FastAPI:
    """Return the application of the public port's cold routes; its replies to other paths name the hot ones, too."""
    of_apis = [api.routes() for api in steps.client_apis]
    of_parts = chain.from_iterable(public_routers())
    routers = [*(router for routers, _ in of_apis for router in routers), _MODELS, *of_parts]
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


_MODELS: Final = APIRouter(tags=["The gateway"], route_class=BodyRoute)


class Model(BaseModel):
    """A surface, as OpenAI's API describes a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tierline"] = "tierline"


class Models(BaseModel):
    """The surfaces that the key may use."""

    object: Literal["list"] = "list"
    data: list[Model]


@_MODELS.get("/v1/models")
async def list_models(steps: Served, caller: CallerOf) -> Models:
    """List the surfaces that the key may use, as models to ask for."""
    return Models(data=[_model(steps, name) for name in open_surfaces(steps, caller)])


@_MODELS.get("/v1/models/{model}")
async def get_model(steps: Served, caller: CallerOf, model: str) -> Model:
    """Show one surface, by its name or an alias."""
    check_open(steps, caller, model)
    return _model(steps, model)


def open_surfaces(steps: Steps, caller: Caller) -> list[str]:
    """Return the names that the caller may ask for: `auto`, and the surfaces that are open to the key."""
    policies = steps.policies.current.by_surface
    return [AUTO, *(name for name, policy in policies.items() if _is_open(steps, caller, policy))]


def check_open(steps: Steps, caller: Caller, model: str) -> None:
    """Raise NotFound unless the caller may ask for a surface by this name or alias."""
    policy = steps.policies.current.resolve(model)
    if policy is None or not (model == AUTO or _is_open(steps, caller, policy)):
        raise NotFound(f"There is no model {model!r} here.", code="model_not_found", param="model")


def _is_open(steps: Steps, caller: Caller, policy: Policy) -> bool:
    """Return whether the caller's key may use a surface, and any of the models that may answer there."""
    rights = caller.rights
    return rights is None or rights.opens(policy, steps.policies.current, models_of(steps, policy))


def _model(steps: Steps, name: str) -> Model:
    return Model(id=name, created=steps.started_at)
