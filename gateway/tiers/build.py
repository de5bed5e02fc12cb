"""Build the tiers of one worker from their config: each endpoint with the backend of its dialect, over its transport.

Transports and dialects are imported by the backends that are configured to have them: they cost memory, and some need
packages that not everyone installs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

from gateway.backends.base import Backend, Transport
from gateway.backends.http_backend import Common
from gateway.backends.quota import Quota
from gateway.backends.server_forms import FieldMemory, servers_part
from gateway.config.backends import USAGE_OPTION, BackendConfig, TierConfig
from gateway.config.schema import Deployment
from gateway.tiers.endpoint import Endpoint, OnRefusal
from gateway.tiers.tier import Tier

if TYPE_CHECKING:
    from gateway.backends.base import Identity
    from gateway.backends.call_reasoning import CallMemory
    from gateway.config.backends import Auth

IdentityOf = Callable[["Auth"], "Identity"]


def build_tiers(deployment: Deployment, on_refusal: OnRefusal, calls: CallMemory | None = None) -> dict[str, Tier]:
    """Return the tiers by name. `calls` remembers the reasoning of tool calls."""
    waiting: Counter[str] = Counter()  # a surface's waiters are counted in the whole worker
    identity_of = cache(_identity)  # one for equal ones
    make = partial(_endpoint, waiting=waiting, identity_of=identity_of, calls=calls)
    tiers = {config.name: _tier(config, make) for config in deployment.tiers}
    unshared = deployment.unshared
    for endpoint in endpoints_of(tiers).values():
        endpoint.on_refusal = on_refusal
        endpoint.unshared = unshared
        on_refusal(endpoint.config, "", False)  # so that the metric exists from the start, as 0
    return tiers


def endpoints_of(tiers: Mapping[str, Tier]) -> dict[str, Endpoint]:
    """Return all endpoints by their backends' names."""
    return {endpoint.config.name: endpoint for tier in tiers.values() for endpoint in tier.endpoints}


def _identity(auth: Auth) -> Identity:
    return auth.identity()


def _tier(config: TierConfig, make: Callable[[BackendConfig], Endpoint]) -> Tier:
    endpoints = [make(backend) for backend in config.backends]
    for endpoint in endpoints:
        endpoint.tier = config.name
    return Tier(config.name, endpoints, select=config.select)


def _endpoint(
    config: BackendConfig, *, waiting: Counter[str], identity_of: IdentityOf, calls: CallMemory | None
) -> Endpoint:
    quota, servers = Quota(), servers_part()
    refused = None if servers is None else servers.new_field_memory(config.name)
    identity = identity_of(config.auth) if config.auth is not None and config.configured else None
    backend = _backend(config, quota, refused, identity, calls)
    return Endpoint(config, backend, waiting=waiting, quota=quota, refused_fields=refused, identity=identity)


def _backend(
    config: BackendConfig,
    quota: Quota,
    refused: FieldMemory | None,
    identity: Identity | None,
    calls: CallMemory | None,
) -> Backend | None:
    if not config.configured:
        return None
    key = config.key.get_secret_value() if config.key is not None else None
    common = Common(model=config.model, key=key, maker=config.maker(), quota=quota, refused=refused)
    backend = config.make(common, partial(_transport, config, identity), calls)
    omit, servers = frozenset(config.omit) - {USAGE_OPTION}, servers_part()
    # Without the part, a model whose facts name such fields is sent them as they are.
    return backend if servers is None or not (config.rename or omit) else servers.adapted(backend, config.rename, omit)


def _transport(config: BackendConfig, identity: Identity | None, path: str) -> Transport:
    """Return the transport for calls to this path, which follows the base URL."""
    url = config.base_url + path
    transport = config.http.transport(
        url, max_in_flight=config.max_in_flight, connect_timeout_s=config.connect_timeout, max_reply=config.max_reply
    )
    return transport if identity is None else identity.signing(transport, url)
