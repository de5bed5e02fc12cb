"""Serve the admin API of keys, teams and tenants: what `tierline keys` and `tierline teams` do, by the caller's role.

A new key stands in the answer to its creation or rotation, once. Who made a change is the person who asks; whoever has
the admin key may name an `author`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import Field, StringConstraints

from gateway.config.addresses import open_store
from gateway.config.schema import DEFAULT_TENANT
from gateway.errors import Conflict, Forbidden, InvalidRequest, NotFound
from gateway.http.api_route import Body, BodyRoute, Served
from gateway.parts.access.keys.key_caller import team_of
from gateway.parts.access.keys.made_keys import change_key, check_owner, make_key, rotate_key
from gateway.parts.access.keys.moving import export_lines, read_export
from gateway.parts.access.keys.records import LATEST, STATE_AFTER, KeyRecord, OwnerRecord, public
from gateway.parts.access.keys.registry import KeyRegistry, KeysConflict, KeysRefused, Why
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.keys.self_service import NotAllowed, may_with, may_with_owner
from gateway.parts.access.quotas.terms import Terms
from gateway.parts.access.routes.role_check import needs_role
from gateway.steps import Steps
from policies.quantities import read_duration

router: Final = APIRouter(prefix="/admin/keys", tags=["Keys"], route_class=BodyRoute)
teams: Final = APIRouter(prefix="/admin/teams", tags=["Teams"], route_class=BodyRoute)
Shown = dict[str, Any]
Name = Annotated[str, StringConstraints(max_length=200)]
_Names = Annotated[list[Name], Field(max_length=64)]
_Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
"""As OpenAI's API has it: workers hold it in memory with each key."""
Kind = Literal["team", "tenant"]
_SLACK: Final = 10.0
_Sees = Annotated[Person, needs_role("keys.see")]
_Makes = Annotated[Person, needs_role("keys.create")]
_Rotates = Annotated[Person, needs_role("keys.rotate")]
_Changes = Annotated[Person, needs_role("keys.change")]
_Moves = Annotated[Person, needs_role("keys.move")]
_SeesTeam = Annotated[Person, needs_role("teams.see")]
_ChangesTeam = Annotated[Person, needs_role("teams.change")]


class Said(Body):
    """Why a change is made, and by whom; of one that has changed since `revision`, none is made."""

    most_bytes: ClassVar[int | None] = 65536
    message: Name = ""
    author: Name = ""
    revision: int | None = None


class KeyFields(Said):
    """What a key is to be. `expires` is in Unix seconds, null for never; what is left out stays or is the default."""

    nulls: ClassVar[bool] = True
    name: Name | None = None
    team: Name | None = None
    tenant: Name | None = None
    owner: Name | None = None
    surfaces: _Names | None = None
    tiers: _Names | None = None
    models: _Names | None = None
    default_surface: Name | None = None
    terms: Terms | None = None
    per_user: Terms | None = None
    per_session: Terms | None = None
    may_try: bool | None = None
    expires: float | None = Field(None, ge=0, allow_inf_nan=False)
    metadata: _Metadata | None = None


class RotateRequest(Said):
    """A rotation; `grace`: how long the old key is valid too."""

    grace: str = "24h"


class TeamFields(Said):
    """The terms of a team or a tenant; what is left out stays, or is as by default."""

    nulls: ClassVar[bool] = True
    terms: Terms | None = None
    per_user: Terms | None = None
    per_session: Terms | None = None
    surfaces: _Names | None = None
    tiers: _Names | None = None
    longest_life_s: float | None = Field(None, gt=0, le=100 * 365 * 86400, allow_inf_nan=False)
    metadata: _Metadata | None = None


class ImportRequest(Said):
    """The text of an export."""

    most_bytes = None
    text: str


