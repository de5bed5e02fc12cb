"""From how the cascade failed to what the client is told: one place that knows both trees of errors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from gateway.backends.base import BackendError, BadStatus, InvalidReply, Saturated, TimedOut, Truncated, Unreachable
from gateway.errors import (
    ApiError,
    Headers,
    InvalidRequest,
    Overloaded,
    PassedThrough,
    RateLimited,
    UpstreamFailed,
    UpstreamTimeout,
)
from gateway.tiers import Tier
from routing.decide import NoTierError

_NO_RETRY: Headers = ((b"x-should-retry", b"false"),)
_MAX_RETRY_AFTER = 60
_WORD = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")


def no_tier(error: NoTierError, tiers: Iterable[Tier]) -> ApiError:
    """No attempt could be made at all."""
    if not error.capable:
        return InvalidRequest(f"{_sentence(str(error))}", code="unsupported_value", param="messages")
    pauses = [pause for tier in tiers if (pause := tier.pause_s()) is not None]
    if pauses:
        return RateLimited(_sentence(str(error)), headers=retry_after(min(pauses)))
    return UpstreamFailed(_sentence(str(error)), code="upstream_unreachable", headers=_NO_RETRY)


def exhausted(errors: Sequence[BackendError], *, timed_out: bool, full_s: float = 0.0) -> ApiError:
    """Attempts were made, and none gave an answer; `errors` are theirs, in order. The last one decides.

    `full_s`: none was made, for the wait in line alone would have been so long.
    """
    if full_s and not errors:
        return Overloaded("Every model that could answer is busy.", headers=retry_after(full_s))
    error = errors[-1] if errors else None
    if timed_out:
        return UpstreamTimeout("The deadline passed before an answer was there.", code="deadline_exceeded")
    if isinstance(error, Saturated):
        waits = [one.retry_after_s for one in errors if isinstance(one, Saturated) and one.retry_after_s is not None]
        return Overloaded("Every model that could answer is busy.", headers=retry_after(min(waits, default=1.0)))
    if isinstance(error, TimedOut):
        return UpstreamTimeout("No model answered in time.")
    if isinstance(error, BadStatus) and error.status == 429:
        pauses = [_pause_s(error) for error in errors if isinstance(error, BadStatus) and error.status == 429]
        message = "Every model that could answer asks for a pause."
        return RateLimited(message, headers=retry_after(min(pauses)))
    if isinstance(error, BadStatus):
        return _status(error)
    if isinstance(error, Unreachable):
        return UpstreamFailed("No model could be reached.", code="upstream_unreachable")
    if isinstance(error, InvalidReply | Truncated):
        return UpstreamFailed("No model gave a valid answer.", code="upstream_invalid_response")
    return UpstreamFailed("No model gave an answer.")


def _pause_s(error: BadStatus) -> float:
    return 1.0 if error.retry_after_s is None else error.retry_after_s


def retry_after(seconds: float) -> Headers:
    """`Retry-After`, a whole number from 1 to 60: what SDKs take at its word."""
    return ((b"retry-after", b"%d" % min(_MAX_RETRY_AFTER, max(1, math.ceil(seconds)))),)


def _status(error: BadStatus) -> ApiError:
    if error.callers_fault:
        return _passed_through(error)
    if error.status in (401, 402, 403):
        # Our key, not the client's: a 401 would send it looking for a fault of its own.
        return UpstreamFailed("The model's endpoint refused the gateway's own key.", headers=_NO_RETRY)
    return UpstreamFailed(f"The model's endpoint answered with status {error.status}.")


def _passed_through(error: BadStatus) -> ApiError:
    told = _error_object(error.body)
    message = told.get("message")
    return PassedThrough(
        error.status,
        message if isinstance(message, str) and message else f"The model refused the request (status {error.status}).",
        _word(told.get("type")) or "invalid_request_error",
        _word(told.get("param")),
        _word(told.get("code")),
    )


def _error_object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}


def _word(value: object) -> str | None:
    """A code, a type or the path of a parameter, as text; anything longer is prose, and no place to copy it to."""
    text = str(value) if isinstance(value, str | int) else ""
    return text if _WORD.fullmatch(text) else None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
