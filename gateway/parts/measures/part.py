"""Provide the route by which clients rate answers, and the figures of requests: see `gateway.seams`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.parts.measures.feedback import Key, feedback_by_request
from gateway.parts.measures.request_figures import RequestFigures

if TYPE_CHECKING:
    from fastapi import APIRouter

    from cache.store.base import Store
    from gateway.steps import Core
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace


async def feedback_lines(store: Store) -> dict[Key, str]:
    """Return the latest feedback on each request that has any."""
    return {key: feedback.line for key, feedback in (await feedback_by_request(store)).items()}


def public_routers() -> list[APIRouter]:
    """Return the route of feedback."""
    from gateway.parts.measures.feedback_route import router  # FastAPI is slow to import, and most workers need none

    return [router]


def build_figures(core: Core) -> Callable[[Trace, Ledger], None]:
    """Return what completes the records of a worker's requests."""
    return RequestFigures(core.policies, core.tiers).complete
