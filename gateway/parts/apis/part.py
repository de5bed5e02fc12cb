"""Provide the seams `client_api` and `client_errors` (`gateway.seams`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.errors import ApiError
from gateway.http.messages import MESSAGES
from gateway.parts.apis.clients import Clients
from gateway.parts.apis.dialects.messages.client import MessagesClient, names_version
from gateway.parts.apis.routes.completions import TextCompletions
from gateway.parts.apis.routes.messages import Messages
from gateway.parts.apis.routes.response_socket import ResponseSockets
from gateway.parts.apis.routes.responses import PATHS, ResponsesEndpoint
from gateway.steps import Core, ServedPaths

if TYPE_CHECKING:
    import asyncio

    from fastapi import APIRouter

    from gateway.steps import AsgiApp, Described, Steps


class ServedClients(Clients):
    """What one worker has for clients of these APIs, with the endpoints: a `gateway.steps.ClientApi`."""

    def serve(self, steps: Steps) -> ServedPaths:
        """Return what answers the paths of these APIs with a worker's steps."""
        to_responses = ResponsesEndpoint(steps, self)
        posts: dict[str, AsgiApp] = {
            "/v1/completions": TextCompletions(steps),
            **dict.fromkeys(PATHS, to_responses),
            "/v1/responses/compact": ResponsesEndpoint(steps, self, compacts=True),
            "/v1/messages": Messages(steps),
        }
        sockets = dict.fromkeys(PATHS, ResponseSockets(steps, to_responses))
        return ServedPaths(posts, None, sockets, _web_socket)

    def routes(self) -> tuple[Sequence[APIRouter], Sequence[Described]]:
        """Return the cold routes, and what describes the others. Imports FastAPI."""
        from gateway.parts.apis.openapi import described_routes
        from gateway.parts.apis.routes import conversations, kept_responses, models, token_counts

        routers = (token_counts.router, kept_responses.router, conversations.router, models.router)
        return routers, described_routes()


def _web_socket(**of: Any) -> asyncio.Protocol:
    """Return the protocol of a connection that is one of WebSockets now; most gateways never import it."""
    from gateway.parts.apis.web_socket import WebSocketProtocol

    return WebSocketProtocol(**of)


def build_client_api(core: Core) -> ServedClients:
    """Return what answers a worker's clients, which is not started."""
    return ServedClients(core)


def error_body(error: ApiError, scope: Any, request_id: str) -> bytes | None:
    """Return the body of an error as Anthropic's clients know it; None for other clients."""
    if scope["path"].startswith(MESSAGES) or names_version(scope["headers"]):
        return MessagesClient({}, request_id).error(error)
    return None
