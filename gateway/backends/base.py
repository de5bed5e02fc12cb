"""Define the interface of backends and their transports, and the errors of a backend call.

    BackendError
    ├── Unreachable         refused, no such host, TLS, reset before an answer       retryable
    ├── TimedOut            no connection, or no first byte, in time                  retryable
    │   ├── BudgetSpent     the request's time limit for this call ran out             retryable
    │   └── DeadlinePassed  the request's own deadline passed during its stream
    ├── Saturated           every endpoint of the tier is full                        retryable
    ├── RetriesSpent        too many retries have failed lately                       retryable
    ├── BadStatus           an HTTP status that is not 200
    │     the caller's fault                                                          passed on
    │     any other, by the table in `gateway.backends.blame`                         retryable
    │   ├── ContextExceeded the model cannot hold the request                         with a lower limit of the reply;
    │   │                                                                              the next tier may
    │   ├── OutputRefused   the model writes no reply that long                       with a lower limit; the next may
    │   └── FieldRefused    the model lacks what a field asks for                     the next tier may
    ├── InvalidReply        not what the dialect says: not JSON, no choices, HTML     retryable
    ├── Truncated           a stream that broke before its end                        retryable before the commit
    └── Degenerate          a stream that repeats itself, found after the commit

Foreign exceptions are mapped here once, by the transports; nothing above sees httptools' or httpx2's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import orjson

from gateway.backends.blame import Blame, blame_for, told_in
from gateway.backends.server_forms import lengths_in
from gateway.dialects.told_lengths import Lengths
from policies.value_type import from_fields, value_type

if TYPE_CHECKING:
    from gateway.backends.server_forms import PromptCacheAsk
    from gateway.chat.usage import Usage
    from gateway.dialects.native import Native

Refusal = Literal["", "key", "quota", "model"]
_REFUSALS: Final[Mapping[Blame, Refusal]] = {"key": "key", "account": "quota", "model": "model"}
_OF_ONE_REQUEST: Final = frozenset({"request", "unknown", "content", "unfit"})
_CALLERS: Final = frozenset({"request", "unknown"})
_NOT_TAKEN: Final = frozenset({400, 422, 500, 501})
"""Statuses of a server or model that cannot do what a request asks for."""


class BackendError(Exception):
    """A call that gave no usable answer. `error_type` is its name in spans, metrics and error codes."""

    error_type = "upstream_error"


class Unreachable(BackendError):
    """No connection, or a connection lost before an answer."""

    error_type = "upstream_unreachable"


class TimedOut(BackendError):
    """No connection, first byte or next chunk within its time limit."""

    error_type = "upstream_timeout"


class BudgetSpent(TimedOut):
    """The request's time limit for this call ran out, `waited_s` seconds after the call began."""

    def __init__(self, waited_s: float) -> None:
        super().__init__("no answer within the call's time limit")
        self.waited_s = waited_s


class DeadlinePassed(TimedOut):
    """The request's deadline passed while the backend was still streaming."""

    error_type = "deadline_exceeded"


class Saturated(BackendError):
    """No endpoint of the tier may be called now: all are full, paused or ejected.

    `retry_after_s` is the estimated number of seconds until one may be called; None if unknown.
    """

    error_type = "saturated"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RetriesSpent(BackendError):
    """The call was not made: too many of the tier's retries failed lately, so another would only add load."""

    error_type = "retries_spent"


class InvalidReply(BackendError):
    """A reply that does not follow the dialect."""

    error_type = "upstream_invalid_response"


class Truncated(BackendError):
    """A stream that broke off before its answer was complete."""

    error_type = "upstream_truncated"


class Degenerate(BackendError):
    """A stream that repeats the same words endlessly. The model is at fault, not the endpoint."""

    error_type = "repetition"


class BadStatus(BackendError):
    """An HTTP status other than 200, or an error that stands for one.

    `body` is the start of the reply; `retry_after_s` its Retry-After, if any.
    """

    error_type = "upstream_http_error"
    always: Blame | None = None
    """Whose fault it is, whatever the reply says."""

    def __init__(self, status: int, body: bytes = b"", retry_after_s: float | None = None) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s
        self.told = told_in(body)
        """What the reply says, as OpenAI's error object; empty if it says nothing."""
        self.blame: Blame = self.always or blame_for(status, body, self.told, waits=retry_after_s is not None)
        """Whose fault it is, by the table in `gateway.backends.blame`."""

    def with_param(self, param: str) -> BadStatus:
        """Return the error with another name of the field that it is about."""
        return type(self)(self.status, orjson.dumps({"error": {**self.told, "param": param}}), self.retry_after_s)

    @property
    def refusal(self) -> Refusal:
        """What of the gateway's own is refused: its `key`, its account's `quota`, the configured `model`; else ''."""
        return _REFUSALS.get(self.blame, "")

    @property
    def asks_for_pause(self) -> bool:
        """Whether the backend asks us to call again later."""
        return self.blame == "pause"

    @property
    def about_the_request(self) -> bool:
        """Whether the error's `param` is a field of the request."""
        return self.callers_fault or self.cannot

    @property
    def cannot(self) -> bool:
        """Whether the server or its model cannot do what the request asks for, which another may."""
        return self.blame == "unfit" and self.status in _NOT_TAKEN

    @property
    def callers_fault(self) -> bool:
        """Whether the request itself is at fault, as far as this endpoint can tell: see `unknown` in `blame`."""
        return self.blame in _CALLERS

    @property
    def about_one_request(self) -> bool:
        """Whether the error says something about this request alone, and nothing about the endpoint."""
        return self.blame in _OF_ONE_REQUEST


