"""Serve `GET /v1/models` and `/v1/models/{id}` to clients that send `anthropic-version`, in the form of that API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter
from starlette.routing import Match
from starlette.types import Scope

from gateway.http.api_route import BodyRoute, CallerOf, Served
from gateway.parts.apis.dialects.messages.client import names_version
from gateway.parts.apis.dialects.responses.reading import unsupported
from gateway.parts.routes.part import check_open, open_surfaces
from policies.loader import CLAUDE


class _VersionedRoute(BodyRoute):
    """A route for the requests of Anthropic's clients alone."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if names_version(scope["headers"]):
            return super().matches(scope)
        return Match.NONE, {}


router: Final = APIRouter(route_class=_VersionedRoute, include_in_schema=False)
_MOST_LISTED: Final = 1000


@router.get("/v1/models")
async def list_models_in_pages(
    steps: Served,
    caller: CallerOf,
    limit: str | None = None,
    after_id: str | None = None,
    before_id: str | None = None,
) -> dict[str, Any]:
    """List the surfaces that the key may use, each by the name that Claude Code takes too."""
    names = open_surfaces(steps, caller)
    page, more = _page((*names, *(CLAUDE + name for name in names[1:])), limit, after_id, before_id)
    listed = [_model(steps, name) for name in page]
    first, last = (page[0], page[-1]) if page else (None, None)
    return {"data": listed, "has_more": more, "first_id": first, "last_id": last}


@router.get("/v1/models/{model}")
async def show_model(steps: Served, caller: CallerOf, model: str) -> dict[str, Any]:
    """Show one surface, by its name or an alias."""
    check_open(steps, caller, model)
    return _model(steps, model)


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


def _model(steps: Served, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(steps.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    unknown = dict.fromkeys(("capabilities", "max_input_tokens", "max_tokens"))  # those of the tier that will answer
    shown = name.removeprefix(CLAUDE)
    return {"type": "model", "id": name, "display_name": shown, "created_at": created, **unknown}
