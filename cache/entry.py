"""What the cache keeps, and what it gives back: an entry is not a hit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["hit", "miss", "bypass", "error", "timeout", "open"]
Kind = Literal["exact", "semantic"]


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A finished answer, offered for keeping. `completion` is what a client that asked for no stream would get."""

    completion: Mapping[str, Any]
    tier: str
    backend: str
    model: str
    confidence: float | None = None
    cost_usd: float | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    """How fast it came, where it was streamed: what a paced replay goes by."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A kept answer. `body` is the completion as JSON; times are seconds since 1970; `question` is what it answers.

    `similarity` is set where the answer was another question's, and a semantic hit put it under this key too; `score`
    is then that hit's, and `origin` that other entry's id. `tags` name the sources it was drawn from, each with the
    version it then had.
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

    `score`: how surely another question's answer was right for this one; None for an answer to this very question.
    """

    kind: Kind
    entry: CacheEntry
    entry_id: str
    age_s: float
    similarity: float | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """How one lookup ended. `reason` says why there is no hit; `neighbour` (an entry id), `question` (its text, which a
    span may not show), `similarity` and `score` are the nearest entry's; a score is None where a veto spoke.
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
    """Whether an answer was kept, and if not, why not."""

    stored: bool
    reason: str = ""
