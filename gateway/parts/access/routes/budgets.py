"""Serve the admin API of budgets: how they stand, and an operator's resets and top-ups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter
from pydantic import Field

from gateway.errors import InvalidRequest
from gateway.http.api_route import Body, BodyRoute, Served
from gateway.parts.access.keys.budgets import BudgetStanding, Owned, OwnerBudgets, owner_named, terms_in
from gateway.parts.access.keys.key_caller import team_of
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused, Why
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.keys.self_service import may_with
from gateway.parts.access.quotas.terms import Per
from gateway.parts.access.routes.role_check import needs_role

router: Final = APIRouter(prefix="/admin/budgets", tags=["Budgets"], route_class=BodyRoute)
_Sees = Annotated[Person, needs_role("usage.see")]
_Changes = Annotated[Person, needs_role("teams.change")]


class AdjustRequest(Body):
    """What is to count as spent, or to be added: of all of an owner's budgets, or of the one `per` a window."""

    owner: str
    usd: float = Field(0.0, ge=0, lt=1e9, allow_inf_nan=False)
    per: Per | None = None
    message: str = Field(pattern=r"\S")
    author: str = ""


@router.get("")
async def list_budgets(steps: Served, person: _Sees, owner: str = "") -> dict[str, Any]:
    """List the budgets in use, the most spent first, or those of one owner."""
    budgets = OwnerBudgets(steps.store, terms_in(steps.deployment))
    if not owner:
        person.permit("usage.see")
        return _shown(await budgets.in_use())
    with _refusals():
        named = await _permitted(steps, person, owner_named(owner))
        return _shown(await budgets.of(named))


@router.post("/{action}")
async def adjust(
    steps: Served, person: _Changes, action: Literal["reset", "topup"], body: AdjustRequest
) -> dict[str, Any]:
    """Have an amount count as spent (reset), or take one off what does (topup)."""
    budgets = OwnerBudgets(steps.store, terms_in(steps.deployment))
    with _refusals():
        change = budgets.reset if action == "reset" else budgets.top_up
        why = Why(person.author(body.author), body.message, "admin")
        return _shown(await change(owner_named(body.owner), body.usd, body.per, why))


async def _permitted(steps: Served, person: Person, owner: Owned) -> Owned:
    """Return the owner whose budgets a person may see: of a team that is called without a tenant their own tenant's.

    Raises Forbidden.
    """
    kind, name = owner
    if kind == "key":
        key = await KeyRegistry(steps.store).find(name)
        person.permit("usage.see", key.team if may_with(person, "usage.see", key) else "")
        return owner
    tenant, _, team = name.rpartition("/")
    if kind != "team" or person.may("usage.see"):
        person.permit("usage.see")
        return owner
    person.permit("usage.see", team if tenant in ("", person.tenant) else "")
    return kind, team_of(person.tenant, team)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (KeysRefused, ValueError) as refused:
        raise InvalidRequest(str(refused), code="unsupported_value", param="owner") from None


def _shown(budgets: Sequence[BudgetStanding]) -> dict[str, Any]:
    return {"object": "budget.list", "budgets": [budget.shown() for budget in budgets]}
