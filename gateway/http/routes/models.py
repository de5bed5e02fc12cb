"""Serve `GET /v1/models` and `/v1/models/{id}`: the surfaces, as models that an application can request.

A client that sends `anthropic-version` gets them in the form of Anthropic's API.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header
from pydantic import BaseModel

from gateway.errors import NotFound
from gateway.http.api_route import BodyRoute, Sender, Served
from policies.loader import AUTO

router: Final = APIRouter(tags=["The gateway"], route_class=BodyRoute)
_Version = Annotated[str | None, Header(alias="anthropic-version", include_in_schema=False)]


class Model(BaseModel):
    """A surface, as OpenAI's API describes a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tierline"] = "tierline"


class Models(BaseModel):
    """All surfaces."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("/v1/models")
async def list_models(steps: Served, _: Sender, version: _Version = None) -> Models | dict[str, Any]:
    """List the surfaces, as models to ask for."""
    names = (AUTO, *steps.policies.current.names)
    if version is not None:
        listed = [_anthropic_model(steps, name) for name in names]
        return {"data": listed, "has_more": False, "first_id": names[0], "last_id": names[-1]}
    return Models(data=[_model(steps, name) for name in names])


@router.get("/v1/models/{model}")
async def get_model(steps: Served, _: Sender, model: str, version: _Version = None) -> Model | dict[str, Any]:
    """Show one surface, by its name or an alias."""
    if steps.policies.current.resolve(model) is None:
        raise NotFound(f"There is no model {model!r} here.", code="model_not_found", param="model")
    return _model(steps, model) if version is None else _anthropic_model(steps, model)


def _model(steps: Served, name: str) -> Model:
    return Model(id=name, created=steps.started_at)


def _anthropic_model(steps: Served, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(steps.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    unknown = dict.fromkeys(("capabilities", "max_input_tokens", "max_tokens"))  # those of the tier that will answer
    return {"type": "model", "id": name, "display_name": name, "created_at": created, **unknown}
