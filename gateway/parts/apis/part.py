"""Provide the seams `client_api` and `client_errors` (`gateway.seams`)."""

from __future__ import annotations

from typing import Any

from gateway.errors import ApiError
from gateway.http.messages import MESSAGES
from gateway.parts.apis.clients import Clients
from gateway.parts.apis.dialects.messages.client import MessagesClient, names_version
from gateway.seams import ClientApiNeeds


def build_client_api(needs: ClientApiNeeds) -> Clients:
    """Return what answers a worker's clients, which is not started."""
    return Clients(needs)


def error_body(error: ApiError, scope: Any, request_id: str) -> bytes | None:
    """Return the body of an error as Anthropic's clients know it; None for other clients."""
    if scope["path"].startswith(MESSAGES) or names_version(scope["headers"]):
        return MessagesClient({}, request_id).error(error)
    return None
