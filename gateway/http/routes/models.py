"""Serve `GET /v1/models` and `/v1/models/{id}`: the surfaces, as models that an application can request.

A client that sends `anthropic-version` gets them in the form of Anthropic's API.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel
from starlette.responses import JSONResponse

from gateway.caller import Caller
from gateway.errors import NotFound, unsupported
from gateway.http.api_route import BodyRoute, CallerOf, Served
from gateway.http.build_context import models_of
from policies.loader import AUTO, CLAUDE
from policies.model import Policy

router: Final = APIRouter(tags=["The gateway"], route_class=BodyRoute)
_MOST_LISTED: Final = 1000
_Limit = Annotated[str | None, Query(include_in_schema=False)]
_Cursor = Annotated[str | None, Query(include_in_schema=False)]
_Version = Annotated[str | None, Header(alias="anthropic-version", include_in_schema=False)]


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


@router.get("/v1/models", response_model=Models | dict[str, Any])
async def list_models(
    steps: Served,
    caller: CallerOf,
    limit: _Limit = None,
    after_id: _Cursor = None,
    before_id: _Cursor = None,
    version: _Version = None,
) -> Models | JSONResponse:
    """List the surfaces that the key may use, as models to ask for: in pages where Anthropic's clients ask for such."""
    policies = steps.policies.current.by_surface
    names = (AUTO, *(name for name, policy in policies.items() if _is_open(steps, caller, policy)))
    if version is None:
        return Models(data=[_model(steps, name) for name in names])
    page, more = _page((*names, *(CLAUDE + name for name in names[1:])), limit, after_id, before_id)
    listed = [_anthropic_model(steps, name) for name in page]
    first, last = (page[0], page[-1]) if page else (None, None)
    # FastAPI would take an empty page for one of OpenAI's lists.
    return JSONResponse({"data": listed, "has_more": more, "first_id": first, "last_id": last})


@router.get("/v1/models/{model}")
async def get_model(steps: Served, caller: CallerOf, model: str, version: _Version = None) -> Model | dict[str, Any]:
    """Show one surface, by its name or an alias."""
    policy = steps.policies.current.resolve(model)
    if policy is None or not (model == AUTO or _is_open(steps, caller, policy)):
        raise NotFound(f"There is no model {model!r} here.", code="model_not_found", param="model")
    return _model(steps, model) if version is None else _anthropic_model(steps, model)


def _is_open(steps: Served, caller: Caller, policy: Policy) -> bool:
    """Return whether the caller's key may use a surface, and any of the models that may answer there."""
    rights = caller.rights
    return rights is None or rights.opens(policy, steps.policies.current, models_of(steps, policy))


def _page(
    names: Sequence[str], limit: str | None, after_id: str | None, before_id: str | None
) -> tuple[Sequence[str], bool]:
    """Return the names behind or before one of them, all without a limit, and whether there are more that way.

    Raises InvalidRequest.
    """
    if after_id is not None and before_id is not None:
        raise unsupported("before_id", "cannot be given together with after_id.")
    if limit is not None and not (limit.isdecimal() and 1 <= int(limit[:5]) <= _MOST_LISTED):
        raise unsupported("limit", f"must be 1 to {_MOST_LISTED}.")
    for param, name in (("after_id", after_id), ("before_id", before_id)):
        if name is not None and name not in names:
            raise unsupported(param, "is not the id of a model that is listed.")
    most = len(names) if limit is None else int(limit)
    if before_id is not None:
        rest = names[: names.index(before_id)]
        return rest[-most:], len(rest) > most
    rest = names if after_id is None else names[names.index(after_id) + 1 :]
    return rest[:most], len(rest) > most


def _model(steps: Served, name: str) -> Model:
    return Model(id=name, created=steps.started_at)


def _anthropic_model(steps: Served, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(steps.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    unknown = dict.fromkeys(("capabilities", "max_input_tokens", "max_tokens"))  # those of the tier that will answer
    shown = name.removeprefix(CLAUDE)
    return {"type": "model", "id": name, "display_name": shown, "created_at": created, **unknown}
