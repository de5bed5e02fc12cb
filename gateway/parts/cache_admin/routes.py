"""Serve the admin API: inspect and purge the cache. Off unless the config has `admin`; on a port of its own.

Once a purge is answered, no worker serves what it names to a request that arrives later; purging a surface takes a
second.

Requests need the admin key or a role.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from pydantic import model_validator

from cache.scopes.tags import BadTags, parse
from gateway.errors import InvalidRequest, NotFound
from gateway.http.api_route import Body, BodyRoute, Served
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.routes.role_check import needs_role
from gateway.parts.cache_admin.administration import Administration, Purged
from gateway.parts.cache_admin.cache_view import entry_shown, lookups_of, scope_shown
from gateway.seams import shown_published
from gateway.steps import Steps

_ENTRY_ID: Final = re.compile(r"[0-9a-f]{12,32}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")

router: Final = APIRouter(prefix="/admin/cache", tags=["Cache"], route_class=BodyRoute)


async def _id(entry_id: str) -> str:
    if not _ENTRY_ID.fullmatch(entry_id):
        raise InvalidRequest(
            "An entry's id is 12 to 32 hex digits, as in replies and traces.", code="unsupported_value", param="entry"
        )
    return entry_id


_Sees = Annotated[Person, needs_role("cache.see")]
_Purges = Annotated[Person, needs_role("cache.purge")]
_EntryId = Annotated[str, Depends(_id)]


class PurgeRequest(Body):
    """What to purge: a surface, a tag, also of one surface, both of a tenant or a team alone; or an entry."""

    surface: str | None = None
    tag: str | None = None
    entry: str | None = None
    tenant: str | None = None
    team: str | None = None

    @model_validator(mode="after")
    def _one_thing(self) -> PurgeRequest:
        what = self.model_fields_set & {"surface", "tag", "entry"}
        if what not in ({"surface"}, {"tag"}, {"tag", "surface"}, {"entry"}) or (
            "entry" in what and len(self.model_fields_set) > 1
        ):
            message = "Name a surface, a tag or an entry."
            raise InvalidRequest(message, code="missing_required_parameter", param="surface")
        if self.tenant is not None and self.team is not None:
            raise InvalidRequest("Name a tenant or a team, not both.", code="unsupported_value", param="team")
        for name in ("surface", "tenant", "team"):
            value = getattr(self, name)
            if value is not None and not _NAME.fullmatch(value):
                raise InvalidRequest(f"{value!r} is not a valid {name} name.", code="unsupported_value", param=name)
        if self.tag is not None:
            _check_tag(self.tag)
        return self


@router.get("/stats")
async def stats(steps: Served, _: _Sees) -> dict[str, Any]:
    """What each scope of the cache holds, and how many hits were wrong."""
    scopes = [scope_shown(scope) for scope in await Administration(steps.store).stats()]
    risks = await shown_published(steps.store)
    lookups = lookups_of(steps.metrics.render().decode())
    return {"object": "cache.stats", "scopes": scopes, "risks": risks, "lookups": lookups}


@router.get("/entries/{entry_id}")
async def show(steps: Served, person: _Purges, entry_id: _EntryId) -> dict[str, Any]:
    """Show a stored answer."""
    person.permit("cache.purge")
    entry = await Administration(steps.store).find(entry_id)
    if entry is None:
        raise _no_entry(entry_id)
    return {"object": "cache.entry", **entry_shown(entry)}


@router.delete("/entries/{entry_id}")
async def remove(steps: Served, person: _Purges, entry_id: _EntryId) -> dict[str, Any]:
    """Delete a stored answer and its copies."""
    person.permit("cache.purge")
    return await _removed(steps, entry_id)


@router.post("/purge")
async def purge(steps: Served, person: _Purges, body: PurgeRequest) -> dict[str, Any]:
    """Purge a surface, a tag or an entry."""
    person.permit("cache.purge", body.surface or "")
    if body.entry is not None:
        return await _removed(steps, await _id(body.entry))
    kind = next((kind for kind in ("tenant", "team") if getattr(body, kind) is not None), None)
    owner = f"{kind}:{getattr(body, kind)}" if kind is not None else None
    administration = Administration(steps.store)
    if body.tag is not None:
        purged: Purged = await administration.purge_tag(body.tag, body.surface, owner)
    else:
        assert body.surface is not None  # noqa: S101  (checked with the body)
        purged = await administration.purge_surface(body.surface, owner)
    what = body.model_dump(exclude_unset=True)
    return {"object": "cache.purge", **what, "scopes": purged.scopes, "entries": purged.entries, "bytes": purged.bytes}


async def _removed(steps: Steps, entry_id: str) -> dict[str, Any]:
    entry = await Administration(steps.store).remove(entry_id)
    if entry is None:
        raise _no_entry(entry_id)
    return {"object": "cache.purge", "entry": entry.id, "scopes": 1, "entries": 1 + len(entry.copies)}


def _check_tag(tag: str) -> None:
    try:
        named = parse(tag.encode("latin-1", "replace"))
    except BadTags:
        named = ()
    if named != (tag,):
        raise InvalidRequest("A tag is 1 to 64 letters, digits or ._:/@+#=-", code="unsupported_value", param="tag")


def _no_entry(entry_id: str) -> NotFound:
    return NotFound(f"There is no entry {entry_id!r}; it may have expired.", code="entry_not_found", param="entry")
