"""Decide what keys a person may make: for their own team, within what that allows. The one rule of page and API.

    admin        any key
    key admin    keys of the teams they administer, of their own tenant, within what the team allows
    member       the same of the teams they belong to; a new key is theirs

A team's limits hold for all of its keys together, whatever a key's own are, so a key without limits of its own is
within them; one that states more than the team has is a mistake, and refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gateway.keys.records import KeyRecord, OwnerRecord
from gateway.keys.roles import Person, may
from gateway.quotas.terms import Terms

_LONGER: Final = ("day", "week", "month", "total")
_COUNTS: Final = ("requests_per_minute", "tokens_per_minute", "concurrent")
_DAY_S: Final = 86400


class NotAllowed(Exception):
    """A key that a person may not make; the message says why, and what would be allowed."""


def may_with(person: Person, action: str, key: KeyRecord) -> bool:
    """Return whether a person may do an action with a key: by its team, and but for admins of their own tenant alone.

    What two tenants call a team may be the same, as each one's identity provider says.
    """
    return may(person, action, key.team) and (person.is_admin or key.tenant == person.tenant)


def allowed_key(person: Person, wanted: KeyRecord, team: OwnerRecord | None, now: float) -> KeyRecord:
    """Return the key that is made where a person wants `wanted`, new or as it will be after a rotation or a change.

    `team` is the record of its team, None where nothing limits that; `now` is in Unix seconds. What the key leaves
    open is narrowed to what the team allows. Raises NotAllowed, with all that is wrong.
    """
    if person.is_admin:
        return wanted
    if not may(person, "keys.create", wanted.team):
        raise NotAllowed(
            f"You may not make keys of {'team ' + wanted.team if wanted.team else 'no team'}; "
            + (f"yours: {', '.join(person.teams)}." if person.teams else "ask somebody who administers keys.")
        )
    key, wrong = wanted, []
    if key.tenant != person.tenant:
        wrong.append(f"its tenant is {key.tenant}; yours is {person.tenant}")
    if key.may_try:
        wrong.append("only an admin lets a key choose policy versions (may_try)")
    if not key.replaces and not may(person, "keys.change", key.team):
        key = replace(key, owner=person.name)
    if team is not None:
        wrong += _beyond(key, team, now)
        key = replace(key, surfaces=key.surfaces or team.surfaces, tiers=key.tiers or team.tiers)
        if key.expires is None and team.longest_life_s is not None:
            key = replace(key, expires=now + team.longest_life_s)
    if wrong:
        raise NotAllowed(f"This key is not within what {key.team} allows: {'; '.join(wrong)}.")
    return key


def _beyond(key: KeyRecord, team: OwnerRecord, now: float) -> Iterator[str]:
    """Yield in what ways a key is beyond what its team allows."""
    for what, wanted, allowed in (("surfaces", key.surfaces, team.surfaces), ("tiers", key.tiers, team.tiers)):
        if allowed and (more := [name for name in wanted if name not in allowed]):
            yield f"{what} {', '.join(more)}, of {', '.join(allowed)}"
    if team.surfaces and key.default_surface and key.default_surface not in (key.surfaces or team.surfaces):
        yield f"default surface {key.default_surface}, of {', '.join(key.surfaces or team.surfaces)}"
    for terms in (key.terms, key.per_user, key.per_session):
        yield from _above(terms, team.terms)
    life = team.longest_life_s
    if life is not None and key.expires is not None and key.expires > now + life:
        yield f"it ends after more than {life / _DAY_S:g} days"


def _above(terms: Terms, limit: Terms) -> Iterable[str]:
    for name in _COUNTS:
        wanted, most = getattr(terms, name), getattr(limit, name)
        if wanted is not None and most is not None and wanted > most:
            yield f"{name} {wanted}, of {most}"
    for budget in terms.budgets:
        # A team's budget of a month is more than any of its days may cost; one of a day says nothing about the month.
        longer = [one for one in limit.budgets if _LONGER.index(one.per) >= _LONGER.index(budget.per)]
        least = min(longer, key=lambda one: one.usd, default=None)
        if least is not None and budget.usd > least.usd:
            yield f"a budget of ${budget.usd:g} a {budget.per}, of ${least.usd:g} a {least.per}"
