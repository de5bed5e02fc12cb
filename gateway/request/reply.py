"""A reply as a value, whoever made it: a backend, a stored answer, or another request's flight."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from cache.write import PendingWrite

Header = tuple[bytes, bytes]


class Source(Protocol):
    """Where the events of a reply come from. `end` is `done`, or the word for how it ended or is ended."""

    end: str

    def close(self) -> None:
        """Ends it; safe to call twice."""


@dataclass(slots=True)
class Reply:
    """An answer ready to go out: `body`, or `events` for a stream. `keeping` is what it leaves for the cache."""

    body: bytes = b""
    events: AsyncGenerator[bytes] | None = None
    keeping: PendingWrite | None = None
    extra: tuple[Header, ...] = ()
    stream: Source | None = None
    """Where the events come from, if from something that is still talking: to be closed however the reply goes."""


def is_error(event: bytes) -> bool:
    """Whether this event of a stream is an error: no chunk begins like it."""
    return event.startswith(b'data: {"error":')
