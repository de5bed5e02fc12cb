"""Plan a request: may it be answered from the cache, by which cache, and under which keys? No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from cache.planning import eligibility
from cache.planning.fingerprint import Fingerprint, fingerprint
from cache.scopes.scope import Scope, Scopes
from cache.scopes.tags import Tags

if TYPE_CHECKING:
    from cache.risk.audit import Sample
    from policies.caching import CachePolicy
    from policies.model import Policy

_SECRET_BYTES = 64


@dataclass(frozen=True, slots=True)
class Demands:
    """A request's own conditions on a stored answer, in addition to its policy's.

    Maximum age and minimum remaining lifetime in seconds, and the minimum similarity (cosine) of its question. They can
    only narrow what the policy allows.
    """

    max_age_s: float | None = None
    min_fresh_s: float = 0.0
    min_similarity: float = 0.0

    def unmet(self, age_s: float, left_s: float, similarity: float | None) -> str:
        """Return the first condition that an answer fails, or ''. `similarity` is None for an exact answer."""
        if self.max_age_s is not None and age_s > self.max_age_s:
            return "max-age"
        if left_s < self.min_fresh_s:
            return "min-fresh"
        return "min-similarity" if similarity is not None and similarity < self.min_similarity else ""


NO_DEMANDS: Final = Demands()


@dataclass(slots=True)
class CachePlan:
    """What the cache may do for one request. `reason` is why it may do nothing; '' if it may."""

    policy: CachePolicy
    surface: str
    label: str
    body: Mapping[str, Any]
    facts: eligibility.RequestFacts
    reason: str
    read: bool = True
    write: bool = True
    keys: Fingerprint | None = None
    longest: int = eligibility.LONGEST_QUESTION
    tiers: tuple[str, ...] = ()
    demands: Demands = NO_DEMANDS
    scope: Scope | None = None
    """The scope of the keys; set wherever `keys` is."""
    tags: Tags | None = None
    """The sources of the answer; None if none are named."""
    drawn: list[Sample] = field(default_factory=list)
    """Samples to compare the new answer with: added by the lookup, used when the answer is stored."""

    def outranks(self, tier: str, other: str) -> bool:
        """Return whether `tier` is the stronger of the two, by their places on the ladder."""
        tiers = self.tiers
        return tier in tiers and (other not in tiers or tiers.index(tier) > tiers.index(other))

    def why_not_semantic(self) -> str:
        """Return why no neighbour's answer may be served, or ''; then the question is worth embedding.

        Computed on demand: a request with an exact hit does not need it.
        """
        if self.keys is None:
            return self.reason
        return eligibility.why_not_semantic(self.policy, self.body, self.facts, self.keys.question, self.longest)


class Planner:
    """Makes plans. `secret` may have any length; `embedder` identifies the vectors.

    `longest` is the number of characters that they certainly cover. `teams`, `generation`: see `Scopes`.
    """

    def __init__(
        self,
        secret: bytes,
        embedder: str,
        longest: int,
        teams: Mapping[str, str],
        generation: Callable[[str, str], int],
    ) -> None:
        self._secret = secret if len(secret) <= _SECRET_BYTES else blake2b(secret).digest()
        self.scopes = Scopes(self._secret, teams, generation)
        self._embedder = embedder
        self._longest = longest

    def plan(
        self,
        body: Mapping[str, Any],
        policy: Policy,
        tenant: str,
        facts: eligibility.RequestFacts,
        *,
        model: str | None = None,
        read: bool = True,
        write: bool = True,
        demands: Demands = NO_DEMANDS,
        tags: Sequence[str] = (),
    ) -> CachePlan:
        """Return what the cache may do for one checked request. `model`, if given, replaces the body's in the keys.

        `read` False is a client's no-cache, `write` False its no-store; `tags` are the sources of its answer.
        """
        reason = eligibility.why_not_any(policy.cache, body, facts)
        if not reason and not read and not write:
            reason = "no-cache"
        if reason:
            return CachePlan(policy.cache, policy.surface, policy.label, body, facts, reason)
        scope = self.scopes.of(tenant, policy)
        keys = fingerprint(body, scope.prefix, self._secret, model, self._embedder)
        named = (*policy.cache.tags, *tags)
        return CachePlan(
            policy.cache,
            policy.surface,
            policy.label,
            body,
            facts,
            "",
            read,
            write,
            keys,
            self._longest,
            policy.ladder,
            demands,
            scope,
            Tags(named) if named else None,
        )
