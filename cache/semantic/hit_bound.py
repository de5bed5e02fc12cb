"""Define what may bound a surface's share of wrong hits: the seam `HitBound`, and the values that pass through it.

The cache works without one: every surface then keeps the threshold that applies without labels, and no request is drawn
for comparison. `gateway/seams.py` says which part brings one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson

if TYPE_CHECKING:
    from policies.caching import SemanticCache

OTHERS: Final = "other"
"""Name of all groups together that have no threshold of their own."""
_NO_GROUPS: Final[Mapping[str, bool]] = {}


@dataclass(frozen=True, slots=True)
class Complaint:
    """A client's report of a wrong hit. `score` is the hit's, `owner` the tenant or team whose threshold rises first.

    `request` identifies the tenant and the request, so that repeated complaints count once.
    """

    score: float
    owner: str
    request: str


def complaint_of(tenant: str, request_id: str, score: float, owner: str) -> Complaint:
    """Return the complaint about a tenant's request; its name in the stream does not contain the request's id."""
    return Complaint(score, owner, blake2b(orjson.dumps((tenant, request_id)), digest_size=8).hexdigest())


def group_in_words(kind: str, name: str) -> str:
    """Return the name of a group of requests for people, by its kind (`language` or `tenant`).

    The name of a tenant's group is the owner of a scope, `tenant:acme` or `team:sales`.
    """
    if name == OTHERS:
        return f"other {kind}s"
    return f"language {name}" if kind == "language" else name.replace(":", " ", 1)


class SurfaceState(NamedTuple):
    """The state of a surface in `/readyz`: the threshold in force, and the number of labels behind it.

    `breached`: the bound was, within SHOWN_S, for the surface as a whole; by language and by tenant it says the same.
    For one request it says whether the bound of any of these was that it belongs to.
    """

    threshold: float
    labels: int
    breached: bool
    languages: Mapping[str, bool] = _NO_GROUPS
    tenants: Mapping[str, bool] = _NO_GROUPS

    @property
    def breached_groups(self) -> list[str]:
        """The languages and tenants whose own bound was breached, in words."""
        return [
            group_in_words(kind, name)
            for kind, groups in (("language", self.languages), ("tenant", self.tenants))
            for name, breached in groups.items()
            if breached
        ]


class BoundFigures(Protocol):
    """How often a surface's hits may be wrong, and the threshold that follows."""

    @property
    def max_error(self) -> float:
        """The policy's bound: the share of all requests that may wrongly get another question's answer."""

    @property
    def threshold(self) -> float:
        """The score from which hits are served."""


class PublishedBound(Protocol):
    """What a gateway's `HitBound` has published of a surface in the store."""

    @property
    def surface(self) -> str:
        """Name of the surface."""

    @property
    def stream(self) -> str:
        """Key of the stream that its figures come from."""

    @property
    def figures(self) -> BoundFigures:
        """Its figures, of when they were published."""


class HitBound(Protocol):
    """Set the score from which hits are served, by surface, and learn from those that were wrong.

    `semantic` are the surface's rules, `strict` is its threshold without labels. `owner` is whose answers a request
    shares, `language` its own. No method but `run` and `aclose` waits.
    """

    def threshold(
        self, surface: str, semantic: SemanticCache, strict: float, owner: str, language: str, *, again: bool
    ) -> float:
        """Return the threshold of a request, and count the request unless it was counted before (`again`)."""

    def drawn(self, surface: str, key: str, score: float, threshold: float, language: str, owner: str) -> Any | None:
        """Return a sample if the candidate under this key is drawn for comparison; the request is then a miss.

        `threshold` is what the method of this name returned before.
        """

    def compare(self, sample: Any, fresh: Mapping[str, Any], question: str = "") -> None:
        """Compare a sample's stored answer with a new completion of this question, in the background."""

    def complain(self, surface: str, semantic: SemanticCache, strict: float, complaint: Complaint) -> None:
        """Record that a hit was wrong."""

    def in_force(self, surface: str, owner: str = "", language: str = "") -> SurfaceState | None:
        """Return a surface's state for requests of this owner and language; None before the surface's first request."""

    def state(self) -> Mapping[str, SurfaceState]:
        """Return the state of each surface that has had a request."""

    async def run(self) -> None:
        """Exchange what is learned with other workers, until cancelled."""

    async def aclose(self) -> None:
        """End what `compare` began. Called once `run` is cancelled, while the store is open."""
