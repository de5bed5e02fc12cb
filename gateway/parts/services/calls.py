"""Find the service of a request for what is not a chat, and begin the hop of its call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gateway.errors import UpstreamFailed
from gateway.parts.services.config import services_in
from gateway.telemetry import names

if TYPE_CHECKING:
    from gateway.parts.apis.service import ServiceClient
    from gateway.steps import Steps
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Hop, Trace

_NO_RETRY: Final = ((b"x-should-retry", b"false"),)


def client_of(steps: Steps, clients: Mapping[str, ServiceClient], service: str) -> ServiceClient:
    """Return the client of a service that a policy names. Raises UpstreamFailed if it cannot be called yet."""
    client = clients.get(service)
    if client is None:
        reason = services_in(steps.deployment)[service].unconfigured_reason
        raise UpstreamFailed(
            f"The service {service!r} is not configured: {reason}.", code="upstream_unreachable", headers=_NO_RETRY
        )
    return client


_OF_MODELS: Final = frozenset({"audio", "completions", "embeddings", "images", "moderations"})
"""Operations of a service that call a model; of others only one that is named says so."""


def hop_of(trace: Trace, ledger: Ledger, service: str, operation: str, model: str) -> Hop:
    """Begin the hop of a call, and count the call."""
    ledger.attempts += 1
    ledger.tier = ledger.backend = service
    ledger.model = model
    return trace.begin(
        names.ATTEMPT,
        {
            names.ATTEMPT_NUMBER: ledger.attempts,
            names.TIER: service,
            names.BACKEND: service,
            **(names.of_service(operation, model) if operation in _OF_MODELS or model else {}),
        },
    )
