"""Derive scopes: entries are shared only within one owner, surface, `answers_version` and generation.

The owner is the tenant of the API key, never anything in the request; or, where the policy widens the cache to a team
(`cache.scope: team`), the tenant's team. A tenant without a team has a scope of its own.

The policy's `answers_version` covers what determines an answer: the ladder's tiers and models, and the rules for output
and cache. So answers of another model are never found, while those of a policy with edited thresholds are. System
prompts are part of the request (see `cache.planning.fingerprint`).

The generation is a number in the store that a purge of the surface raises (see `cache.scopes.generations`): entries of
earlier scopes are then under keys that are not used any more.

Scopes are BLAKE2b hashes, keyed with the deployment's secret; their parts are length-prefixed, so that no text inside
one can move the boundary between two. In a key a scope is in braces: all its keys are in one slot of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from policies.model import Policy

SCHEMA: Final = "c3"
"""Part of every key: another version of Tierline on the same store never reads these entries."""
DIGEST_BYTES: Final = 16
_DIGEST_CHARS: Final = 2 * DIGEST_BYTES
_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Scope:
    """One scope. `prefix` starts all its keys; the other fields are the plain text of what its hash covers."""

    prefix: str
    owner: str
    surface: str
    policy: str
    """Label, `surface@version`, of a policy with answers here; other policies may share the scope."""
    models: str
    """Models that may have given the answers, the cheapest tier's first."""
    generation: int

    @property
    def digest(self) -> str:
        """The hash alone, in hex."""
        return self.prefix[-_DIGEST_CHARS - 1 : -1]


class Scopes:
    """Derives the scopes of requests. `teams` maps each tenant with a team to its name."""

    def __init__(self, secret: bytes, teams: Mapping[str, str], generation: Callable[[str, str], int]) -> None:
        """Take the secret (at most 64 bytes), the teams, and `generation`, of (owner, surface) now."""
        self._secret = secret
        self._teams = {tenant: f"team:{team}" for tenant, team in teams.items()}
        self._generation = generation
        self._known: dict[tuple[str, str, str, str], Scope] = {}

    def of(self, tenant: str, policy: Policy) -> Scope:
        """Return the scope of a request of this tenant."""
        name = (tenant, policy.surface, policy.version, policy.answers_version)
        scope = self._known.get(name)
        if scope is None or scope.generation != self._generation(scope.owner, scope.surface):
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            scope = self._known[name] = self._new(tenant, policy)
        return scope

    def _new(self, tenant: str, policy: Policy) -> Scope:
        team = self._teams.get(tenant) if policy.cache.scope == "team" else None
        owner, surface = team or owner_of(tenant), policy.surface
        generation = self._generation(owner, surface)
        prefix = scope_of(owner, surface, policy.answers_version, self._secret, generation)
        return Scope(prefix, owner, surface, policy.label, " -> ".join(policy.models), generation)

    def owners(self, tenant: str) -> tuple[str, ...]:
        """Return the owners of a tenant's possible answers: itself, and its team if it has one."""
        team = self._teams.get(tenant)
        return (owner_of(tenant),) if team is None else (owner_of(tenant), team)


def owner_of(tenant: str) -> str:
    """Return a tenant's name as an owner. It cannot equal a team's: neither name contains a colon."""
    return f"tenant:{tenant}"


def scope_of(owner: str, surface: str, answers_version: str, secret: bytes, generation: int = 0) -> str:
    """Return the prefix of all keys of one scope."""
    digest = blake2b(digest_size=DIGEST_BYTES, key=secret)
    for part in (SCHEMA, owner, surface, answers_version, str(generation)):
        digest.update(prefixed(part.encode()))
    return prefix_of(digest.hexdigest())


def prefix_of(digest: str) -> str:
    """Return the prefix of the scope with this hash."""
    return f"tierline:{SCHEMA}:{{{digest}}}"


def prefixed(part: bytes) -> bytes:
    """Return a part to be hashed, with its length in front."""
    return b"%d:%b" % (len(part), part)
