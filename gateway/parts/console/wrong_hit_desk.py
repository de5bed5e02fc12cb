"""Take back the hit of a recorded request: say what that would do, do it, and undo it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import orjson

from cache.entry import ID_CHARS
from gateway.parts.cache_admin.administration import UNDO_S
from gateway.parts.console.page import PageError
from gateway.parts.console.records import Records
from gateway.parts.console.wrong_hits import COMMENT, UNDONE, WrongHit, WrongHits
from gateway.parts.measures.feedback import ServedHit
from gateway.telemetry import names

log = logging.getLogger("tierline.console")

_HIT: Final = "entry_ms, request_id, tenant, surface, hops"


class NotMarked(PageError):
    """A hit that cannot be taken back; the message says why."""

    status, title = 422, "Nothing was changed"


class WrongHitDesk:
    """Say what taking back a recorded hit would do, do it, and undo it. All methods raise NotMarked.

    `at_ms` is about when the request's record was written, which finds it faster, and tells apart two tenants' equal
    ids.
    """

    def __init__(self, archive: Records, wrong: WrongHits) -> None:
        self._archive = archive
        self._wrong = wrong

    async def look(self, request_id: str, at_ms: int | None = None) -> dict[str, Any]:
        """Return what `take_back` would delete and rate, without doing it."""
        row, hit = await self._hit_of(request_id, at_ms)
        wrong_hit = await self._wrong.look(hit, surface=row["surface"], tenant=row["tenant"])
        rated = await self._ratings(row)
        return {**_told(row, wrong_hit), "state": "ask", "rated": bool(rated) and rated[0]["score"] == 0.0,
                "can_undo": await self._wrong.can_undo(row["tenant"], request_id)}  # fmt: skip

    async def take_back(self, request_id: str, at_ms: int | None = None) -> dict[str, Any]:
        """Take the hit back, and return what was done."""
        row, hit = await self._hit_of(request_id, at_ms)
        rated = await self._ratings(row)
        done = await self._wrong.take_back(
            hit,
            surface=row["surface"],
            tenant=row["tenant"],
            request_id=request_id,
            rated=bool(rated) and rated[0]["score"] == 0.0,
        )
        gone = "it was gone already" if done.entry is None else f"removed with {len(done.entry.copies)} copies"
        log.info("request %s: entry %s of %s was marked wrong in the console; %s",
                 request_id, hit.entry_id, row["surface"], gone)  # fmt: skip
        return {**_told(row, done), "state": "done"}

    async def undo(self, request_id: str, at_ms: int | None = None) -> dict[str, Any]:
        """Undo it, and return what came back."""
        row, hit = await self._hit_of(request_id, at_ms)
        ratings = await self._ratings(row)
        others = [rating["score"] for rating in ratings if rating["comment"] not in (COMMENT, UNDONE)]
        score = None if others and others[0] == 0.0 else others[0] if others else 1.0
        back = await self._wrong.undo(
            hit, surface=row["surface"], tenant=row["tenant"], request_id=request_id, score=score
        )
        if back is None:
            minutes = UNDO_S // 60
            raise NotMarked(
                f"This cannot be undone: it was not done in the last {minutes} minutes, or is undone already."
            )
        log.info("request %s: the removal of entry %s of %s was undone; %d entries are back",
                 request_id, hit.entry_id, row["surface"], back)  # fmt: skip
        wrong_hit = await self._wrong.look(hit, surface=row["surface"], tenant=row["tenant"])
        return {**_told(row, wrong_hit), "state": "undone", "back": back, "score_now": score}

    async def _hit_of(self, request_id: str, at_ms: int | None) -> tuple[dict[str, Any], ServedHit]:
        rows = await self._archive.by_id(_HIT, request_id, at_ms)
        hit = ServedHit.of(orjson.loads(rows[0]["hops"])) if rows else None
        if hit is None:
            why = "It was not answered from the cache." if rows else "It is not recorded here; it may be too old."
            raise NotMarked(f"Request {request_id!r} has no hit that could be taken back. {why}")
        return rows[0], hit

    async def _ratings(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the ratings of a request, the latest first."""
        return await self._archive.ask(
            "SELECT score, comment FROM feedback_all WHERE request_id = $id AND tenant = $tenant "
            "ORDER BY entry_ms DESC, entry_seq DESC",
            {"id": row["request_id"], "tenant": row["tenant"]},
        )


def _told(row: Mapping[str, Any], hit: WrongHit) -> dict[str, Any]:
    """Return what there is to say of a wrong hit, before or after it is taken back."""
    entry, figures = hit.entry, None if hit.risk is None else hit.risk.figures
    asked = orjson.loads(row["hops"])[0]["attributes"]
    return {
        "request_id": row["request_id"],
        "entry_ms": row["entry_ms"],
        "surface": row["surface"],
        "owner": hit.owner,
        "entry": hit.hit.entry_id,
        "there": entry is not None,
        "copies": 0 if entry is None else len(entry.copies),
        "copy_of": None if entry is None else entry.entry.origin[:ID_CHARS] or None,
        "created_s": hit.hit.created_at,
        "expires_s": None if entry is None else entry.entry.expires_at,
        "score": hit.hit.score,
        "threshold": None if figures is None else figures.threshold,
        "max_error": None if figures is None else figures.max_error,
        "held_back": hit.held_back,
        "asked": asked.get(names.PROMPT),
        "answer": asked.get(names.ANSWER),
        "undo_minutes": UNDO_S // 60,
    }
