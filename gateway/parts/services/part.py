"""Provide the seam `client_api` (`gateway.seams`) for embeddings and what is passed on."""

from __future__ import annotations

from gateway.parts.services.services import Services
from gateway.steps import Core


def build_client_api(core: Core) -> Services:
    """Return a worker's services, which are not started."""
    return Services(core)
