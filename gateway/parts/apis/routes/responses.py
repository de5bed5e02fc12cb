"""Serve `POST /v1/responses` through the pipeline. What clients ask of kept responses: see `kept_responses`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.http.exchange import ReadRequest
from gateway.http.messages import send_json, start_events
from gateway.parts.apis.dialects.responses.client import Lifetime, ResponsesClient
from gateway.parts.apis.translated_exchange import TranslatedExchange
from gateway.request.body import ChatBodies
from gateway.request.options import TIER_PREFIX, known_headers
from policies.loader import AUTO

if TYPE_CHECKING:
    from gateway.parts.apis.clients import Clients
    from gateway.parts.apis.stores.background import BackgroundRun
    from gateway.request.context import RequestContext
    from gateway.steps import Steps

PATHS: Final = ("/v1/responses", "/responses")
_CLIENTS_LIMITS: Final = (b"x-stainless-timeout", b"x-stainless-read-timeout")
_PATIENCE_S: Final = 5.0
"""How long the client of a stream in the background may leave an event unread; after that it has to come back."""


class ResponsesEndpoint:
    """Answer `POST /v1/responses` with one worker's steps; or `/v1/responses/compact`, if it `compacts`."""

    def __init__(self, steps: Steps, clients: Clients, *, compacts: bool = False) -> None:
        self._steps = steps
        self._clients = clients
        self._compacts = compacts
        self._bodies = ChatBodies(steps.deployment.limits)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request."""
        dialect = dialect_of(self._steps, self._clients, known_headers(scope["headers"]), compacts=self._compacts)
        return ResponsesExchange(self._steps, self._clients, self._bodies, scope, receive, send, dialect).run()

    def answer_message(
        self, scope: Any, receive: Any, send: Any, recent: dict[str, Any], *, counted: bool
    ) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers a message of a WebSocket; `recent`: see `ResponsesClient`.

        `counted`: its owners' limits have counted it, with the handshake.
        """
        dialect = dialect_of(self._steps, self._clients, known_headers(scope["headers"]), recent=recent)
        exchange = ResponsesExchange(self._steps, self._clients, self._bodies, scope, receive, send, dialect)
        exchange.counted = counted
        return exchange.run()


class ResponsesExchange(TranslatedExchange):
    """One request and its reply, and what it holds meanwhile.

    A request with `background: true` has its reply as soon as it is accepted, of status `queued`; the task goes on
    without its client, and what comes of it is kept. A stream of such a request is sent on while its client listens.
    """

    def __init__(
        self,
        steps: Steps,
        clients: Clients,
        bodies: ChatBodies,
        scope: Any,
        receive: Any,
        send: Any,
        dialect: ResponsesClient,
    ) -> None:
        super().__init__(steps, bodies, scope, receive, send, dialect)
        self._background = clients.background
        self._response = dialect
        self._run: BackgroundRun | None = None
        self._to_client = send
        self._listens = False
        """Whether the client of a stream in the background reads it."""

    def close(self) -> None:
        """See `Exchange.close`."""
        self._response.close(failed=bool(self.ledger.error))
        super().close()
        if self._run is not None:
            self._background.end(self._run)

    async def admit(self) -> None:
        """See `BaseExchange.admit`: what is kept is the team's of the key."""
        await super().admit()
        self._response.owner = self.caller.owner

    async def read(self, raw: bytes) -> ReadRequest:
        """See `Exchange.read`."""
        read = await super().read(raw)
        self._prepares = not self._response.generates
        if self._response.compacts:  # of two conversations that are alike, neither's summary is the other's
            self.headers[b"x-tierline-cache"] = b"no-cache, no-store"
        if self._response.background:  # a client's time limit is one for the reply, which it has at once
            for name in _CLIENTS_LIMITS:
                self.headers.pop(name, None)
        return read

    async def _prepare(self, request: RequestContext) -> None:
        self.ledger.surface += "/prewarm"
        self.ledger.status = 200
        await start_events(self.send, self.explained())
        self._started = True
        await self.send({"type": "http.response.body", "body": self._response.prepared()})

    def enter(self, request: RequestContext) -> Awaitable[RequestContext] | None:
        """See `TranslatedExchange.enter`. A request in the background has its reply then."""
        super().enter(request)
        return self._begin(request) if self._response.background else None

    async def _begin(self, request: RequestContext) -> RequestContext:
        client = self._response
        started = client.at("in_progress")
        self._run = run = await self._background.begin(
            request.caller.owner, started, client.given, client.ttl_s, self._cancel
        )
        self.client.detach()
        self.ledger.status = 200
        if request.features.stream:
            first = self.living_stream().begin()
            await self._background.open_events(run, first, request.budget_s())
            self._listens = self._started = self._events_open = True
            await start_events(self._to_client, self.explained())
            await self._to_client({"type": "http.response.body", "body": first, "more_body": True})
        else:
            await send_json(self._to_client, 200, self.explained(), orjson.dumps({**started, "status": "queued"}))
        self.send = self._record
        return request

    async def _record(self, message: Any) -> None:
        """Take what is sent in the client's place."""
        data = message.get("body", b"")
        if self._run is not None and data:
            self._background.publish(self._run, data)
        if self._listens and message["type"] == "http.response.body":
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._to_client(message)
            except TimeoutError:
                self._listens = False

    async def _cancel(self) -> None:
        self._response.cancel()
        if self._events_open and self._writer is not None:
            self._events_open = False
            told = {"message": "The response was cancelled.", "code": "response_cancelled"}
            await self._record({"type": "http.response.body", "body": self._writer.error(told)})
            self._listens = False
        self.client.drop()


def dialect_of(
    steps: Steps,
    clients: Clients,
    headers: dict[bytes, bytes],
    *,
    compacts: bool = False,
    recent: dict[str, Any] | None = None,
) -> ResponsesClient:
    """Return the dialect of one request's client."""
    surface = headers.get(b"x-tierline-surface")

    def lifetime(model: str) -> Lifetime | None:
        """Return how long responses of a surface are kept, which is known before its policy is applied."""
        name = AUTO if model.startswith(TIER_PREFIX) else model
        policy = steps.policies.current.resolve(name, None if surface is None else surface.decode("latin-1"))
        if policy is None:
            return None
        return Lifetime(policy.state.responses if clients.kept_responses.configured else 0.0, policy.slo.deadline)

    backends = [backend for tier in steps.deployment.tiers for backend in tier.backends]
    hosted = any(backend.kind == "responses" and "hosted_tools" in backend.capabilities for backend in backends)
    messages = steps.deployment.limits.messages
    return ResponsesClient(
        clients.kept_responses,
        lifetime,
        conversations=clients.conversations,
        secret=clients.kept_responses.secret,
        compacts=compacts,
        recent=recent,
        messages=messages,
        hosted=hosted,
        unshared=steps.deployment.unshared,
    )
