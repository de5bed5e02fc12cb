"""Define the errors that clients get, each with its status, type and code, and encode OpenAI's error envelope.

    ApiError
    ├── InvalidRequest         400  invalid_request_error   the body or a header is not what the API takes
    ├── Unauthorized           401  invalid_request_error   the key is missing or unknown
    ├── Forbidden              403  permission_error        the key may not do this, or the page or host is another
    ├── NotFound               404  invalid_request_error   no such URL, model or request
    ├── MethodNotAllowed       405  invalid_request_error
    ├── RequestTimeout         408  invalid_request_error   the client stopped sending its body
    ├── Conflict               409  invalid_request_error   what is there does not allow the change, or not now
    ├── RequestTooLarge        413  invalid_request_error
    ├── UnsupportedMediaType   415  invalid_request_error
    ├── UpgradeRequired        426  invalid_request_error   a WebSocket was asked for
    ├── CacheOnlyMiss          504  invalid_request_error   `only-if-cached`, and no stored answer fits
    ├── RateLimited            429  rate_limit_error        every backend asks for a pause, or a sender must
    │   └── LimitReached                     the key, its team, tenant, end user or session is at a limit, for now
    ├── Overloaded             503  service_unavailable_error  the gateway, or every backend, is at its limit
    ├── Draining               503  service_unavailable_error  the process stops before the answer was complete
    ├── UpstreamFailed         502  upstream_error          no backend gave a usable answer
    ├── UpstreamTimeout        504  upstream_error          a backend was too slow, or the deadline passed
    ├── PassedThrough          any  the backend's own       a client error that the backend found
    └── InternalError          500  server_error            a bug in the gateway

Parts have errors of their own below these. Bodies are `{"error": {"message", "type", "param", "code"}}`, always with
all four keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import orjson

Headers = Sequence[tuple[bytes, bytes]]
CLIENT_GONE: Final = 499
"""Status of the record of a request whose client left before it had a reply; nobody gets it."""
_MAX_RETRY_AFTER_S: Final = 60


class ApiError(Exception):
    """An error reply. Subclasses set `status`, `type` and the default `code`; `param` names the field or header."""

    status = 500
    type = "server_error"
    code: str | None = "internal_error"
    refuses = False
    """Whether a limit of the request's own owners, or its own wish, is the reason. So the request counts as refused,
    not as failed, though its status is 429 or 5xx; every other 4xx counts as refused anyway."""
    of_owner = False
    """Whether it is about the money of this request's owners, so that an equal request of another may fare better."""

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, headers: Headers = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = headers
        if code is not None:
            self.code = code

    def body(self) -> bytes:
        """Return the error envelope as JSON."""
        return envelope(self.message, self.type, self.param, self.code)


def envelope(message: str, type_: str, param: str | None, code: str | None) -> bytes:
    """Return the OpenAI API's error envelope as JSON."""
    return orjson.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}})


def stream_error(why: str, code: str) -> bytes:
    """Return the last event of a stream that ends early: the error envelope as one server-sent event."""
    return b"data: " + envelope(f"The answer broke off: {why}.", "upstream_error", None, code) + b"\n\n"


def retry_after(seconds: float) -> Headers:
    """Return a `Retry-After` header of whole seconds from 1 to 60, the range that OpenAI's SDKs obey."""
    return ((b"retry-after", b"%d" % min(_MAX_RETRY_AFTER_S, max(1, math.ceil(seconds)))),)


class InvalidRequest(ApiError):
    """400: codes invalid_json, invalid_utf8, invalid_type, missing_required_parameter, unsupported_value,
    context_length_exceeded.
    """

    status = 400
    type = "invalid_request_error"
    code = "invalid_type"


class Unauthorized(ApiError):
    """401: the key is missing or unknown; both have the same message."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(ApiError):
    """403: codes host_not_allowed, origin_not_allowed, model_not_allowed, files_not_shared, try_not_allowed,
    not_permitted, price_unknown.
    """

    status = 403
    type = "permission_error"
    code = "host_not_allowed"


class NotFound(ApiError):
    """404: unknown_url, or `NAME_not_found` for what is not there, or kept no more.

    NAME is model, surface, version, request, response, item, conversation, entry, job, key or team.
    """

    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class MethodNotAllowed(ApiError):
    """405, with an `Allow` header."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_supported"


class UpgradeRequired(ApiError):
    """426: the URL does not speak the protocol that was asked for; clients of WebSockets then send plain requests."""

    status = 426
    type = "invalid_request_error"
    code = "upgrade_required"


class RequestTimeout(ApiError):
    """408; the connection is closed, because the rest of the body was not read."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class Conflict(ApiError):
    """409: codes policy_conflict, policies_from_files, job_running, conversation_locked, key_conflict, no_store,
    not_permitted, unsupported_value.
    """

    status = 409
    type = "invalid_request_error"
    code = "policy_conflict"


class RequestTooLarge(ApiError):
    """413; the connection is closed, because the rest of the body was not read."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class UnsupportedMediaType(ApiError):
    """415: the body is not JSON, or has a content encoding."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class CacheOnlyMiss(ApiError):
    """504: `only-if-cached` was requested and no stored answer fits; the status is RFC 9111's (5.2.1.7)."""

    status = 504
    type = "invalid_request_error"
    code = "not_cached"
    refuses = True


class RateLimited(ApiError):
    """429: every backend that could answer asks for a pause.

    Further codes are insufficient_quota (our account at the provider is spent), too_many_wrong_keys and
    too_many_background_responses.
    """

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class LimitReached(RateLimited):
    """429, with a `Retry-After` header: an owner of the request is at a limit, or others hold what is left of a budget.

    The codes are rate_limit_exceeded, also for a key whose bodies or WebSockets are as many as it may have, and
    budget_in_use.
    """

    refuses = True


class Overloaded(ApiError):
    """503, with a `Retry-After` header: the gateway, or every backend that could answer, is at its limit.

    Other codes name what does not answer just now: keys_unavailable, limits_unavailable, state_unavailable (the store)
    and issuer_unavailable.
    """

    status = 503
    type = "service_unavailable_error"
    code = "server_is_overloaded"


class Draining(ApiError):
    """503: the process stops, and the time for requests in progress to finish (`limits.finish`) is over."""

    status = 503
    type = "service_unavailable_error"
    code = "draining"


class UpstreamFailed(ApiError):
    """502: codes upstream_unreachable, upstream_http_error, upstream_invalid_response."""

    status = 502
    type = "upstream_error"
    code = "upstream_http_error"


class UpstreamTimeout(ApiError):
    """504: codes upstream_timeout, deadline_exceeded."""

    status = 504
    type = "upstream_error"
    code = "upstream_timeout"


class PassedThrough(ApiError):
    """A backend's client error, passed on with its own status and message in the OpenAI envelope."""

    def __init__(self, status: int, message: str, type_: str, param: str | None, code: str | None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.type = type_
        self.code = code


class InternalError(ApiError):
    """500: a bug in the gateway. The message gives no details; the request's trace does."""

    def __init__(self) -> None:
        super().__init__("An internal error occurred in the gateway. It has been recorded under this request id.")
