"""Provide the seam `client_api` (`gateway.seams`) for embeddings and what is passed on."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.parts.apis.routes.completions import GivenBody, TextCompletions
from gateway.parts.apis.service import ServiceClient
from gateway.parts.services.config import ServiceConfig, services_in
from gateway.parts.services.embeddings import Embeddings
from gateway.parts.services.passthrough import OTHER, PassedOn, endpoint_of
from gateway.parts.services.policy import Endpoints, endpoints_in
from gateway.parts.services.text_encoder import TextEncoder
from gateway.request.options import known_headers
from gateway.steps import Core, KeyFiles, ServedPaths

if TYPE_CHECKING:
    from fastapi import APIRouter

    from gateway.config.schema import Deployment
    from gateway.steps import AsgiApp, Described, Steps
    from policies.loader import PolicySet


class Services:
    """What one worker has for what is not a chat. It implements `gateway.steps.ClientApi`."""

    name = "services"

    def __init__(self, core: Core) -> None:
        self._deployment = core.deployment
        self.clients = _services(core.deployment)
        """The clients of the configured services, by their names."""
        self.encoder = TextEncoder(core.models.embedder)
        """Encodes the texts of the embeddings API."""
        self._of: PolicySet | None = None
        self._listed: list[Endpoints] = []
        """The endpoints of those policies of `_of` that pass on further paths."""

    def serve(self, steps: Steps) -> ServedPaths:
        """Return what answers embeddings, text completions that a service continues, and what is passed on."""
        passed_on = PassedOn(steps, self.clients)
        posts: dict[str, AsgiApp] = {
            "/v1/completions": _Completions(steps, passed_on),
            "/v1/embeddings": Embeddings(steps, self.clients, self.encoder),
        }

        def find(path: str) -> AsgiApp | None:
            if (endpoint := endpoint_of(path)) is not None:
                return partial(passed_on, endpoint)
            return partial(passed_on, OTHER) if self._passes_on(steps.policies.current, path) else None

        return ServedPaths(posts, find)

    def _passes_on(self, policies: PolicySet, path: str) -> bool:
        """Return whether a policy of any surface has this path, or one above it, among its `endpoints.other`."""
        if policies is not self._of:
            self._of = policies
            self._listed = [listed for each in policies.by_surface.values() if (listed := endpoints_in(each)).other]
        return any(endpoints.other_path(path) is not None for endpoints in self._listed)

    def routes(self) -> tuple[Sequence[APIRouter], Sequence[Described]]:
        """Return what describes these paths. Imports FastAPI."""
        from gateway.parts.services.openapi import described_services

        return (), described_services()

    def watch_keys(self, files: KeyFiles) -> None:
        """Have the keys of services read again when their files change."""
        for name, service in self.clients.items():
            if (file := services_in(self._deployment)[name].key_file) is not None:
                service.renewal.look = files.watch_one(file, service.rekey)

    def readiness(self, policies: PolicySet) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Return which services that a policy names cannot be called, and the state of each service."""
        failing = {name: service.identity.failure for name, service in self.clients.items() if service.identity}
        lines = [f"service {name}: credentials cannot be renewed: {why}" for name, why in failing.items() if why]
        named = {service for policy in policies.by_surface.values() for _, service in endpoints_in(policy).services()}
        states = {name: config.unconfigured_reason or "ready" for name, config in services_in(self._deployment).items()}
        lines += [f"service {name}: {why}" for name, why in states.items() if name in named and why != "ready"]
        return lines, {"services": states}

    def start(self) -> None:
        """Fetch the credentials of services before the first request wants them."""
        for service in self.clients.values():
            if service.identity is not None:
                service.identity.renew()

    async def aclose(self) -> None:
        """Close the connections."""
        self.encoder.close()
        for service in self.clients.values():
            await service.aclose()


class _Completions(TextCompletions):
    """Answer text completions as chats, unless the surface's policy names a service that continues texts."""

    def __init__(self, steps: Steps, passed_on: PassedOn) -> None:
        super().__init__(steps)
        self._passed_on = passed_on

    def passed_on(self, model: str, scope: Any, given: GivenBody, send: Any) -> Coroutine[Any, Any, None] | None:
        """See `TextCompletions.passed_on`."""
        header = known_headers(scope["headers"]).get(b"x-tierline-surface")
        surface = None if header is None else header.decode("latin-1").strip()
        policies = self._steps.policies.current
        policy = policies.resolve(model, surface) or (policies.default if surface is None else None)
        if policy is None or endpoints_in(policy).completions is None:
            return None
        return self._passed_on("completions", scope, given.receive, send, model)


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


def build_client_api(core: Core) -> Services:
    """Return a worker's services, which are not started."""
    return Services(core)
