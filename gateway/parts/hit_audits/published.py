"""Publish what each surface's audits have learned, for processes beside the gateway, and take complaints from them.

One hash of the store has, by surface, the figures of the threshold in force and the stream that they come from, as the
worker that wrote last sees them; workers on one store learn from one stream, so they agree within seconds. Whoever has
no encoder and no verifier, such as the console, cannot name the stream itself: its name covers both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import orjson

from cache.scopes.scope import SCHEMA
from cache.semantic.hit_bound import Complaint, PublishedBound
from cache.store.base import Append, Command, Store
from gateway.parts.hit_audits.control import RiskFigures
from gateway.parts.hit_audits.groups import Batch, GroupFigures, encode_batch

PUBLISHED: Final = f"tierline:{SCHEMA}:risks"
"""Key of the hash."""
LINES: Final = 2_000
"""Batches that a surface's stream retains."""
_ASK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PublishedRisk:
    """The figures of one surface, the stream of its batches, and when they were written (Unix seconds)."""

    surface: str
    stream: str
    at: float
    figures: RiskFigures


def publication(risk: PublishedRisk) -> Command:
    """Return the command that publishes a surface's figures in place of earlier ones."""
    return Command((b"HSET", PUBLISHED.encode(), risk.surface.encode(), orjson.dumps(risk)))


async def read_published(store: Store) -> list[PublishedRisk]:
    """Return what is published, by surface. What another version wrote is left out. Raises StoreUnavailable."""
    (reply,) = await store.ask([Command((b"HGETALL", PUBLISHED.encode()))], _ASK_S)
    values = list(reply.values()) if isinstance(reply, dict) else list(reply)[1::2]
    risks = [risk for value in values if (risk := _decoded(value)) is not None]
    return sorted(risks, key=lambda risk: risk.surface)


async def complain(store: Store, risk: PublishedBound, complaint: Complaint) -> None:
    """Report a wrong hit to every worker; one request's complaints count once. Raises StoreUnavailable."""
    await store.apply([Append(risk.stream, encode_batch(Batch(0, complaints=(complaint,))), LINES)])


async def withdraw(store: Store, risk: PublishedBound, complaint: Complaint) -> None:
    """Tell every worker that a complaint was about no wrong hit. Raises StoreUnavailable."""
    await store.apply([Append(risk.stream, encode_batch(Batch(0, withdrawn=(complaint.request,))), LINES)])


def _decoded(value: bytes) -> PublishedRisk | None:
    try:
        fields = orjson.loads(value)
        figures = fields.pop("figures")
        groups = figures.pop("groups")
        for one in (figures, *groups):
            if one["threshold"] is None:  # JSON has no infinity
                one["threshold"] = math.inf
        known = RiskFigures(**figures, groups=tuple(GroupFigures(**group) for group in groups))
        return PublishedRisk(figures=known, **fields)
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None
