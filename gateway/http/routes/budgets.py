"""Serve the admin API of budgets: how they stand, and an operator's resets and top-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import Field, field_validator

from gateway.errors import InvalidRequest
from gateway.http.api_route import Body, BodyRoute, Served, needs, permit
from gateway.keys.budgets import BudgetStanding, Owned, OwnerBudgets, owner_named, terms_in
from gateway.keys.registry import KeyRegistry, KeysRefused, Why
from gateway.keys.roles import Person
from gateway.quotas.terms import Per
from gateway.steps import Steps

router: Final = APIRouter(prefix="/admin/budgets", tags=["Budgets"], route_class=BodyRoute)
_Sees = Annotated[Person, needs("usage.see")]
_Changes = Annotated[Person, needs("teams.change")]


class AdjustRequest(Body):
    """What is to count as spent, or to be added: of all of an owner's budgets, or of the one `per` a window."""

    owner: str
    usd: float = Field(0.0, ge=0, lt=1e9, allow_inf_nan=False)
    per: Per | None = None
    message: str = Field(pattern=r"\S")
    author: str = ""

    @field_validator("owner")
    @classmethod
    def _is_one(cls, owner: str) -> str:
        owner_named(owner)
        return owner

    def why(self, person: Person) -> Why:
        """Return who makes the change, which a person with a name of their own cannot choose, and why."""
        return Why(person.name if person.id else self.author or person.name or "admin", self.message, "admin")


@router.get("")
async def list_budgets(steps: Served, person: _Sees, owner: str = "") -> dict[str, Any]:
    """List the budgets in use, the most spent first, or those of one owner."""
    budgets = _budgets(steps)
    if not owner:
        permit(person, "usage.see")
        return _shown(await budgets.in_use())
    kind, name = named = _owner(owner)
    try:
        permit(person, "usage.see", (await KeyRegistry(steps.store).find(name)).team if kind == "key" else name)
        return _shown(await budgets.of(named))
    except KeysRefused as refused:
        raise InvalidRequest(str(refused), code="unsupported_value", param="owner") from None


@router.post("/reset")
async def reset(steps: Served, person: _Changes, body: AdjustRequest) -> dict[str, Any]:
    """Have an amount count as spent."""
    try:
        done = await _budgets(steps).reset(_owner(body.owner), body.usd, body.per, body.why(person))
    except KeysRefused as refused:
        raise InvalidRequest(str(refused), code="unsupported_value", param="owner") from None
    return _shown(done)


@router.post("/topup")
async def top_up(steps: Served, person: _Changes, body: AdjustRequest) -> dict[str, Any]:
    """Take an amount off what counts as spent."""
    try:
        done = await _budgets(steps).top_up(_owner(body.owner), body.usd, body.per, body.why(person))
    except KeysRefused as refused:
        raise InvalidRequest(str(refused), code="unsupported_value", param="owner") from None
    return _shown(done)


def _budgets(steps: Steps) -> OwnerBudgets:
    return OwnerBudgets(steps.store, terms_in(steps.deployment))


def _owner(text: str) -> Owned:
    try:
        return owner_named(text)
    except ValueError as error:
        raise InvalidRequest(str(error), code="unsupported_value", param="owner") from None


def _shown(budgets: Sequence[BudgetStanding]) -> dict[str, Any]:
    return {"object": "budget.list", "budgets": [one.shown() for one in budgets]}