class FieldRefused(BadStatus):
    """Raised when the model refuses a field that changes the answer, such as `tools`; another model may take it."""

    always = "unfit"

    @property
    def about_the_request(self) -> bool:
        """True: the error is about the request's fields, not the endpoint's health."""
        return True


class LengthRefused(BadStatus):
    """The reply's token limit, alone or with the prompt, exceeds the model's; `lengths` are those in the error."""

    always = "unfit"

    def __init__(self, status: int, body: bytes = b"", retry_after_s: float | None = None) -> None:
        super().__init__(status, body, retry_after_s)
        self.lengths: Lengths = lengths_in(body)


class ContextExceeded(LengthRefused):
    """The prompt, or prompt and reply together, exceed the model's context length; another's may be longer."""

    error_type = "context_length_exceeded"


class OutputRefused(LengthRefused):
    """The model writes no reply as long as the request allows; another may, and this one with a lower limit."""


@value_type
class BackendRequest:
    """Hold the request to a backend: the body to send, and what the gateway needs beyond what the client asked for.

    `alternatives` is the number of alternatives per token to request with the log-probabilities, some 40 bytes each. A
    `large` body is serialised off the event loop (`gateway.off_loop`).
    """

    body: Mapping[str, Any]
    ask_logprobs: bool
    traceparent: str = ""
    tracestate: str = ""
    alternatives: int = 1
    large: bool = False
    native: Native | None = None
    """The own form of a request that was translated to `body`, for a backend of its dialect."""
    headers: Mapping[str, str] | None = None
    """Headers of this request alone, beside those that every request to the backend has."""
    prompt_cache: PromptCacheAsk | None = None
    """What it asks of the provider's prompt cache."""
    conversation: str = ""
    """Name of the conversation, its tenant's alone, whose reasoning is remembered; '' where there are no tools."""
    held: bool = False
    """Whether a stream is of no use without log-probabilities: where these are refused of it, it is asked for whole."""

    @property
    def asks_alternatives(self) -> bool:
        """Whether the gateway or its client asks for alternatives beside each token's log-probability."""
        return self.ask_logprobs or bool(self.body.get("top_logprobs"))


class Completion(NamedTuple):
    """A whole answer: its bytes as received, and parsed (an object with a non-empty `choices`).

    `sound` is false if something in it was wrong and has been corrected.
    """

    raw: bytes
    value: dict[str, Any]
    sound: bool = True
    dropped: tuple[str, ...] = ()
    """Paths of the client's fields that the backend could not be sent, such as `stop`."""
    usage: Usage | None = None
    """What `usage_of` returns for `value`, where the backend has read it already."""


class Event(NamedTuple):
    """One event of a stream: the JSON text after `data: `, and the chunk parsed from it."""

    data: bytes
    value: dict[str, Any]


event_of: Final = from_fields(Event)

ALIVE: Final = [Event(b"", {"choices": []})]
"""What a stream gives where a backend has sent comments or pings alone: it lives, and there is nothing to pass on."""


class EventStream(Protocol):
    """An open stream. A cancelled `read()` loses nothing and may be called again."""

    dropped: tuple[str, ...]
    """Paths of the client's fields that the backend could not be sent, such as `stop`."""

    async def read(self) -> list[Event]:
        """Return the next events, at least one, or ALIVE itself; an empty list at the end. Raises BackendError."""

    @property
    def done_seen(self) -> bool:
        """Whether the final `[DONE]` event has come."""

    def offer(self, take: Callable[[Event], bool]) -> None:
        """Have each event that comes alone while `read` waits, and is text and nothing else, offered to `take` first.

        Where that returns False, `read` returns the event. A stream may offer none.
        """

    def close(self) -> None:
        """End the call now. The connection is kept only if the reply was read to its end."""


