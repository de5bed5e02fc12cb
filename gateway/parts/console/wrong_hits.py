"""Take back a stored answer that was the wrong one for a recorded request: rate it, remove it, and learn from it.

It needs the store alone, so it works beside the gateways, as in the console. A client's feedback does the same inside
one (the route of feedback): the rating, the removal and the complaint are those of the same functions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import orjson

from cache.scopes.scope import owners_of
from cache.semantic.hit_bound import complaint_of
from cache.store.base import Append, Store
from gateway.parts.cache_admin.administration import Administration
from gateway.parts.measures.feedback import STREAM, Feedback, ServedHit
from gateway.seams import complain, read_published, withdraw

if TYPE_CHECKING:
    from cache.semantic.hit_bound import PublishedBound
    from gateway.parts.cache_admin.administration import Found

COMMENT: Final = "marked as a wrong hit in the console"
"""The comment of ratings that are given here."""
UNDONE: Final = "a right hit after all: its removal was undone in the console"
"""The comment of ratings by which they are taken back."""


@dataclass(frozen=True, slots=True)
class WrongHit:
    """What taking a hit back would do: the entry that it removes, None if it is gone, and what learns of it.

    `risk` is the surface's published error bound; None where nothing learns, as of an answer to exactly this request.
    """

    hit: ServedHit
    surface: str
    owner: str
    entry: Found | None
    risk: PublishedBound | None

    @property
    def held_back(self) -> int:
        """About how many requests of the owner a complaint raises its threshold for, if it is its only one."""
        return 0 if self.risk is None else math.ceil(1 / max(self.risk.figures.max_error, 1e-6))


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

    async def look(self, hit: ServedHit, *, surface: str, tenant: str) -> WrongHit:
        """Return what `take_back` would do now; nothing is changed. Raises StoreUnavailable."""
        owners = owners_of(tenant, self._teams)
        entry = await self._administration.find(hit.entry_id, await self._administration.scopes(surface, owners))
        if entry is not None and hit.created_at not in (None, entry.entry.created_at):
            entry = None
        owner = entry.scope.owner if entry is not None else await self._owner(surface, owners)
        risk = None if hit.score is None else await self._published(surface)
        return WrongHit(hit, surface, owner, entry, risk)

    async def take_back(
        self, hit: ServedHit, *, surface: str, tenant: str, request_id: str, rated: bool = False
    ) -> WrongHit:
        """Rate the request 0 unless it is `rated` so, remove the entry with its copies, and complain of its score.

        Doing it again changes nothing: an entry that was stored since is another answer and stays, and complaints about
        one request count once. Raises StoreUnavailable; then it can be done again.
        """
        if not rated:
            await self._rate(request_id, tenant, surface, 0.0, COMMENT)
        owners = owners_of(tenant, self._teams)
        removed = await self._administration.remove_wrong(
            hit.entry_id, surface, owners, hit.created_at, undo=_undo_of(tenant, request_id)
        )
        owner = removed.scope.owner if removed is not None else await self._owner(surface, owners)
        learned = None if hit.score is None else await self._published(surface)
        if hit.score is not None and learned is not None:
            await complain(self._store, learned, complaint_of(tenant, request_id, hit.score, owner))
        return WrongHit(hit, surface, owner, removed, learned)

    async def can_undo(self, tenant: str, request_id: str) -> bool:
        """Return whether taking back the hit of a request can still be undone. Raises StoreUnavailable."""
        return await self._administration.can_put_back(_undo_of(tenant, request_id))

    async def undo(
        self, hit: ServedHit, *, surface: str, tenant: str, request_id: str, score: float | None
    ) -> int | None:
        """Put the removed entries back, withdraw the complaint, rate the request `score`; return how many came back.

        Where `score` is None the request's client has called it wrong: its rating and complaint stay. Returns None
        where nothing is kept for it any more; then nothing is changed. Raises StoreUnavailable.
        """
        back = await self._administration.put_back(_undo_of(tenant, request_id))
        if back is None or score is None:
            return back
        learned = await self._published(surface)
        if hit.score is not None and learned is not None:
            await withdraw(self._store, learned, complaint_of(tenant, request_id, hit.score, ""))
        await self._rate(request_id, tenant, surface, score, UNDONE)
        return back

    async def _rate(self, request_id: str, tenant: str, surface: str, score: float, comment: str) -> None:
        rating = Feedback(request_id, tenant, surface, score, comment, self._clock())
        await self._store.apply([Append(STREAM, rating.encode(), self._keep)])

    async def _published(self, surface: str) -> PublishedBound | None:
        return next((bound for bound in await read_published(self._store) if bound.surface == surface), None)

    async def _owner(self, surface: str, owners: Collection[str]) -> str:
        """Return whose answers a tenant shares on a surface: its team's if there are such, else its own."""
        if len(owners) == 1:
            return next(iter(owners))
        listed = {listed.scope.owner for listed in await self._administration.scopes(surface, owners)}
        *_, team = owners
        return team if team in listed else next(iter(owners))


def _undo_of(tenant: str, request_id: str) -> str:
    """Return the name under which the removal of a request's hit can be undone."""
    return blake2b(orjson.dumps((tenant, request_id)), digest_size=16).hexdigest()
