"""Hold what answers clients of other APIs in one worker: what is kept for them, the services, and the endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.config.key_files import KeyFiles, only_key
from gateway.parts.apis.config import ApiSections, ServiceConfig, services_in
from gateway.parts.apis.policy import Endpoints, endpoints_in
from gateway.parts.apis.routes.completions import TextCompletions
from gateway.parts.apis.routes.embeddings import Embeddings
from gateway.parts.apis.routes.messages import Messages
from gateway.parts.apis.routes.passthrough import OTHER, PassedOn, endpoint_of
from gateway.parts.apis.routes.response_socket import ResponseSockets
from gateway.parts.apis.routes.responses import PATHS, ResponsesEndpoint
from gateway.parts.apis.service import ServiceClient
from gateway.parts.apis.stores.background import BackgroundRuns
from gateway.parts.apis.stores.conversations import Conversations
from gateway.parts.apis.stores.kept_responses import KeptResponses
from gateway.parts.apis.text_encoder import TextEncoder
from gateway.parts.apis.token_counter import TokenCounter
from gateway.seams import ClientApiNeeds, ServedPaths

if TYPE_CHECKING:
    from fastapi import APIRouter
    from fastapi.routing import APIRoute

    from gateway.config.backends import BackendConfig
    from gateway.config.schema import Deployment
    from gateway.seams import AsgiApp
    from gateway.steps import Steps
    from policies.loader import PolicySet


class Clients:
    """What one worker has for clients of these APIs. It implements `gateway.seams.ClientApi`."""

    name = "other APIs"

    def __init__(self, needs: ClientApiNeeds) -> None:
        deployment = needs.deployment
        self._deployment = deployment
        self.kept_responses = KeptResponses(needs.store, needs.secret, needs.quotas["responses"])
        self.conversations = Conversations(self.kept_responses, needs.store)
        self.background = BackgroundRuns(
            self.kept_responses, needs.store, deployment.of(ApiSections).responses.background
        )
        self.services = _services(deployment)
        """The configured services, for what is not a chat."""
        self.counters = _counters(deployment)
        """What counts tokens exactly, by the tiers whose first backend speaks Anthropic's API."""
        self.encoder = TextEncoder(needs.embedder)
        """Encodes the texts of the embeddings API."""

        self._of: PolicySet | None = None
        self._listed: list[Endpoints] = []
        """The endpoints of those policies of `_of` that pass on further paths."""

    def serve(self, steps: Steps) -> ServedPaths:
        """Return what answers the paths of these APIs with a worker's steps."""
        to_responses, passed_on = ResponsesEndpoint(steps, self), PassedOn(steps, self)
        posts: dict[str, AsgiApp] = {
            "/v1/completions": TextCompletions(steps, passed_on),
            "/v1/embeddings": Embeddings(steps, self),
            **dict.fromkeys(PATHS, to_responses),
            "/v1/responses/compact": ResponsesEndpoint(steps, self, compacts=True),
            "/v1/messages": Messages(steps),
        }

        def find(path: str) -> AsgiApp | None:
            if (endpoint := endpoint_of(path)) is not None:
                return partial(passed_on, endpoint)
            return partial(passed_on, OTHER) if self._passes_on(steps.policies.current, path) else None

        return ServedPaths(posts, find, dict.fromkeys(PATHS, ResponseSockets(steps, to_responses)))

    def _passes_on(self, policies: PolicySet, path: str) -> bool:
        """Return whether a policy of any surface has this path, or one above it, among its `endpoints.other`."""
        if policies is not self._of:
            self._of = policies
            self._listed = [listed for each in policies.by_surface.values() if (listed := endpoints_in(each)).other]
        return any(endpoints.other_path(path) is not None for endpoints in self._listed)

    def routes(self) -> tuple[Sequence[APIRouter], Sequence[APIRoute]]:
        """Return the cold routes, and those that describe the others. Imports FastAPI."""
        from gateway.parts.apis.openapi import described_routes
        from gateway.parts.apis.routes import conversations, kept_responses, models, token_counts

        routers = (token_counts.router, kept_responses.router, conversations.router, models.router)
        return routers, described_routes()

    def watch_keys(self, files: KeyFiles) -> None:
        """Have the keys of services and token counters read again when their files change."""
        for name, service in self.services.items():
            if (file := services_in(self._deployment)[name].key_file) is not None:
                service.renewal.look = files.watch([file], 1, only_key(service.rekey))
        first = {tier.name: tier.backends[0] for tier in self._deployment.tiers}
        for name, counter in self.counters.items():
            if (file := first[name].key_file) is not None:
                files.watch([file], 1, only_key(counter.rekey))

    def readiness(self, policies: PolicySet) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Return which services that a policy names cannot be called, and the state of each service."""
        failing = {name: service.identity.failure for name, service in self.services.items() if service.identity}
        lines = [f"service {name}: credentials cannot be renewed: {why}" for name, why in failing.items() if why]
        named = {service for policy in policies.by_surface.values() for _, service in endpoints_in(policy).services()}
        states = {name: config.unconfigured_reason or "ready" for name, config in services_in(self._deployment).items()}
        lines += [f"service {name}: {why}" for name, why in states.items() if name in named and why != "ready"]
        return lines, {"services": states}

    def start(self) -> None:
        """Begin to write what is kept, and fetch the credentials of services before the first request wants them."""
        self.kept_responses.start()
        self.background.start()
        for service in self.services.values():
            if service.identity is not None:
                service.identity.renew()

    async def aclose(self) -> None:
        """Finish what is being kept, and close the connections."""
        await self.background.aclose()
        await self.kept_responses.aclose()
        self.encoder.close()
        servers: list[ServiceClient | TokenCounter] = [*self.services.values(), *self.counters.values()]
        for server in servers:
            await server.aclose()


def _services(deployment: Deployment) -> dict[str, ServiceClient]:
    """Return the clients of the services that are configured, by their names."""
    return {
        name: _service(config) for name, config in services_in(deployment).items() if config.unconfigured_reason is None
    }


def _service(config: ServiceConfig) -> ServiceClient:
    return ServiceClient(
        config.base_url,
        None if config.key is None else config.key.get_secret_value(),
        max_in_flight=config.max_in_flight,
        max_reply=config.max_reply,
        connect_timeout_s=config.connect_timeout,
        idle_timeout_s=config.idle_timeout,
        kind=config.kind,
        identity=config.new_identity(),
    )


def _counters(deployment: Deployment) -> dict[str, TokenCounter]:
    """Return what counts tokens, of the tiers whose first backend speaks Anthropic's API, this part of it too."""
    first = {tier.name: tier.backends[0] for tier in deployment.tiers}
    counting = {
        name: backend for name, backend in first.items() if backend.dialect == "messages" and backend.configured
    }
    return {
        name: _counter(backend)
        for name, backend in counting.items()
        if backend.auth is None or backend.auth.kind == "entra"
    }


def _counter(config: BackendConfig) -> TokenCounter:
    service = ServiceClient(
        config.base_url.removesuffix("/v1"),
        None,
        max_in_flight=config.max_in_flight,
        max_reply=config.max_reply,
        connect_timeout_s=config.connect_timeout,
        idle_timeout_s=config.idle_timeout,
        identity=config.new_identity(),
    )
    key = config.key.get_secret_value() if config.key is not None else None
    return TokenCounter(service, model=config.model, key=key, maker=config.maker())
