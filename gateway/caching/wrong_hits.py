"""Take back a stored answer that was the wrong one for a recorded request: rate it, remove it, and learn from it.

It needs the store alone, so it works beside the gateways, as in the console. A client's feedback does the same inside
one (`gateway.http.routes.feedback`): the rating, the removal and the complaint are those of the same functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cache.administration import Administration
from cache.risk.control import complaint_of
from cache.risk.published import complain, read_published
from cache.scopes.scope import owners_of
from cache.store.base import Append, Store
from gateway.telemetry import names
from gateway.telemetry.feedback import STREAM, Feedback

if TYPE_CHECKING:
    from cache.administration import Found

COMMENT: Final = "marked as a wrong hit in the console"
"""The comment of ratings that are given here."""


@dataclass(frozen=True, slots=True)
class ServedHit:
    """The stored answer that a recorded request was answered with.

    `created_at` (Unix seconds) tells it from a later answer under the same id; `score` is None for an answer to exactly
    this request.
    """

    entry_id: str
    created_at: float | None
    score: float | None


def served_hit(hops: Iterable[Mapping[str, Any]]) -> ServedHit | None:
    """Return the hit in the hops of a record; None for a request that was not answered from the cache."""
    for hop in hops:
        attributes = hop["attributes"]
        if names.CACHE_ENTRY in attributes:
            return ServedHit(
                attributes[names.CACHE_ENTRY], attributes.get(names.CACHE_CREATED), attributes.get(names.CACHE_SCORE)
            )
    return None


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What was done about a wrong hit. `removed` is None if the entry was gone before.

    `complained`: whether the surface's error bound learns of it. `threshold` is the one in force when it did, so a hit
    of that `score` or below is not served to `owner` any more.
    """

    hit: ServedHit
    surface: str
    owner: str
    removed: Found | None
    complained: bool
    threshold: float | None = None


class WrongHits:
    """Take back wrong hits of all tenants. `teams` maps tenants to teams; `keep` bounds the stream of ratings."""

    def __init__(
        self, store: Store, teams: Mapping[str, str], *, keep: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._administration = Administration(store, clock)
        self._teams = teams
        self._keep = keep
        self._clock = clock

    async def take_back(
        self, hit: ServedHit, *, surface: str, tenant: str, request_id: str, rated: bool = False
    ) -> TakenBack:
        """Rate the request 0 unless it is `rated` so, remove the entry with its copies, and complain of its score.

        Doing it again changes nothing: an entry that was stored since is another answer and stays, and complaints about
        one request count once. Raises StoreUnavailable; then it can be done again.
        """
        if not rated:
            rating = Feedback(request_id, tenant, surface, 0.0, COMMENT, self._clock())
            await self._store.apply([Append(STREAM, rating.encode(), self._keep)])
        owners = owners_of(tenant, self._teams)
        removed = await self._administration.remove_wrong(hit.entry_id, surface, owners, hit.created_at)
        owner = removed.scope.owner if removed is not None else await self._owner(surface, owners)
        learned = {risk.surface: risk for risk in await read_published(self._store)}.get(surface)
        if hit.score is None or learned is None:
            return TakenBack(hit, surface, owner, removed, complained=False)
        await complain(self._store, learned, complaint_of(tenant, request_id, hit.score, owner))
        return TakenBack(hit, surface, owner, removed, complained=True, threshold=learned.figures.threshold)

    async def _owner(self, surface: str, owners: Collection[str]) -> str:
        """Return whose answers a tenant shares on a surface: its team's if there are such, else its own."""
        if len(owners) == 1:
            return next(iter(owners))
        listed = {one.scope.owner for one in await self._administration.scopes(surface, owners)}
        *_, team = owners
        return team if team in listed else next(iter(owners))
