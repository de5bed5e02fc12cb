"""Serve `GET /v1/models` and `/v1/models/{id}`: the surfaces, as models that an application can request.

A client that sends `anthropic-version` gets them in the form of Anthropic's API.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.errors import NotFound
from gateway.request.options import known_headers
from policies.loader import AUTO

if TYPE_CHECKING:
    from gateway.steps import Steps

_VERSION: Final = "anthropic-version"


async def list_models(request: Request) -> JSONResponse:
    """List every surface, and `auto`. Aliases are accepted as models too, but not listed."""
    steps: Steps = request.app.state.steps
    steps.tenants.of(known_headers(request.scope["headers"]))
    names = (AUTO, *steps.policies.current.names)
    if _VERSION in request.headers:
        listed = [_anthropic_model(steps, name) for name in names]
        return JSONResponse({"data": listed, "has_more": False, "first_id": names[0], "last_id": names[-1]})
    return JSONResponse({"object": "list", "data": [_model(steps, name) for name in names]})


async def get_model(request: Request) -> JSONResponse:
    """Return one surface, by its name or an alias. Raises NotFound."""
    steps: Steps = request.app.state.steps
    model: str = request.path_params["model"]
    steps.tenants.of(known_headers(request.scope["headers"]))
    if steps.policies.current.resolve(model) is None:
        raise NotFound(f"There is no model {model!r} here.", code="model_not_found", param="model")
    return JSONResponse((_anthropic_model if _VERSION in request.headers else _model)(steps, model))


def _model(steps: Steps, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": steps.started_at, "owned_by": "tierline"}


def _anthropic_model(steps: Steps, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(steps.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    unknown = dict.fromkeys(("capabilities", "max_input_tokens", "max_tokens"))  # those of the tier that will answer
    return {"type": "model", "id": name, "display_name": name, "created_at": created, **unknown}


ROUTES: Final = (Route("/v1/models", list_models), Route("/v1/models/{model}", get_model))
