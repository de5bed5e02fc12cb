"""Turn the errors of a cascade that failed (BackendError) into the error that its client gets (ApiError)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.backends.base import (
    BackendError,
    BadStatus,
    ContextExceeded,
    InvalidReply,
    Refusal,
    Saturated,
    TimedOut,
    Truncated,
    Unreachable,
)
from gateway.dialects.native import client_path
from gateway.errors import (
    ApiError,
    Headers,
    InvalidRequest,
    Overloaded,
    PassedThrough,
    RateLimited,
    RequestTooLarge,
    UpstreamFailed,
    UpstreamTimeout,
    retry_after,
)
from routing.features import field_needing

if TYPE_CHECKING:
    from gateway.dialects.native import Native
    from gateway.tiers import Tier
    from routing.decide import NoTierError

_NO_RETRY: Headers = ((b"x-should-retry", b"false"),)
_BUSY = "Every model that could answer is busy."
_OUT_OF_QUOTA = (
    "The gateway's account with the model's provider is out of quota or credit. Trying again does not help: "
    "whoever runs the gateway has to raise its limit or pay."
)
_REFUSED: Mapping[Refusal, str] = {
    "key": "The model's endpoint refused the gateway's own key.",
    "quota": _OUT_OF_QUOTA,
    "model": "The provider has no such model (any more): whoever runs the gateway has to name another.",
}
_TOO_LONG = "The request is longer than any model of this surface can hold; shorten the messages or lower max_tokens."
_SERVERS = 500
"""The first status that says that a server is at fault."""
_WORD = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")


def no_tier(error: NoTierError, tiers: Iterable[Tier], body: Mapping[str, Any], native: Native | None) -> ApiError:
    """Return the error of a request with this body for which no attempt could be made.

    If no tier could ever take it, the error names what asks for too much. Else it is the error of the call that ejected
    an endpoint; of several tiers, the last and strongest decides.
    """
    param = client_path(native, field_needing(error.lacking, body)) if error.lacking else None
    if not error.capable:
        named = param or client_path(native, "messages")
        return InvalidRequest(_sentence(str(error)), code="unsupported_value", param=named)
    tiers = tuple(tiers)
    pauses = [pause for tier in tiers if (pause := tier.pause_s()) is not None]
    ejections = [out for tier in tiers for endpoint in tier.endpoints if (out := endpoint.breaker.ejection) is not None]
    if pauses:
        asked = next((out.status for out in reversed(ejections) if out.cause == "pause"), 429)
        return _pause(min(pauses), overloaded=asked != 429)
    for out in reversed(ejections):
        if out.refusal:
            return _refused(out.refusal, out.status)
    return UpstreamFailed(_sentence(str(error)), code="upstream_unreachable", param=param, headers=_NO_RETRY)


def exhausted(errors: Sequence[BackendError], *, timed_out: bool, full_s: float = 0.0) -> ApiError:
    """Return the error after attempts without an answer; `errors` are theirs in order, and the last one decides.

    A lasting error (a refused key, no quota) decides only if all are such, because otherwise a retry may succeed.
    `full_s`: no attempt was made, because the wait in the queue alone would have taken this many seconds.
    """
    if full_s and not errors:
        return Overloaded(_BUSY, headers=retry_after(full_s))
    # A model that could hold the request, and accepts our key, may answer next time: its error decides, if there is
    # one.
    holding = [error for error in errors if not isinstance(error, ContextExceeded)]
    passing = [error for error in holding if not (isinstance(error, BadStatus) and error.refusal)]
    error = (passing or holding or errors)[-1] if errors else None
    if timed_out:
        return UpstreamTimeout("The deadline passed before an answer was there.", code="deadline_exceeded")
    if isinstance(error, Saturated):
        waits = [one.retry_after_s for one in errors if isinstance(one, Saturated) and one.retry_after_s is not None]
        return Overloaded(_BUSY, headers=retry_after(min(waits, default=1.0)))
    if isinstance(error, TimedOut):
        return UpstreamTimeout("No model answered in time.")
    if isinstance(error, BadStatus) and error.asks_for_pause and not error.refusal:
        pauses = [error for error in passing if isinstance(error, BadStatus) and error.asks_for_pause]
        waits = [1.0 if pause.retry_after_s is None else pause.retry_after_s for pause in pauses]
        return _pause(min(waits), overloaded=error.status != 429)
    if isinstance(error, BadStatus):
        return _status(error)
    if isinstance(error, Unreachable):
        return UpstreamFailed("No model could be reached.", code="upstream_unreachable")
    if isinstance(error, InvalidReply | Truncated):
        return UpstreamFailed("No model gave a valid answer.", code="upstream_invalid_response")
    return UpstreamFailed("No model gave an answer.")


def _pause(seconds: float, *, overloaded: bool) -> ApiError:
    """Return the error when every backend asks for a pause: 503 if they answered with 503, else 429."""
    if overloaded:
        return Overloaded(_BUSY, headers=retry_after(seconds))
    return RateLimited("Every model that could answer asks for a pause.", headers=retry_after(seconds))


def _refused(refusal: Refusal, status: int) -> ApiError:
    """Return the error of a lasting refusal: it makes SDKs not retry, and gives no time for a retry."""
    if refusal == "quota" and status == 429:
        return RateLimited(_OUT_OF_QUOTA, code="insufficient_quota", headers=_NO_RETRY)
    # Key and model are the gateway's: with a 401 or 404 the client would look for the fault in its own.
    return UpstreamFailed(_REFUSED[refusal], headers=_NO_RETRY)


def _status(error: BadStatus) -> ApiError:
    told, words = error.told, error.told.get("message") or f"The model refused the request (status {error.status})."
    code, param = _word(told.get("code")), _word(told.get("param"))
    if isinstance(error, ContextExceeded):
        # The backend's own message has its token count and limit; clients check the code.
        return InvalidRequest(told.get("message") or _TOO_LONG, code=ContextExceeded.error_type, param="messages")
    if error.about_the_request:
        # What no tier can is the client's to change, whatever status a server has for it.
        status = error.status if error.status < _SERVERS else InvalidRequest.status
        kind = _word(told.get("type")) if error.status < _SERVERS else None
        return PassedThrough(status, words, kind or "invalid_request_error", param, code)
    if error.refusal:
        return _refused(error.refusal, error.status)
    if error.blame == "content":
        return InvalidRequest(words, code=code or "content_filter", param=param)
    if error.blame != "unfit":
        return UpstreamFailed(f"The model's endpoint answered with status {error.status}.")
    # The endpoint does not take the request, though others may; a retry would end the same.
    if error.status == 413:
        return RequestTooLarge(words)
    return (RateLimited if error.status == 429 else UpstreamFailed)(words, headers=_NO_RETRY)


def _word(value: object) -> str | None:
    """Return a code, a type or the path of a parameter as text; None for a longer text, which may quote the prompt."""
    text = value if isinstance(value, str) else ""
    return text if _WORD.fullmatch(text) else None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
