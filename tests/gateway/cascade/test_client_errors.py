"""The error that a client gets for the errors of a cascade that failed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.backends.base import (
    BackendError,
    BadStatus,
    ContextExceeded,
    FieldRefused,
    InvalidReply,
    RetriesSpent,
    Saturated,
    TimedOut,
    Truncated,
    Unreachable,
)
from gateway.cascade.client_errors import exhausted, no_tier
from routing.decide import NoTierError


def replied(
    status: int, retry_after_s: float | None = None, of: type[BadStatus] = BadStatus, **error: Any
) -> BadStatus:
    """An error reply of a backend."""
    return of(status, json.dumps({"error": {"message": "Its words.", **error}}).encode(), retry_after_s)


KEY = replied(401, code="invalid_api_key")
QUOTA = replied(429, code="insufficient_quota")
PAUSE, OVERLOADED = replied(429, 7.0), replied(503, 3.0)
FAILED = replied(500)
TOO_LONG = replied(400, of=ContextExceeded, code="context_length_exceeded")


@pytest.mark.parametrize(
    ("errors", "status", "code"),
    [
        ([Unreachable("gone")], 502, "upstream_unreachable"),
        ([TimedOut("late")], 504, "upstream_timeout"),
        ([InvalidReply("odd")], 502, "upstream_invalid_response"),
        ([Truncated("cut")], 502, "upstream_invalid_response"),
        ([RetriesSpent("enough")], 502, "upstream_http_error"),
        ([FAILED], 502, "upstream_http_error"),
        ([Saturated("full", 4.0)], 503, "server_is_overloaded"),
        ([PAUSE], 429, "rate_limit_exceeded"),
        ([OVERLOADED], 503, "server_is_overloaded"),
        ([QUOTA], 429, "insufficient_quota"),
        ([KEY], 502, "upstream_http_error"),
        ([TOO_LONG], 400, "context_length_exceeded"),
        ([replied(400, code="invalid_value", param="temperature")], 400, "invalid_value"),
        ([replied(400, of=FieldRefused, param="tools")], 400, None),
    ],
)
def test_one_error_becomes_its_own(errors: list[BackendError], status: int, code: str | None) -> None:
    """Each kind of error of a backend has one status and one code for the client."""
    error = exhausted(errors, timed_out=False)
    assert (error.status, error.code) == (status, code)


@pytest.mark.parametrize(
    ("errors", "status", "code"),
    [
        ([Unreachable("gone"), FAILED], 502, "upstream_http_error"),  # the last one
        ([FAILED, KEY], 502, "upstream_http_error"),
        ([TimedOut("late"), QUOTA], 504, "upstream_timeout"),  # a retry may succeed at the first
        ([FAILED, TOO_LONG], 502, "upstream_http_error"),  # a model that could hold it may answer next time
        ([KEY, TOO_LONG], 502, "upstream_http_error"),
        ([QUOTA, QUOTA], 429, "insufficient_quota"),
    ],
)
def test_of_several_errors_one_that_may_pass_decides(errors: list[BackendError], status: int, code: str) -> None:
    """A refused key, a spent quota and a request that is too long decide only where nothing else was in the way."""
    error = exhausted(errors, timed_out=False)
    assert (error.status, error.code) == (status, code)


@pytest.mark.parametrize(
    ("errors", "seconds"),
    [
        ([PAUSE, replied(429, 2.0)], b"2"),  # the shortest pause
        ([replied(429)], b"1"),
        ([Saturated("full"), Saturated("full", 5.0)], b"5"),
        ([replied(503, 600.0)], b"60"),  # the most that SDKs obey
    ],
)
def test_a_pause_says_how_long(errors: list[BackendError], seconds: bytes) -> None:
    """`Retry-After` is the shortest of the waits, in whole seconds from 1 to 60."""
    assert dict(exhausted(errors, timed_out=False).headers)[b"retry-after"] == seconds


@pytest.mark.parametrize("errors", [[KEY], [QUOTA], [replied(404, code="model_not_found")]])
def test_a_lasting_refusal_is_not_retried(errors: Sequence[BackendError]) -> None:
    """SDKs are told not to try again, and the provider's words about our key stay here."""
    error = exhausted(errors, timed_out=False)
    assert dict(error.headers) == {b"x-should-retry": b"false"}
    assert "Its words" not in error.message


def test_the_deadline_and_the_queue_come_first() -> None:
    """A passed deadline is a 504 whatever failed; a wait longer than the request has is a 503 with its length."""
    assert exhausted([FAILED], timed_out=True).code == "deadline_exceeded"
    full = exhausted([], timed_out=False, full_s=8.2)
    assert (full.status, dict(full.headers)) == (503, {b"retry-after": b"9"})


def test_a_word_of_the_provider_that_may_quote_the_prompt_is_left_out() -> None:
    """Its code and parameter are passed on as short words, its message whole."""
    error = exhausted([replied(400, code="my secret question", param="messages[0].content")], timed_out=False)
    assert (error.code, error.param, error.message) == (None, "messages[0].content", "Its words.")


def test_what_no_tier_can_do_names_the_field() -> None:
    """A request that asks for too much is a 400 for the field that does; one that only waits is a 502."""
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]}
    never = no_tier(NoTierError("no tier can use tools", capable=False, lacking="tools"), (), body, None)
    assert (never.status, never.code, never.param) == (400, "unsupported_value", "tools")
    assert never.message == "No tier can use tools."
    now = no_tier(NoTierError("all tiers are down", capable=True), (), body, None)
    assert (now.status, now.code) == (502, "upstream_unreachable")
