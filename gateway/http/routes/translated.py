"""Endpoints in other dialects than chat completions, which run through the same pipeline, as raw ASGI endpoints."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from gateway.http.exchange import Exchange
from gateway.request.body import ChatBodies

if TYPE_CHECKING:
    from gateway.dialects.client import ClientDialect
    from gateway.steps import Steps


class TranslatedEndpoint:
    """Answer the requests of one dialect with one worker's steps; `dialect` returns a new translator per request.

    `dialect` is called with the request's headers, by lower-case name.
    """

    def __init__(self, steps: Steps, dialect: Callable[[dict[bytes, bytes]], ClientDialect]) -> None:
        self._steps = steps
        self._bodies = ChatBodies(steps.deployment.limits)
        self._dialect = dialect

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request."""
        dialect = self._dialect(dict(scope["headers"]))
        return Exchange(self._steps, self._bodies, scope, receive, send, dialect).run()
