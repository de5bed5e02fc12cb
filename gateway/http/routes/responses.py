"""Serve `POST /v1/responses` through the pipeline. What clients ask of kept responses: see `kept_responses`."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from gateway.dialects.responses.client import Lifetime, ResponsesClient
from gateway.http.exchange import Exchange
from gateway.request.body import ChatBodies
from gateway.request.options import TIER_PREFIX, known_headers
from policies.loader import AUTO

if TYPE_CHECKING:
    from gateway.steps import Steps

PATHS: Final = ("/v1/responses", "/responses")


class ResponsesEndpoint:
    """Answer `POST /v1/responses` with one worker's steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._bodies = ChatBodies(steps.deployment.limits)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request."""
        dialect = client_of(self._steps, known_headers(scope["headers"]))
        return ResponsesExchange(self._steps, self._bodies, scope, receive, send, dialect).run()


class ResponsesExchange(Exchange):
    """One request and its reply, and what it holds meanwhile."""

    def __init__(
        self, steps: Steps, bodies: ChatBodies, scope: Any, receive: Any, send: Any, dialect: ResponsesClient
    ) -> None:
        super().__init__(steps, bodies, scope, receive, send, dialect)
        self._response = dialect

    def close(self) -> None:
        """See `Exchange.close`."""
        self._response.close()
        super().close()


def client_of(steps: Steps, headers: dict[bytes, bytes]) -> ResponsesClient:
    """Return the dialect of one request's client."""
    surface = headers.get(b"x-tierline-surface")

    def lifetime(model: str) -> Lifetime | None:
        """Return how long responses of a surface are kept, which is known before its policy is applied."""
        name = AUTO if model.startswith(TIER_PREFIX) else model
        policy = steps.policies.current.resolve(name, None if surface is None else surface.decode("latin-1"))
        if policy is None:
            return None
        return Lifetime(policy.state.responses if steps.kept_responses.configured else 0.0, policy.slo.deadline)

    backends = [backend for tier in steps.deployment.tiers for backend in tier.backends]
    hosted = any(one.kind == "responses" and "hosted_tools" in one.capabilities for one in backends)
    messages = steps.deployment.limits.messages
    hides = steps.deployment.shares_backends
    return ResponsesClient(
        steps.kept_responses,
        lifetime,
        conversations=steps.conversations,
        messages=messages,
        hosted=hosted,
        hides_cache=hides,
    )
