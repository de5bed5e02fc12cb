"""What the gateway asks of a model endpoint, and the ways in which one can fail.

    BackendError
    ├── Unreachable         refused, no such host, TLS, reset before an answer       retryable
    ├── TimedOut            no connection, or no first byte, in time                  retryable
    │   ├── BudgetSpent     the time that the request gave this call ran out          retryable
    │   └── DeadlinePassed  the request's own deadline passed during its stream
    ├── Saturated           every endpoint of the tier carries all it may             retryable
    ├── RetriesSpent        too many retries have failed lately                       retryable
    ├── BadStatus           an HTTP status that is not 200
    │     429, 5xx, 401, 402, 403, 408, 409, 425                                      retryable
    │     any 4xx whose code says that our account is out of quota                    retryable
    │     any other 4xx: the caller's fault                                           passed on
    │   └── ContextExceeded the model cannot hold the request                         the next tier may
    ├── InvalidReply        not what the dialect says: not JSON, no choices, HTML     retryable
    ├── Truncated           a stream that broke before its end                        retryable before the commit
    └── Degenerate          a stream that goes round in circles, seen after the commit

Foreign exceptions are mapped here once, by the transports; nothing above sees httptools', aiohttp's or httpx2's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import orjson

from policies.value_type import value_type

_RETRYABLE_4XX: Final = frozenset({401, 402, 403, 408, 409, 425, 429})
_OUT_OF_QUOTA: Final = frozenset(
    {
        "insufficient_quota",  # OpenAI and most that follow it
        "billing_not_active",
        "billing_hard_limit_reached",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "billing_error",  # Anthropic
        "blocked_api_access",  # Groq: the spend limit, as a 400
        "exceeded_current_quota_error",  # Moonshot
    }
)
"""Codes and types of errors that last until somebody pays or raises a limit, whatever the status beside them."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

Refusal = Literal["", "key", "quota"]


class BackendError(Exception):
    """A call that gave no usable answer. `error_type` is the word for spans, metrics and error codes."""

    error_type = "upstream_error"


class Unreachable(BackendError):
    """No connection, or a connection lost before an answer."""

    error_type = "upstream_unreachable"


class TimedOut(BackendError):
    """Nothing came in time."""

    error_type = "upstream_timeout"


class BudgetSpent(TimedOut):
    """The time that the request could give this call ran out, `waited_s` seconds after it began."""

    def __init__(self, waited_s: float) -> None:
        super().__init__("no answer within the call's time limit")
        self.waited_s = waited_s


class DeadlinePassed(TimedOut):
    """The request's own deadline passed while its stream went on."""

    error_type = "deadline_exceeded"


class Saturated(BackendError):
    """No endpoint of the tier may take another call now. `retry_after_s` is when one may, as far as can be told."""

    error_type = "saturated"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RetriesSpent(BackendError):
    """Not called: of the tier's retries too many have failed lately, and one more would only add to the load."""

    error_type = "retries_spent"


class InvalidReply(BackendError):
    """An answer that the dialect does not allow."""

    error_type = "upstream_invalid_response"


class Truncated(BackendError):
    """A stream that ended before its answer did."""

    error_type = "upstream_truncated"


class Degenerate(BackendError):
    """A stream that says the same words over and over: the model's failing, not the endpoint's."""

    error_type = "repetition"


class BadStatus(BackendError):
    """A status other than 200. `body` is the start of the reply; `retry_after_s` is what it asked for, if it did."""

    error_type = "upstream_http_error"

    def __init__(self, status: int, body: bytes = b"", retry_after_s: float | None = None) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s
        self.told = _error_object(body)
        """The error object of the reply; empty where there is none."""

    @property
    def refusal(self) -> Refusal:
        """What of ours it refuses, until somebody acts: our "key", or our account for being out of "quota"."""
        codes = {code for code in (self.told.get("code"), self.told.get("type")) if isinstance(code, str)}
        if self.status == 402 or (400 <= self.status < 500 and codes & _OUT_OF_QUOTA):
            return "quota"
        return "key" if self.status in (401, 403) else ""

    @property
    def asks_for_pause(self) -> bool:
        """Whether it names a time after which to try again, or would if it kept to the rules (429)."""
        return self.status == 429 or (self.status in (503, 529) and self.retry_after_s is not None)

    @property
    def callers_fault(self) -> bool:
        """Whether another endpoint would say the same of this request."""
        return 400 <= self.status < 500 and self.status not in _RETRYABLE_4XX and not self.refusal


def _error_object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body.removeprefix(BYTE_ORDER_MARK))
    except orjson.JSONDecodeError:
        return {}
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}


