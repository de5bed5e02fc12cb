"""Decide what keys a person may make: for their own team, within what that allows. The one rule of page and API.

    admin        any key
    key admin    keys of the teams they administer, of their own tenant, within what the team allows
    member       the same of the teams they belong to; a new key is theirs, and they rotate those that are

A team's limits hold for all of its keys together, whatever a key's own are, so a key without limits of its own is
within them; one that states more than the team has is a mistake, and refused. But for admins nobody makes a key that
is wider than they are themselves: it has surfaces that their own token has. What a member makes for themselves counts
against the limits and budgets of their token, for all such keys together, and ends, also where the team states nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from gateway.parts.access.audit.entries import TrailEntry
from gateway.parts.access.keys.records import NO_NAMES, KeyRecord, OwnerRecord
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.quotas.terms import NO_TERMS, Terms

_LONGER: Final = ("day", "week", "month", "total")
_COUNTS: Final = ("requests_per_minute", "tokens_per_minute", "concurrent")
_DAY_S: Final = 86400


class NotAllowed(Exception):
    """A key that a person may not make; the message says why, and what would be allowed."""


def may_with(person: Person, action: str, key: KeyRecord) -> bool:
    """Return whether a person may do an action with a key: by its team, and but for admins of their own tenant alone.

    What two tenants call a team may be the same, as each one's identity provider says. Without a role a key is rotated
    by whose it is alone: who rotates it ends it for everybody else.
    """
    if not person.may(action, key.team) or (not person.is_admin and key.tenant != person.tenant):
        return False
    return action != "keys.rotate" or is_own(person, key) or replace(person, teams=()).may(action, key.team)


def may_with_owner(person: Person, action: str, owner: OwnerRecord) -> bool:
    """Return whether a person may do an action with a team or a tenant, but for admins with their own tenant's alone.

    A tenant's terms are no team's, so they need a role that no team limits.
    """
    tenant, _, team = owner.name.rpartition("/")
    own = person.is_admin or tenant in ("", person.tenant)
    return own and person.may(action, team if owner.kind == "team" else "")


def may_read(person: Person, entry: TrailEntry) -> bool:
    """Return whether a person may read what a change in the audit trail was: where they may see what was changed."""
    if entry.kind == "key":
        return person.may("keys.see")
    if entry.kind in ("team", "tenant"):
        return may_with_owner(person, "teams.see", OwnerRecord(entry.kind, entry.subject))
    if entry.kind != "budget":
        return True
    kind, _, account = entry.subject.partition(":")  # such as `team:acme%2Fweb/usd/total`
    if kind != "team":
        return person.may("usage.see")
    return may_with_owner(person, "usage.see", OwnerRecord("team", unquote(account.partition("/")[0])))


def is_own(person: Person, key: KeyRecord) -> bool:
    """Return whether a key is a person's: they made it for themselves, or a role made it with them as its owner."""
    return key.maker == person.id if key.maker else bool(person.id) and key.owner == person.name


def allowed_key(person: Person, wanted: KeyRecord, team: OwnerRecord | None, now: float) -> KeyRecord:
    """Return the key that is made where a person wants `wanted`, new or as it will be after a rotation or a change.

    `team` is the record of its team, None where nothing limits that; `now` is in Unix seconds. What the key leaves
    open is narrowed to what the team and the person's own token allow. Raises NotAllowed, with all that is wrong.
    """
    if person.is_admin:
        return wanted
    if not person.may("keys.create", wanted.team):
        raise NotAllowed(
            f"You may not make keys of {'team ' + wanted.team if wanted.team else 'no team'}; "
            + (f"yours: {', '.join(person.teams)}." if person.teams else "ask somebody who administers keys.")
        )
    key, wrong = wanted, []
    if key.tenant != person.tenant:
        wrong.append(f"its tenant is {key.tenant}; yours is {person.tenant}")
    if key.may_try:
        wrong.append("only an admin lets a key choose policy versions (may_try)")
    by_role = person.may("keys.change", key.team)
    if not key.replaces and not by_role:
        key = replace(key, owner=person.name, maker=person.id, maker_terms=person.terms)
    life_s = team.longest_life_s if team is not None else None
    if key.maker and life_s is None:
        life_s = person.longest_life_s
    surfaces = _narrowed(() if team is None else team.surfaces, person.surfaces if by_role or key.maker else ())
    tiers = () if team is None else team.tiers
    wrong += _beyond(key, surfaces, tiers, life_s, now)
    for terms in (key.terms, key.per_user, key.per_session):
        wrong += [*_above(terms, NO_TERMS if team is None else team.terms), *_above(terms, key.maker_terms)]
    key = replace(key, surfaces=key.surfaces or surfaces, tiers=key.tiers or tiers)
    if key.expires is None and life_s is not None:
        key = replace(key, expires=now + life_s)
    if wrong:
        whose = f"{key.team} allows" if team is not None else "you may use yourself"
        raise NotAllowed(f"This key is not within what {whose}: {'; '.join(dict.fromkeys(wrong))}.")
    return key


def _narrowed(team: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the surfaces of a team that are a person's own too; an empty list has all."""
    if not team or not own:
        return team or own
    return tuple(name for name in team if name in own) or NO_NAMES


def _beyond(
    key: KeyRecord, surfaces: tuple[str, ...], tiers: tuple[str, ...], life_s: float | None, now: float
) -> Iterator[str]:
    """Yield in what ways a key is beyond what is allowed."""
    for what, wanted, allowed in (("surfaces", key.surfaces, surfaces), ("tiers", key.tiers, tiers)):
        if allowed and (more := [name for name in wanted if name not in allowed]):
            yield f"{what} {', '.join(more)}, of {', '.join(allowed)}"
    if surfaces and key.default_surface and key.default_surface not in (key.surfaces or surfaces):
        yield f"default surface {key.default_surface}, of {', '.join(key.surfaces or surfaces)}"
    if life_s is not None and key.expires is not None and key.expires > now + life_s:
        yield f"it ends after more than {life_s / _DAY_S:g} days"


def _above(terms: Terms, limit: Terms) -> Iterable[str]:
    for name in _COUNTS:
        wanted, most = getattr(terms, name), getattr(limit, name)
        if wanted is not None and most is not None and wanted > most:
            yield f"{name} {wanted}, of {most}"
    for budget in terms.budgets:
        # A team's budget of a month is more than any of its days may cost; one of a day says nothing about the month.
        longer = [own for own in limit.budgets if _LONGER.index(own.per) >= _LONGER.index(budget.per)]
        least = min(longer, key=lambda own: own.usd, default=None)
        if least is not None and budget.usd > least.usd:
            yield f"a budget of ${budget.usd:g} a {budget.per}, of ${least.usd:g} a {least.per}"
