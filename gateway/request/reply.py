"""Represent a reply as a value, whether from a backend, the cache, or an identical request in flight.

REPLY_HEADERS is the one list of the headers that replies have; the OpenAPI document is made of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from cache.write import PendingWrite

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """What a header of a reply says.

    `text` describes it; empty for what belongs to HTTP. `at`: the operations whose replies may have it, all of them,
    those that answer or pass on, one of the two, or errors. `known`: when its value is known where a stream's head is
    sent early: then, in the stream's last comment with the others that were late, or with the answer's cost.
    """

    text: str = ""
    at: Literal["all", "calls", "answers", "passed", "errors"] = "answers"
    known: Literal["early", "late", "last"] = "last"


REPLY_HEADERS: Final[Mapping[bytes, ReplyHeader]] = {
    b"x-request-id": ReplyHeader("The request's id, for traces and feedback.", "all", "early"),
    b"request-id": ReplyHeader("The same, as Anthropic's clients read it."),
    b"openai-processing-ms": ReplyHeader("Milliseconds from the request to the reply's head.", "all", "early"),
    b"x-tierline-overhead-ms": ReplyHeader("Time spent in the gateway.", "all"),
    b"x-tierline-attempts": ReplyHeader("Backend calls made.", "all"),
    b"x-tierline-cost-usd": ReplyHeader("Cost of the calls in US dollars, or unknown.", "all"),
    b"x-tierline-surface": ReplyHeader("The surface.", "calls", "early"),
    b"x-tierline-policy": ReplyHeader("The surface and the beginning of its policy's hash.", "calls", "early"),
    b"x-tierline-path": ReplyHeader("How the answer came about.", "calls", "late"),
    b"x-tierline-tier": ReplyHeader("The tier that gave the answer.", "calls", "late"),
    b"x-tierline-model": ReplyHeader("The model that gave the answer.", "calls", "late"),
    b"x-tierline-difficulty": ReplyHeader("The classifier's score of the request, 0 to 1.", known="late"),
    b"x-tierline-confidence": ReplyHeader("The confidence of the answer, 0 to 1.", known="late"),
    b"x-tierline-similarity": ReplyHeader("Of a semantic hit: cosine of the two questions.", known="late"),
    b"x-tierline-coalesced": ReplyHeader("1 where the answer was shared with an equal request.", known="late"),
    b"x-tierline-cache-entry": ReplyHeader("Of a hit: the id of the stored answer."),
    b"age": ReplyHeader("Of a hit: age of the stored answer in seconds."),
    b"x-tierline-dropped": ReplyHeader("Fields that the answering backend was not sent.", known="late"),
    b"x-tierline-output-limit": ReplyHeader(
        "Most tokens of the answer, where that is not the client's own limit.", known="late"
    ),
    b"x-tierline-estimated": ReplyHeader("1 where tokens were estimated, without the model's tokenizer."),
    b"x-tierline-reason": ReplyHeader("With x-tierline-debug: 1, why each step went as it did.", "calls"),
    b"server-timing": ReplyHeader("Milliseconds of each step.", "calls"),
    b"retry-after": ReplyHeader("Seconds to wait, 1 to 60.", "errors"),
    b"x-should-retry": ReplyHeader("false where another try will not help.", "errors"),
    b"allow": ReplyHeader("The methods of the URL.", "errors"),
    b"cache-control": ReplyHeader("no-cache with a stream of events.", "calls"),
    b"x-accel-buffering": ReplyHeader("no with a stream of events: nginx then does not hold it back.", "calls"),
    b"accept-ranges": ReplyHeader("The service's own.", "passed"),
    b"content-disposition": ReplyHeader("The service's own.", "passed"),
    b"content-range": ReplyHeader("The service's own.", "passed"),
    b"etag": ReplyHeader("The service's own.", "passed"),
    b"last-modified": ReplyHeader("The service's own.", "passed"),
    b"openai-version": ReplyHeader("The service's own.", "passed"),
    b"connection": ReplyHeader(at="errors"),
    b"content-length": ReplyHeader(at="all"),
    b"content-type": ReplyHeader(at="all"),
    b"upgrade": ReplyHeader(at="errors"),
}


class Source(Protocol):
    """Source of a stream's events. `end` is `done`, or the reason why the stream ended early."""

    end: str

    def close(self) -> None:
        """End the source; safe to call twice."""


class SharedAnswer(Protocol):
    """An answer that other workers read from its flight until it is in the store."""

    lease: str
    """Key of the lease under which the answer was made, '' if there is none: the write deletes it."""

    def stored(self, *, written: bool) -> None:
        """Release the answer, once; `written`: it is in the store, and its lease deleted."""


class AnswerEnd:
    """Announce the end of a shared answer, which may come after its own client has left, as others read it too."""

    __slots__ = ("_then", "over", "shared", "write")

    def __init__(self) -> None:
        self.over = False
        self.write: PendingWrite | None = None
        self.shared: SharedAnswer | None = None
        self._then: Callable[[], None] | None = None

    def end(self, write: PendingWrite | None, shared: SharedAnswer | None = None) -> None:
        """End the answer, once: `write` is its cache write, if any, and `shared` is to be released after that."""
        self.over, self.write, self.shared = True, write, shared
        if self._then is not None:
            self._then()

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the answer ends."""
        self._then = callback


@dataclass(slots=True)
class Reply:
    """An answer ready to send: `body`, or `events` for a stream. `write` is the cache write of a complete answer."""

    body: bytes = b""
    events: AsyncGenerator[bytes] | None = None
    write: PendingWrite | None = None
    extra: tuple[Header, ...] = ()
    stream: Source | None = None
    """The source of the events, if they are still being made; it must be closed however the reply goes."""
    shared_end: AnswerEnd | None = None
    """Set if other requests read this answer too; its `write` is known at that end, not at this reply's."""

    def is_whole(self) -> bool:
        """Return whether the answer is complete; for a stream, as far as this reply has read it."""
        return self.stream is None or self.stream.end == "done"


STILL_ALIVE: Final = b": the model is at work\n"
"""A comment in a stream of events, for a client that has heard nothing for QUIET_S: with one newline, as openai-python
takes a blank line for the end of an event."""
_SIGNS: Final = (b"event: ping\n", b"event: response.in_progress\n")
"""How the events begin by which Anthropic's API and the Responses API show it (`StreamWriter.alive`)."""
QUIET_S: Final = 2.0
"""Time in seconds without a word to a client after which it is shown that the stream lives, if the backend says so."""


def is_sign_of_life(event: bytes) -> bool:
    """Return whether an encoded event only shows that the stream lives: a comment, or what an API has for that."""
    return (event.startswith(b":") and b"\ndata: " not in event) or event.startswith(_SIGNS)


def is_error(event: bytes) -> bool:
    """Return whether an encoded event of a stream is an error; no chunk begins with that key."""
    return event.startswith(b'data: {"error":')