class Backend(Protocol):
    """One model endpoint, called in its own dialect."""

    async def complete(self, request: BackendRequest) -> Completion:
        """Return the whole answer; raises BackendError."""

    async def stream(self, request: BackendRequest) -> EventStream:
        """Return the answer as a stream once the response headers have come; raises BackendError."""

    def rekey(self, key: str | None) -> None:
        """Send another key from now on, None for none."""

    async def aclose(self) -> None: ...


class Response(Protocol):
    """An HTTP response whose headers have been received."""

    status: int

    def header(self, name: str) -> str | None: ...

    async def read(self) -> bytes:
        """Return the whole body. Raises BackendError; InvalidReply if the body exceeds the transport's `max_reply`."""

    async def chunk(self) -> bytes:
        """Return the next bytes, b'' at the end. A cancelled call loses nothing. Raises BackendError."""

    def close(self, *, end_is_due: bool = False) -> None:
        """Return the connection to the pool if the body was read to its end; close it otherwise.

        With `end_is_due` only the end of the body is missing: wait for it briefly in the background, so that the
        connection (and its TLS session) can be used again.
        """


ERROR_BODY: Final = 64 << 10
"""Most bytes that are read of an error's body."""
_ERROR_BODY_S: Final = 1.0


async def whole_body(chunk: Callable[[], Awaitable[bytes]]) -> bytes:
    """Return all that `chunk` returns, up to its b''."""
    parts: list[bytes] = []
    while part := await chunk():
        parts.append(part)
    return b"".join(parts)


async def error_start(response: Response) -> bytes:
    """Return the start of an error body, or less if it does not arrive: the status matters more."""
    body = b""
    with contextlib.suppress(BackendError, TimeoutError):
        async with asyncio.timeout(_ERROR_BODY_S):
            while len(body) < ERROR_BODY and (part := await response.chunk()):
                body += part
    return body[:ERROR_BODY]


Payload = bytes | Sequence[bytes]
"""The body of a request; a large one in pieces."""


def in_one_piece(payload: Payload) -> bytes:
    """Return a body in one piece."""
    return payload if isinstance(payload, bytes) else b"".join(payload)


class Transport(Protocol):
    """Send POST requests to the URL of one backend."""

    def send(
        self, headers: Mapping[str, str], body: Payload, traceparent: str = "", tracestate: str = ""
    ) -> Coroutine[Any, Any, Response]:
        """Return the response, its body unread; raises BackendError.

        `headers` is the same unchanged mapping at every call, so that it can be encoded once; `traceparent` is the
        value of that header, '' to leave it out, and `tracestate` that of the header which goes with it.

        If a reused connection ends before the response head, the server had closed it while idle: the call is repeated
        once on a new connection. On a new connection this is a failure.
        """

    async def aclose(self) -> None: ...


MakeTransport = Callable[[str], Transport]
"""Makes a transport for calls to a path, which follows the backend's base URL."""


class Identity(Protocol):
    """Sign requests as an account of a cloud, in place of a key, with credentials that it renews by itself."""

    failure: str
    """Why the last renewal failed, or is needed; '' if neither."""

    def tried(self) -> object | None:
        """Fetch credentials now, blocking, and return them; None if that failed, for the reason in `failure`."""

    def renew(self) -> object:
        """Renew the credentials in time, from now until `aclose`."""

    async def signed(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the headers to send with a request. Raises BadStatus where there are no credentials."""

    def signing(self, transport: Transport, url: str) -> Transport:
        """Return a transport that signs each request to `url` before `transport` sends it."""

    def refused(self) -> None:
        """Fetch new credentials for later requests, as a server has refused the present ones."""

    def without_secrets(self, body: bytes) -> bytes:
        """Return an error's body without what it may quote of the credentials."""

    async def aclose(self) -> None: ...


DRAIN_S: Final = 0.1
"""Longest wait in seconds for the end of a reply whose answer is already complete."""
_draining: set[asyncio.Task[None]] = set()


def drain(to_end: Coroutine[Any, Any, None], otherwise: Callable[[], None] | None) -> None:
    """Run `to_end` in the background for at most DRAIN_S seconds; call `otherwise` if it does not finish."""
    task = asyncio.create_task(_drain(to_end, otherwise))
    # The event loop holds tasks weakly; this set keeps them until they are done.
    _draining.add(task)
    task.add_done_callback(_draining.discard)
    task.add_done_callback(lambda _: to_end.close())  # a task that is cancelled before it begins does not await it


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
    """Return a description of the first standard-library error in the chain of `error`'s causes, or `otherwise`.

    Texts of HTTP libraries are never used, because they quote certificates, addresses and headers.
    """
    cause: BaseException | None = error
    while cause is not None:
        for kind, words in _WORDS:
            if isinstance(cause, kind):
                return words
        cause = cause.__cause__
    return otherwise
