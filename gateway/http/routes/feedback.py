"""Serve `POST /v1/feedback`: a client rates an answer that it got.

    {"request_id": "req_...", "score": 0..1}   or   {"request_id": "req_...", "correct": true | false}

An optional `comment` has at most 500 characters and is stored only if the config records prompts. A tenant can rate
only its own requests whose records are still stored; of several ratings of a request the last counts. A score below 0.5
for an answer from the cache removes that entry. If it was the stored answer to another question, the tenant gets on
that surface, for a while, only such answers as have a higher score than this one had (see `cache.risk.control`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cache.store.base import Append, StoreUnavailable
from gateway.caching.wrong_hits import served_hit
from gateway.errors import CLIENT_GONE, InvalidRequest, NotFound, Overloaded
from gateway.http.messages import read_body
from gateway.request.body import parse_json
from gateway.request.context import ClientGone
from gateway.request.options import known_headers
from gateway.telemetry import reader
from gateway.telemetry.feedback import STREAM, Feedback

if TYPE_CHECKING:
    from gateway.steps import Steps

_MAX_BODY: Final = 4096
_MAX_COMMENT: Final = 500
_MAX_ID: Final = 128
_LOOKUPS: Final = 2
_MAX_WAITING: Final = 64
_WRONG: Final = 0.5
_KEYS: Final = frozenset({"request_id", "score", "correct", "comment"})
_RETRY_AFTER: Final = ((b"retry-after", b"5"),)


@dataclass(frozen=True, slots=True)
class _FeedbackBody:
    request_id: str
    score: float
    comment: str | None


class _Turns:
    """Limit concurrent lookups of records to two, and 64 waiting: an unknown id is searched in all, 40 MB of reading.

    Entering raises Overloaded when too many wait.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_LOOKUPS)
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._waiting >= _MAX_WAITING:
            raise Overloaded("Too much feedback is waiting. Send it again in a moment.", headers=_RETRY_AFTER)
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


def feedback_route() -> Route:
    """Return the feedback route of one worker."""
    turn = _Turns()

    async def feedback(request: Request) -> Response:
        steps: Steps = request.app.state.steps
        headers = known_headers(request.scope["headers"])
        tenant = steps.tenants.of(headers)
        try:
            body = _checked(parse_json(await read_body(request.receive, headers, _MAX_BODY, steps.gate, typed=True)))
        except ClientGone:
            return Response(status_code=CLIENT_GONE)
        async with turn:
            stored, removed = await _store(steps, tenant, body)
        reply = {"object": "feedback", "request_id": stored.request_id, "score": stored.score}
        if removed:
            reply["cache_entry_removed"] = removed
        return Response(orjson.dumps(reply), media_type="application/json")

    return Route("/v1/feedback", feedback, methods=["POST"])


async def _store(steps: Steps, tenant: str, body: _FeedbackBody) -> tuple[Feedback, str]:
    """Store the feedback; return it, and the id of the cache entry removed because of it, or ''.

    Raises NotFound for an unknown request and Overloaded if the store does not answer.
    """
    settings = steps.deployment.telemetry
    try:
        blob = await reader.find(steps.store, body.request_id, tenant)
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
        feedback = Feedback(body.request_id, tenant, surface, body.score, comment, time.time())
        await steps.store.apply([Append(STREAM, feedback.encode(), settings.keep)])
        removed = await _removed(steps, record, body.request_id, tenant) if body.score < _WRONG else ""
    except StoreUnavailable as down:
        raise Overloaded(
            f"Feedback cannot be stored now: the store does not answer ({down.reason}).", headers=_RETRY_AFTER
        ) from None
    return feedback, removed


async def _removed(steps: Steps, record: Mapping[str, Any], request_id: str, tenant: str) -> str:
    """Remove the cache entry that the request was answered with; return its id, '' if it was not from the cache."""
    hit = served_hit(record["hops"])
    if hit is None:
        return ""
    surface = record["ledger"]["surface"]
    policy = steps.policies.current.by_surface.get(surface)
    if policy is not None and hit.score is not None:
        steps.cache.complain(policy, tenant, request_id, hit.score)
    entry = await steps.cache.wrong(hit.entry_id, tenant, surface, hit.created_at)
    return entry.id if entry is not None else ""


def _checked(body: object) -> _FeedbackBody:
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
    if unknown := sorted(body.keys() - _KEYS):
        raise InvalidRequest(
            f"Unknown key {unknown[0]!r}; feedback has {', '.join(sorted(_KEYS))}.",
            code="unsupported_value",
            param=unknown[0],
        )
    request_id = body.get("request_id")
    if request_id is None:
        raise _missing("request_id")
    if not isinstance(request_id, str):
        raise _wrong_type("request_id", "a string")
    if not 0 < len(request_id) <= _MAX_ID:
        raise InvalidRequest(
            f"request_id must have 1 to {_MAX_ID} characters.", code="unsupported_value", param="request_id"
        )
    return _FeedbackBody(request_id, _score(body), _comment(body.get("comment")))


def _score(body: Mapping[str, Any]) -> float:
    score, correct = body.get("score"), body.get("correct")
    if score is None and correct is None:
        raise _missing("score")
    if score is not None and correct is not None:
        raise InvalidRequest("Give either score or correct, not both.", code="unsupported_value", param="correct")
    if score is None:
        if not isinstance(correct, bool):
            raise _wrong_type("correct", "a boolean")
        return float(correct)
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise _wrong_type("score", "a number")
    if not 0 <= score <= 1:
        raise InvalidRequest("score must be from 0 to 1.", code="unsupported_value", param="score")
    return float(score)


def _comment(comment: object) -> str | None:
    if comment is None:
        return None
    if not isinstance(comment, str):
        raise _wrong_type("comment", "a string")
    if len(comment) > _MAX_COMMENT:
        raise InvalidRequest(
            f"comment must have at most {_MAX_COMMENT} characters.", code="unsupported_value", param="comment"
        )
    return comment


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: {param!r}.", code="missing_required_parameter", param=param)


def _wrong_type(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid type for {param!r}: expected {expected}.", code="invalid_type", param=param)