class ContextExceeded(BadStatus):
    """The prompt, or the prompt and the reply it asks for, is longer than the model can hold."""

    error_type = "context_length_exceeded"

    @property
    def callers_fault(self) -> bool:
        """No: a model that holds more may take it."""
        return False


@value_type
class BackendRequest:
    """Hold what a backend is asked: the effective body, and what the gateway wants beyond what the client asked.

    `alternatives` is how many alternatives of each token come with the log-probabilities; each costs some 40 bytes.
    A `large` body is to be serialised off the loop (`gateway.off_loop`).
    """

    body: Mapping[str, Any]
    ask_logprobs: bool
    traceparent: str = ""
    alternatives: int = 1
    large: bool = False


@value_type
class Completion:
    """A whole answer: its bytes as received and as parsed (an object with a non-empty `choices`).

    Not `sound`: something in it was wrong, and has been put right.
    """

    raw: bytes
    value: dict[str, Any]
    sound: bool = True


@dataclass(slots=True)
class Event:
    """One event of a stream: the JSON text after `data: `, and the chunk it holds."""

    data: bytes
    value: dict[str, Any] = field(default_factory=dict)


class EventStream(Protocol):
    """An open stream. `read()` may be cancelled and called again; nothing is lost."""

    async def read(self) -> list[Event]:
        """Return the next events, at least one; an empty list at the end. Raises BackendError."""

    @property
    def done_seen(self) -> bool:
        """Whether the terminal `[DONE]` came."""

    def close(self) -> None:
        """End the call now. The connection is kept only if the reply was read to its end."""


class Backend(Protocol):
    """One model endpoint."""

    async def complete(self, request: BackendRequest) -> Completion:
        """Return the whole answer; raises BackendError."""

    async def stream(self, request: BackendRequest) -> EventStream:
        """Return the answer as a stream, once its headers are here; raises BackendError."""

    async def aclose(self) -> None: ...


class Response(Protocol):
    """An HTTP response whose headers are here."""

    status: int

    def header(self, name: str) -> str | None: ...

    async def read(self) -> bytes:
        """Return the whole body; raises BackendError, InvalidReply when it is larger than the transport allows."""

    async def chunk(self) -> bytes:
        """Return the next bytes as they come, b"" at the end. A cancelled call loses nothing. Raises BackendError."""

    def close(self, *, end_is_due: bool = False) -> None:
        """Give the connection back if the body was read, and drop it otherwise.

        With `end_is_due` only the end of the body is missing: it is awaited for a moment, in the background, so that
        the connection (and its TLS) can be used again.
        """


class Transport(Protocol):
    """One method: a POST to the backend's endpoint."""

    async def send(self, headers: Mapping[str, str], body: bytes, traceparent: str = "") -> Response:
        """Return the response, its body unread; raises BackendError.

        `headers` is the same mapping at every call, unchanged, so that it can be encoded once; `traceparent` is the
        header of that name, left out where it is empty.

        A connection that was used before, and ends before the head of this response, was stale: the call is made once
        more, on a new one. On a new connection such an end is a failure.
        """

    async def aclose(self) -> None: ...


DRAIN_S: Final = 0.1
"""Longest wait in seconds for the end of a reply whose answer is already complete."""
_draining: set[asyncio.Task[None]] = set()


def drain(to_end: Coroutine[Any, Any, None], otherwise: Callable[[], None] | None) -> None:
    """Run `to_end` in the background, for at most DRAIN_S; call `otherwise` if the end does not come."""
    task = asyncio.create_task(_drain(to_end, otherwise))
    # The event loop holds tasks weakly; this set keeps them until they are done.
    _draining.add(task)
    task.add_done_callback(_draining.discard)


async def _drain(to_end: Coroutine[Any, Any, None], otherwise: Callable[[], None] | None) -> None:
    try:
        async with asyncio.timeout(DRAIN_S):
            await to_end
    except (TimeoutError, BackendError):
        if otherwise is not None:
            otherwise()


_WORDS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ssl.SSLCertVerificationError, "its TLS certificate is not valid"),
    (ssl.SSLError, "no TLS connection could be made"),
    (socket.gaierror, "its host name was not found"),
    (ConnectionRefusedError, "the connection was refused"),
    (ConnectionResetError, "the connection was reset"),
)


def in_words(error: BaseException, otherwise: str) -> str:
    """Return words for the first error of the standard library among `error` and its causes, or `otherwise`.

    None of the libraries' own texts is used: those quote certificates, addresses and headers.
    """
    cause: BaseException | None = error
    while cause is not None:
        for kind, words in _WORDS:
            if isinstance(cause, kind):
                return words
        cause = cause.__cause__
    return otherwise
