"""`POST /v1/messages`: Anthropic's Messages API, through the pipeline of chats."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from gateway.http.messages import request_id_of
from gateway.parts.apis.dialects.messages.client import MessagesClient
from gateway.parts.apis.translated_exchange import TranslatedExchange
from gateway.request.body import ChatBodies
from gateway.request.options import known_headers

if TYPE_CHECKING:
    from gateway.steps import Steps

_REQUEST_ID = b"x-request-id"


class Messages:
    """Answer messages with one worker's steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._bodies = ChatBodies(steps.deployment.limits)
        backends = [backend for tier in steps.deployment.tiers for backend in tier.backends]
        speaking = [backend.can for backend in backends if backend.kind == "anthropic" and backend.configured]
        self._offered: frozenset[str] = frozenset().union(*speaking)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request."""
        scope, request_id = _identified(scope)
        unshared = self._steps.deployment.unshared
        dialect = MessagesClient(dict(scope["headers"]), request_id, self._offered, unshared=unshared)
        named = _named(send, request_id)
        return _MessagesExchange(self._steps, self._bodies, scope, receive, named, dialect).run()


class _MessagesExchange(TranslatedExchange):
    dialect_of_limits = "anthropic"


def _identified(scope: Any) -> tuple[Any, str]:
    """Return the scope with a request id in its headers, and that id: errors in the dialect name it in their body."""
    request_id = request_id_of(known_headers(scope["headers"]))
    headers = [(name, value) for name, value in scope["headers"] if name != _REQUEST_ID]
    return {**scope, "headers": [*headers, (_REQUEST_ID, request_id.encode("latin-1"))]}, request_id


def _named(send: Any, request_id: str) -> Any:
    """Return `send`, with the request id in the header that Anthropic's SDKs read."""
    header = (b"request-id", request_id.encode("latin-1"))

    def named(message: Any) -> Any:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], header]}
        return send(message)

    return named
