"""Serve `POST /v1/feedback`: a client rates an answer that it got.

    {"request_id": "req_...", "score": 0..1}   or   {"request_id": "req_...", "correct": true | false}

An optional `comment` has at most 500 characters and is stored only if the config records prompts. A tenant, and a team
within one, can rate only its own requests whose records are still stored; of several ratings of a request the last
counts. A score below 0.5 for an answer from the cache removes that entry. If it was the stored answer to another
question, whoever shares answers with the sender gets on that surface, for a while, only such answers as have a higher
score than this one had (see `cache.semantic.hit_bound`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field, model_validator
from starlette.requests import Request

from cache.store.base import StoreUnavailable
from gateway.caller import Caller
from gateway.errors import InvalidRequest, NotFound, Overloaded, retry_after
from gateway.http.api_route import Body, BodyRoute, CallerOf, Served
from gateway.parts.measures import reader
from gateway.parts.measures.feedback import Feedback, ServedHit, append
from gateway.seams import remove_wrong
from gateway.steps import Steps

_MAX_COMMENT: Final = 500
_MAX_ID: Final = 128
_LOOKUPS: Final = 2
_MAX_WAITING: Final = 64
_WRONG: Final = 0.5

router: Final = APIRouter(tags=["The gateway"], route_class=BodyRoute)


class FeedbackRequest(Body):
    """A rating: of a request's answer, either a score or whether it was right."""

    typed, nulls = True, True
    unknown = "Unknown key {0!r}; feedback has {1}."

    request_id: str = Field(min_length=1, max_length=_MAX_ID, description="A reply's x-request-id.")
    score: float | None = Field(None, ge=0, le=1)
    correct: bool | None = None
    comment: str | None = Field(None, max_length=_MAX_COMMENT)

    @model_validator(mode="after")
    def _one_rating(self) -> FeedbackRequest:
        if self.score is None and self.correct is None:
            raise InvalidRequest(
                "Missing required parameter: 'score'.", code="missing_required_parameter", param="score"
            )
        if self.score is not None and self.correct is not None:
            raise InvalidRequest("Give either score or correct, not both.", code="unsupported_value", param="correct")
        return self

    @property
    def rating(self) -> float:
        """The score, 0 to 1."""
        return float(bool(self.correct)) if self.score is None else self.score


class FeedbackStored(BaseModel):
    """What was stored. `cache_entry_removed`: the id of the answer that is no longer in the cache."""

    object: Literal["feedback"] = "feedback"
    request_id: str
    score: float
    cache_entry_removed: str | None = None


class Turns:
    """Limit concurrent lookups of records to two, and 64 waiting: an unknown id is searched in all, 40 MB of reading.

    Entering raises Overloaded when too many wait.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_LOOKUPS)
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._waiting >= _MAX_WAITING:
            raise Overloaded("Too much feedback is waiting. Send it again in a moment.", headers=retry_after(5))
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


@router.post("/v1/feedback", response_model_exclude_none=True)
async def feedback(request: Request, steps: Served, caller: CallerOf, body: FeedbackRequest) -> FeedbackStored:
    """Say whether an answer was right."""
    state = request.app.state
    if not hasattr(state, "feedback_turns"):
        state.feedback_turns = Turns()
    turns: Turns = state.feedback_turns
    async with turns:
        stored, removed = await _store(steps, caller, body)
    return FeedbackStored(request_id=stored.request_id, score=stored.score, cache_entry_removed=removed or None)


async def _store(steps: Steps, caller: Caller, body: FeedbackRequest) -> tuple[Feedback, str]:
    """Store the feedback; return it, and the id of the cache entry removed because of it, or ''.

    Raises NotFound for an unknown request and Overloaded if the store does not answer.
    """
    settings = steps.deployment.telemetry
    try:
        blob = await reader.find(steps.store, body.request_id, partial(_is_of, caller.owner))
        if blob is None:
            raise NotFound(
                f"No stored request of yours has the id {body.request_id!r}; the id is a reply's x-request-id.",
                code="request_not_found",
                param="request_id",
            )
        record = orjson.loads(blob)
        surface = record["ledger"]["surface"]
        comment = body.comment if settings.captures(surface.partition("/")[0]) else None
        if comment:
            comment = await steps.telemetry.redacted(comment)
        feedback = Feedback(body.request_id, caller.tenant, surface, body.rating, comment, time.time())
        await steps.store.apply([append(feedback, settings.keep)])
        removed = await _removed(steps, record, body.request_id, caller) if body.rating < _WRONG else ""
    except StoreUnavailable as down:
        raise Overloaded(
            f"Feedback cannot be stored now: the store does not answer ({down.reason}).", headers=retry_after(5)
        ) from None
    return feedback, removed


def _is_of(owner: str, ledger: Mapping[str, Any]) -> bool:
    """Return whether a recorded request is an owner's own; records of older versions name neither team nor key."""
    return Caller(ledger["tenant"], ledger.get("team", ""), ledger.get("key", "")).owner == owner


async def _removed(steps: Steps, record: Mapping[str, Any], request_id: str, caller: Caller) -> str:
    """Remove the cache entry that the request was answered with; return its id, '' if it was not from the cache."""
    hit = ServedHit.of(record["hops"])
    if hit is None:
        return ""
    surface = record["ledger"]["surface"]
    policy = steps.policies.current.by_surface.get(surface)
    if policy is not None and hit.score is not None:
        steps.cache.complain(policy, caller.owner, request_id, hit.score)
    owners = steps.cache.scopes.owners(caller.tenant)
    return await remove_wrong(steps.store, hit.entry_id, surface, owners, hit.created_at)
