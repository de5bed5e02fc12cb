"""Scopes: who shares entries with whom. One per owner, surface, `answers_version` and generation; nothing crosses them.

The owner is the tenant that the key stands for, never anything a request says of itself; or, where the policy widens
the cache to a team (`cache.scope: team`), the tenant's team. A tenant without a team stays by itself.

The policy's `answers_version` stands for what makes an answer: the ladder's tiers and models, and the rules for the
output and the cache. So another model's answers are never found, and those of a policy whose thresholds were edited
are. System prompts are part of the request (see `cache.planning.fingerprint`).

The generation is a number in the store that purging a surface raises (see `cache.scopes.generations`): the entries of
the scopes before are then under keys that nobody asks for any more.

Scopes are BLAKE2b hashes, keyed with the deployment's secret; their parts are length-prefixed, so that no text inside
one can move the border between two. In a key a scope stands in braces: all its keys are in one slot of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from policies.model import Policy

SCHEMA: Final = "c3"
"""Part of every key: an older or newer Tierline on the same store never reads these entries."""
DIGEST_BYTES: Final = 16
_DIGEST_CHARS: Final = 2 * DIGEST_BYTES
_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Scope:
    """One scope. `prefix` starts all its keys; the rest says in words what the hash in it stands for."""

    prefix: str
    owner: str
    surface: str
    policy: str
    """The label, `surface@version`, of a policy whose answers lie here; others may share it."""
    models: str
    """The models that may have given the answers, of the cheapest tier first."""
    generation: int

    @property
    def digest(self) -> str:
        """The hash alone, in hex."""
        return self.prefix[-_DIGEST_CHARS - 1 : -1]


class Scopes:
    """The scopes of requests. `teams` names the team of each tenant that has one."""

    def __init__(self, secret: bytes, teams: Mapping[str, str], generation: Callable[[str, str], int]) -> None:
        """`generation` tells the one of an owner and a surface now; `secret` has 64 bytes at most."""
        self._secret = secret
        self._teams = {tenant: f"team:{team}" for tenant, team in teams.items()}
        self._generation = generation
        self._known: dict[tuple[str, str, str, str], Scope] = {}

    def of(self, tenant: str, policy: Policy) -> Scope:
        """The scope of a request of this tenant."""
        name = (tenant, policy.surface, policy.version, policy.answers_version)
        known = self._known.get(name)
        if known is None or known.generation != self._generation(known.owner, known.surface):
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[name] = self._new(tenant, policy)
        return known

    def _new(self, tenant: str, policy: Policy) -> Scope:
        team = self._teams.get(tenant) if policy.cache.scope == "team" else None
        owner, surface = team or owner_of(tenant), policy.surface
        generation = self._generation(owner, surface)
        prefix = scope_of(owner, surface, policy.answers_version, self._secret, generation)
        return Scope(prefix, owner, surface, policy.label, " -> ".join(policy.models), generation)

    def owners(self, tenant: str) -> tuple[str, ...]:
        """Under whom a tenant's answers may lie: itself, and its team."""
        team = self._teams.get(tenant)
        return (owner_of(tenant),) if team is None else (owner_of(tenant), team)


def owner_of(tenant: str) -> str:
    """A tenant as an owner: no team has that name, for the names of both have no colon."""
    return f"tenant:{tenant}"


def scope_of(owner: str, surface: str, answers_version: str, secret: bytes, generation: int = 0) -> str:
    """The prefix of all keys of one scope."""
    digest = blake2b(digest_size=DIGEST_BYTES, key=secret)
    for part in (SCHEMA, owner, surface, answers_version, str(generation)):
        digest.update(prefixed(part.encode()))
    return prefix_of(digest.hexdigest())


def prefix_of(digest: str) -> str:
    """The prefix of the scope with this hash."""
    return f"tierline:{SCHEMA}:{{{digest}}}"


def prefixed(part: bytes) -> bytes:
    """A part of what is hashed, with its length before it."""
    return b"%d:%b" % (len(part), part)
