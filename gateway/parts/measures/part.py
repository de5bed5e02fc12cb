"""Provide the route by which clients rate answers: see `gateway.seams`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import APIRouter


def public_routers() -> list[APIRouter]:
    """Return the route of feedback."""
    from gateway.parts.measures.feedback_route import router  # FastAPI is slow to import, and most workers need none

    return [router]
