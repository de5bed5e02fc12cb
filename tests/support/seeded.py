"""Random requests and replies of any kind, each made of a number, so that both ends of a proxy know what is right."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

JSON: Final = "application/json"
_TYPES: Final = (
    JSON,
    "application/jsonl",
    "application/octet-stream",
    "audio/mpeg",
    "image/png",
    "multipart/form-data; boundary=x",
    "text/event-stream",
    "text/plain; charset=utf-8",
)
_PLAIN: Final = "abcdefghijklmnopqrstuvwxyz0123456789_-.~"
_QUERIES: Final = ("", "limit=2", "a=b&a=c", "q=%20%C3%A9%2F..%2F", "empty=&x", "after=file-1&order=desc")


@dataclass(frozen=True)
class SeededExchange:
    """One request and its reply. The parts of a body are its pieces as they are written."""

    seed: int
    method: str
    path: str
    """With the query."""
    content_type: str
    parts: tuple[bytes, ...]
    announced: bool
    """Whether the request says how long its body is, or is chunked."""
    reply_type: str
    reply_parts: tuple[bytes, ...]
    reply_announced: bool

    @property
    def body(self) -> bytes:
        """The request's body."""
        return b"".join(self.parts)

    @property
    def reply(self) -> bytes:
        """The reply's body."""
        return b"".join(self.reply_parts)


def seeded(seed: int) -> SeededExchange:
    """Return the exchange of a number."""
    rng = random.Random(seed)
    method = rng.choice(("GET", "POST", "POST", "POST", "DELETE"))
    name = "".join(rng.choices(_PLAIN, k=rng.randrange(12)))
    query = rng.choice(_QUERIES)
    content_type, parts = rng.choice(_TYPES), _parts(rng) if method == "POST" else ()
    if content_type == JSON and parts:
        # A gateway that may rename models reads JSON whole, and must leave all of it as it is written.
        number = rng.choice(("1.0", "1e3", "-0", "123456789012"))
        text = f'{{ "x":{number},\n "model" : "m{seed}", "text": "\\u00e9 é {name}" }}'.encode()
        parts = (text[:9], text[9:])
    path = f"/v1/files/seed-{seed}/n{name}" + (f"?{query}" if query else "")
    return SeededExchange(
        seed,
        method,
        path,
        content_type,
        parts,
        rng.random() < 0.5,
        rng.choice(_TYPES),
        _parts(rng),
        rng.random() < 0.5,
    )


def _parts(rng: random.Random) -> tuple[bytes, ...]:
    """Return random bytes in pieces: mostly a few small ones, at times many of one byte, or large ones."""
    kind = rng.random()
    if kind < 0.1:
        return tuple(rng.randbytes(1) for _ in range(rng.randrange(1, 40)))
    largest = 150_000 if kind < 0.2 else 2_000
    return tuple(rng.randbytes(rng.randrange(1, largest)) for _ in range(rng.randrange(1, 6)))
