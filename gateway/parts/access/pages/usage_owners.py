"""Say what the page Usage shows of keys and teams beside what they used: their budgets, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable

from cache.store.base import Store, StoreUnavailable
from gateway.parts.access.keys.budgets import BudgetStanding, OwnerBudgets
from gateway.parts.access.keys.key_caller import team_of
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.parts.access.keys.roles import Person


class UsageOwners:
    """Read what the store knows of the owners on the usage page: their budgets and the names of keys."""

    def __init__(self, store: Store) -> None:
        self._budgets = OwnerBudgets(store)
        self._keys = KeyRegistry(store)

    async def budgets(self) -> list[BudgetStanding] | None:
        """Return the budgets that are in use; None if the store does not answer."""
        try:
            return await self._budgets.in_use()
        except StoreUnavailable:
            return None

    async def names(self, keys: Iterable[str | None]) -> dict[str, str]:
        """Return what people call these keys; nothing while the store does not answer."""
        try:
            return await self._keys.names([key for key in keys if key])
        except StoreUnavailable:
            return {}

    @staticmethod
    def teams_of(person: Person, action: str) -> list[str]:
        """Return the teams of their own tenant that a person may do an action with, as owners are named."""
        granted = {team for grant in person.grants for team in grant.only}
        teams = [team for team in {*granted, *person.teams} if person.may(action, team)]
        return sorted(team_of(person.tenant, team) for team in teams)
