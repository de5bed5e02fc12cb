"""Define what the cache stores and what a lookup returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["hit", "miss", "bypass", "error", "timeout", "open"]
Kind = Literal["exact", "semantic"]


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A finished answer to be stored. `completion` is the response to a client that does not stream."""

    completion: Mapping[str, Any]
    tier: str
    backend: str
    model: str
    confidence: float | None = None
    cost_usd: float | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    """Speed of a streamed answer, in tokens per second: a paced replay has the same."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A stored answer. `body` is the completion as JSON; times are seconds since 1970; `question` is its user text.

    `similarity` is set on a copy that a semantic hit stored under another question's key; `score` is then that hit's
    and `origin` the id of the original entry. `tags` are the sources of the answer, each with its version at the time.
    """

    body: bytes
    tier: str
    backend: str
    model: str
    surface: str
    policy: str
    confidence: float | None
    created_at: float
    expires_at: float
    question: str
    cost_usd: float | None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    similarity: float | None = None
    score: float | None = None
    origin: str = ""
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that answers this request, and how it was found. `entry_id` is short hex, for headers and spans.

    `score`: confidence that another question's answer fits this one; None for an answer to exactly this request.
    """

    kind: Kind
    entry: CacheEntry
    entry_id: str
    age_s: float
    similarity: float | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of one lookup. `reason` says why there is no hit.

    `neighbour` (an entry id), `question` (its text, which must not be put on spans), `similarity` and `score` are those
    of the nearest entry; `score` is None where a veto applied.
    """

    outcome: Outcome
    hit: Hit | None = None
    reason: str = ""
    neighbour: str | None = None
    question: str | None = None
    similarity: float | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """Whether an answer was stored, and if not, why not."""

    stored: bool
    reason: str = ""