@router.get("")
async def list_keys(
    steps: Served,
    person: _Sees,
    team: str = "",
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Shown:
    """List keys, the newest first: those of one team, or all that the caller may see."""
    if team:
        person.permit("keys.see", team)
    wanted = None if person.is_admin else lambda key: may_with(person, "keys.see", key)
    with _told():
        page = await KeyRegistry(steps.store).page(after, limit, team=team, wanted=wanted)
    return {"object": "key.list", "keys": [_key(key) for key in page.keys], "older": page.older}


@router.post("")
async def create(steps: Served, person: _Makes, body: KeyFields) -> Shown:
    """Create a key."""
    wanted = replace(KeyRecord("", "", person.tenant or DEFAULT_TENANT), **_given(body))
    with _told():
        async with _own_registry(steps) as registry:
            record, key = await make_key(registry, person, wanted, _why(person, body))
            return {**_key(record), "key": key, "on_disk": registry.on_disk}


@router.get("/export")
async def export(steps: Served, _: _Moves) -> Shown:
    """Export all records, as digests."""
    return {"object": "key.export", "text": b"".join(await export_lines(KeyRegistry(steps.store))).decode()}


@router.post("/import")
async def take_over(steps: Served, person: _Moves, body: ImportRequest) -> Shown:
    """Import what the store does not have of an export."""
    with _told():
        records = read_export(body.text)
        new = await KeyRegistry(steps.store).restore(records, _why(person, body, "import"))
    return {"object": "key.import", "imported": new, "there_already": len(records) - new}


@router.get("/{key}")
async def show(steps: Served, person: _Sees, key: str) -> Shown:
    """Show a key."""
    return _key(await _found(steps, person, key, "keys.see"))


@router.patch("/{key}")
async def update(steps: Served, person: _Changes, key: str, body: KeyFields) -> Shown:
    """Change a key."""
    return await _changed(steps, person, key, body, **_given(body))


@router.post("/{key}/rotate")
async def rotate(steps: Served, person: _Rotates, key: str, body: RotateRequest) -> Shown:
    """Give a key a new secret."""
    before = await _found(steps, person, key, "keys.rotate", body)
    try:
        grace_s = read_duration(body.grace)
    except ValueError as error:
        raise InvalidRequest(str(error), code="unsupported_value", param="grace") from None
    with _told():
        async with _own_registry(steps) as registry:
            record, text = await rotate_key(registry, person, before, grace_s, _why(person, body))
            return {
                **_key(record),
                "key": text,
                "on_disk": registry.on_disk,
                "old_until": min(time.time() + grace_s, before.expires or LATEST),
            }


@router.post("/{key}/{action}")
async def set_state(
    steps: Served, person: _Changes, key: str, action: Literal["disable", "enable", "revoke"], body: Said
) -> Shown:
    """Disable, enable or revoke a key."""
    return await _changed(steps, person, key, body, action, state=STATE_AFTER[action])


@teams.get("")
async def list_teams(steps: Served, person: _SeesTeam) -> Shown:
    """List the teams and tenants that have terms in the store."""
    owners = await KeyRegistry(steps.store).owners()
    seen = [owner for owner in owners if may_with_owner(person, "teams.see", owner)]
    return {"object": "team.list", "teams": [_owner(owner) for owner in seen]}


async def _named(team: str, kind: Kind = "team", tenant: str = "") -> OwnerRecord:
    """Return an owner by its name: the team of a tenant, where one is given."""
    return OwnerRecord(kind, team_of(tenant or DEFAULT_TENANT, team) if kind == "team" else team)


_Named = Annotated[OwnerRecord, Depends(_named)]


@teams.get("/{team}")
async def show_team(steps: Served, person: _SeesTeam, named: _Named) -> Shown:
    """Show a team, of a `tenant` where one is given, or a tenant."""
    if not may_with_owner(person, "teams.see", named):
        raise Forbidden(f"You may not see {named.kind} {named.name}.", code="not_permitted")
    return _owner(await _there(KeyRegistry(steps.store), named))


@teams.put("/{team}")
async def put_team(steps: Served, person: _ChangesTeam, named: _Named, body: TeamFields) -> Shown:
    """Make or change the terms of a team, of a `tenant` where one is given, or of a tenant."""
    registry = KeyRegistry(steps.store)
    with _told():
        check_owner(named.kind, named.name)
        before = await registry.owner(named.kind, named.name)
        _check_revision(body, before)
        wanted = replace(before or named, **_given(body))
        return _owner(await registry.put_owner(before, wanted, _why(person, body)))


@teams.delete("/{team}")
async def remove_team(steps: Served, person: _ChangesTeam, named: _Named, message: str = "") -> Shown:
    """Remove the terms of a team, of a `tenant` where one is given, or of a tenant; its keys stay."""
    registry = KeyRegistry(steps.store)
    record = await _there(registry, named)
    with _told():
        await registry.remove_owner(record, Why(person.author(), message, "admin"))
    return {**_owner(record), "removed": True}


async def _changed(steps: Steps, person: Person, key: str, body: Said, action: str = "", **fields: Any) -> Shown:
    before = await _found(steps, person, key, "keys.change", body)
    with _told():
        after = replace(before, **fields)
        return _key(await change_key(KeyRegistry(steps.store), person, before, after, _why(person, body, action)))


async def _found(steps: Steps, person: Person, key: str, action: str, body: Said | None = None) -> KeyRecord:
    """Return a key that the person may do this with. Raises NotFound, Forbidden and Conflict."""
    try:
        record = await KeyRegistry(steps.store).find(key)
    except KeysRefused as refused:
        raise NotFound(f"{refused}.", code="key_not_found", param="key") from None
    if not may_with(person, "keys.see", record):
        raise NotFound(f"There is no key {key!r} that you may see.", code="key_not_found", param="key")
    person.permit(action, record.team)
    _check_revision(body, record)
    return record


async def _there(registry: KeyRegistry, named: OwnerRecord) -> OwnerRecord:
    record = await registry.owner(named.kind, named.name)
    if record is None:
        raise NotFound(f"The store has no terms of {named.kind} {named.name!r}.", code="team_not_found", param="team")
    return record


def _check_revision(body: Said | None, record: KeyRecord | OwnerRecord | None) -> None:
    now = 0 if record is None else record.revision
    if body is not None and body.revision not in (None, now):
        raise Conflict(f"It was changed meanwhile: its revision is {now}.", code="key_conflict", param="revision")


def _given(body: KeyFields | TeamFields) -> dict[str, Any]:
    """Return the fields of a record that a body sets; null takes away what is set."""
    given: dict[str, Any] = {}
    blank = replace(KeyRecord("", "", DEFAULT_TENANT)) if isinstance(body, KeyFields) else OwnerRecord("team", "")
    for name in body.model_fields_set - Said.model_fields.keys():
        value = getattr(body, name)
        given[name] = getattr(blank, name) if value is None else tuple(value) if isinstance(value, list) else value
    return given


def _why(person: Person, body: Said, action: str = "") -> Why:
    return Why(person.author(body.author), body.message, "admin", action)


def _key(record: KeyRecord) -> Shown:
    return {"object": "key", **public(record)}


def _owner(record: OwnerRecord) -> Shown:
    return {"object": "team", **public(record)}


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Raise what the registry and the roles refuse as an error of the API."""
    try:
        yield
    except KeysConflict as conflict:
        raise Conflict(f"{conflict}.", code="key_conflict") from None
    except KeysRefused as refused:
        raise InvalidRequest(f"{refused}.", code="unsupported_value") from None
    except NotAllowed as refused:
        raise Forbidden(str(refused), code="not_permitted") from None


@contextlib.asynccontextmanager
async def _own_registry(steps: Steps) -> AsyncIterator[KeyRegistry]:
    """Yield the registry over a connection of its own, which may wait until a new key is on the store's disk."""
    url = steps.deployment.store.url
    if url is None:
        raise Conflict("Keys stand in the store, and there is none; name one in the config.", code="no_store")
    store = open_store(url, slack=_SLACK)
    try:
        yield KeyRegistry(store, durable=True)
    finally:
        await store.aclose()
