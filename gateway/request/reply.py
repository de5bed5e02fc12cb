"""Represent a reply as a value, whether from a backend, the cache, or an identical request in flight.

REPLY_HEADERS is the one list of the headers that replies have; the OpenAPI document is made of it.
"""

from __future__ import annotations

import tomllib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
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
    name.encode(): ReplyHeader(**what)
    for name, what in tomllib.loads(Path(__file__).with_name("reply_headers.toml").read_text("utf-8")).items()
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


def is_error_event(event: bytes) -> bool:
    """Return whether an encoded event of a stream is an error; no chunk begins with that key."""
    return event.startswith(b'data: {"error":')
