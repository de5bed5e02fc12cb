"""Serve `GET /v1/models` and `/v1/models/{id}`: the surfaces, as models that an application can request."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from gateway.errors import NotFound
from gateway.request.options import known_headers
from gateway.steps import Steps
from policies.loader import AUTO

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(request: Request) -> dict[str, Any]:
    """List every surface, and `auto`. Aliases are accepted as models too, but not listed."""
    steps: Steps = request.app.state.steps
    steps.tenants.of(known_headers(request.scope["headers"]))
    names = (AUTO, *steps.policies.current.names)
    return {"object": "list", "data": [_model(steps, name) for name in names]}


@router.get("/{model}")
async def get_model(request: Request, model: str) -> dict[str, Any]:
    """Return one surface, by its name or an alias. Raises NotFound."""
    steps: Steps = request.app.state.steps
    steps.tenants.of(known_headers(request.scope["headers"]))
    if steps.policies.current.resolve(model) is None:
        raise NotFound(f"There is no model {model!r} here.", code="model_not_found", param="model")
    return _model(steps, model)


def _model(steps: Steps, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": steps.started_at, "owned_by": "tierline"}
