"""Serve `GET /v1/models` and `/v1/models/{id}`: the surfaces, as models that an application can request."""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from gateway.caller import Caller
from gateway.errors import NotFound
from gateway.http.api_route import BodyRoute, CallerOf, Served
from gateway.http.build_context import models_of
from gateway.steps import Steps
from policies.loader import AUTO
from policies.model import Policy

router: Final = APIRouter(tags=["The gateway"], route_class=BodyRoute)


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


@router.get("/v1/models")
async def list_models(steps: Served, caller: CallerOf) -> Models:
    """List the surfaces that the key may use, as models to ask for."""
    return Models(data=[_model(steps, name) for name in open_surfaces(steps, caller)])


@router.get("/v1/models/{model}")
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
