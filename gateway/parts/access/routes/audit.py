"""Serve the admin API of the audit trail: who changed what, and whether the trail is whole."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query

from gateway.http.api_route import BodyRoute, Served
from gateway.parts.access.audit.entries import Kind
from gateway.parts.access.audit.trail import CURSOR, AuditTrail, TrailFilter
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.keys.self_service import may_read
from gateway.parts.access.routes.role_check import needs_role

router: Final = APIRouter(prefix="/admin/audit", tags=["Audit"], route_class=BodyRoute)
_MOST: Final = 1000
_Sees = Annotated[Person, needs_role("audit.see")]


@router.get("")
async def list_entries(
    steps: Served,
    person: _Sees,
    kind: Kind | Literal[""] = "",
    by: str = "",
    subject: str = "",
    since: Annotated[float, Query(ge=0)] = 0.0,
    before: Annotated[str, Query(pattern=f"^{CURSOR}$")] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST)] = 100,
) -> dict[str, Any]:
    """List who changed what, newest first."""
    wanted = TrailFilter(kind, by, subject, since)
    page = await AuditTrail(steps.store).page(wanted, before, limit, partial(may_read, person))
    return {"object": "audit.list", **page}


@router.get("/verify")
async def verify(steps: Served, _: _Sees) -> dict[str, Any]:
    """Say whether any entry was altered or removed."""
    checks = await AuditTrail(steps.store).checked()
    whole = not any(check.problems for check in checks)
    return {"object": "audit.verify", "whole": whole, "streams": [asdict(check) for check in checks]}
