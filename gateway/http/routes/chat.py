"""`POST /v1/chat/completions`, as a raw ASGI endpoint: the hot route (a route of Starlette's own costs more)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from gateway.http.exchange import Exchange
from gateway.request.body import ChatBodies

if TYPE_CHECKING:
    from gateway.steps import Steps


class ChatCompletions:
    """Answer chat completions with one worker's steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._bodies = ChatBodies(steps.deployment.limits)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request; an `async def` here would cost a call for each chunk sent."""
        return Exchange(self._steps, self._bodies, scope, receive, send).run()
