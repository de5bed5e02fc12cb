"""Say what somebody may do in the console and over the admin API.

`actions.toml` is the table: for each action, the roles that may, what a role may be limited to, and whether members of
a team may for their own. Both ask `Person.may` alone. Roles come from static keys (`EDITOR`, `VIEWER`, `ADMIN`) or from
the claims of a token by the config's `roles` (`gateway.parts.access.keys.identities`).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gateway.config.schema import DEFAULT_TENANT
from gateway.errors import Forbidden
from gateway.parts.access.config import Role
from gateway.parts.access.quotas.terms import NO_TERMS, Terms

Within = Literal["", "surface", "team"]


@dataclass(frozen=True, slots=True)
class ActionRule:
    """Who may do one action. Admins may do everything."""

    what: str
    roles: tuple[Role, ...] = ()
    within: Within = ""
    """What the action's subject is, if roles may be limited to some."""
    members: bool = False
    """Whether whoever belongs to the subject's team may."""


ACTIONS: Final[dict[str, ActionRule]] = {
    name: ActionRule(**{**rule, "roles": tuple(rule["roles"])})
    for name, rule in tomllib.loads(Path(__file__).with_name("actions.toml").read_text("utf-8")).items()
}


@dataclass(frozen=True, slots=True)
class Grant:
    """One role that a person has, for everything or for some surfaces or teams only."""

    role: Role
    only: tuple[str, ...] = ()
    """Surfaces of an editor, teams of a key admin; empty for all."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who uses the console or the admin API: a person of an identity provider, or whoever has a static key."""

    name: str = ""
    """As the provider names them, for histories and the audit trail; of a static key what it is."""
    id: str = ""
    """Stable id of the provider's subject (see `gateway.parts.access.keys.identities`); empty without a provider."""
    grants: tuple[Grant, ...] = ()
    tenant: str = DEFAULT_TENANT
    teams: tuple[str, ...] = ()
    """Teams that they belong to."""
    surfaces: tuple[str, ...] = ()
    """Surfaces that requests with their own token may use; empty for all."""
    terms: Terms = NO_TERMS
    """Limits and budgets of their own token."""
    longest_life_s: float | None = None
    """Longest life of a key that they make for themselves, where its team states none, in seconds; None for any."""

    @property
    def is_admin(self) -> bool:
        """Whether they may do everything."""
        return any(grant.role == "admin" for grant in self.grants)

    def author(self, given: str = "") -> str:
        """Return who a change is recorded as made by: a person of a provider by their name there, whatever is given."""
        return self.name if self.id else given or self.name

    def may(self, action: str, subject: str = "") -> bool:
        """Return whether they may do an action of ACTIONS with a subject.

        The subject is the surface or the team that the action's `within` says; empty for all of them, which only those
        may who are not limited to some.
        """
        rule = ACTIONS[action]
        own = rule.members and bool(subject) and subject in self.teams
        return own or any(_covers(grant, rule, subject) for grant in self.grants)

    def may_some(self, action: str) -> bool:
        """Return whether there is any subject that they may do an action with: whether they are shown it at all."""
        rule = ACTIONS[action]
        own = rule.members and bool(self.teams)
        return own or any(grant.role == "admin" or grant.role in rule.roles for grant in self.grants)

    def permit(self, action: str, subject: str = "") -> None:
        """Raise Forbidden unless they may do an action with a subject, empty for all of them."""
        if not self.may(action, subject):
            what, within = ACTIONS[action].what.lower(), ACTIONS[action].within
            of = f" of {within} {subject}" if subject else ""
            raise Forbidden(f"You may not do this{of}: {what}. An admin can give you a role.", code="not_permitted")


NOBODY: Final = Person()
VIEWER: Final = Person("viewer key", grants=(Grant("viewer"),))
EDITOR: Final = Person("editor key", grants=(Grant("editor"),))
ADMIN: Final = Person("admin", grants=(Grant("admin"),))
"""Whoever has the console's keys, or the admin key."""
OWNER: Final = Person("console", grants=(Grant("admin"),))
"""Whoever uses a console that needs no key, on this machine."""


_LIMITED_BY: Final[dict[Role, Within]] = {"editor": "surface", "key_admin": "team"}


def _covers(grant: Grant, rule: ActionRule, subject: str) -> bool:
    if grant.role == "admin":
        return True
    limited = grant.only and rule.within == _LIMITED_BY.get(grant.role)
    return grant.role in rule.roles and (not limited or subject in grant.only)
