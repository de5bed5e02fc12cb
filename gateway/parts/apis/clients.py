"""Hold what one worker keeps for clients of other APIs, and what it counts tokens by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.parts.apis.config import ApiSections
from gateway.parts.apis.service import ServiceClient
from gateway.parts.apis.stores.background import BackgroundRuns
from gateway.parts.apis.stores.conversations import Conversations
from gateway.parts.apis.stores.kept_responses import KeptResponses
from gateway.steps import Core, KeyFiles

if TYPE_CHECKING:
    from gateway.config.backends import BackendConfig
    from gateway.config.schema import Deployment
    from gateway.parts.apis.token_counter import TokenCounter
    from policies.loader import PolicySet


class Clients:
    """The stores, counters and connections of one worker that its endpoints for these APIs share."""

    name = "other APIs"

    def __init__(self, core: Core) -> None:
        deployment = core.deployment
        self._deployment = deployment
        self.kept_responses = KeptResponses(core.store, core.secret, core.quotas["responses"])
        self.conversations = Conversations(self.kept_responses, core.store)
        self.background = BackgroundRuns(
            self.kept_responses, core.store, deployment.of(ApiSections).responses.background
        )
        self.counters = _counters(deployment)
        """What counts tokens exactly, by the tiers whose first backend speaks Anthropic's API."""

    def watch_keys(self, files: KeyFiles) -> None:
        """Have the keys of token counters read again when their files change."""
        first = {tier.name: tier.backends[0] for tier in self._deployment.tiers}
        for name, counter in self.counters.items():
            if (file := first[name].key_file) is not None:
                files.watch_one(file, counter.rekey)

    def readiness(self, policies: PolicySet) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Return nothing: the store and the tiers tell what is degraded."""
        return (), {}

    def start(self) -> None:
        """Begin to write what is kept."""
        self.kept_responses.start()
        self.background.start()

    async def aclose(self) -> None:
        """Finish what is being kept, and close the connections."""
        await self.background.aclose()
        await self.kept_responses.aclose()
        for counter in self.counters.values():
            await counter.aclose()


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
    from gateway.parts.apis.token_counter import TokenCounter  # most deployments have none

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
