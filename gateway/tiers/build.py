"""Build the tiers of one worker from their config: each endpoint with the backend of its dialect, over its transport.

The dialect and the transport that a backend has by default are imported with this module, all others by the backends
that are configured to have them: they cost memory, and some need packages that not everyone installs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from gateway.backends.base import Backend, Transport
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.http_backend import Common
from gateway.backends.openai import OpenAIBackend
from gateway.backends.quirks import AdaptedBackend
from gateway.backends.quota import Quota
from gateway.backends.refused_fields import RefusedFields
from gateway.config.schema import BackendConfig, CloudAuth, Deployment, TierConfig
from gateway.tiers.endpoint import Endpoint, OnRefusal
from gateway.tiers.tier import Tier

if TYPE_CHECKING:
    from gateway.backends.call_reasoning import CallMemory
    from gateway.backends.identity import Identity

MakeTransport = Callable[[str], Transport]
"""Makes a transport for calls to a path, which follows the backend's base URL."""
IdentityOf = Callable[["CloudAuth | None"], "Identity | None"]
_HAVE_CUSTOM_TOOLS: Final = (".openai.com", ".openai.azure.com")
"""Ends of the hosts whose chat completions know tools that take a free text."""
_USAGE_OPTION: Final = "stream_options"
"""Field that asks for a stream's usage; where it is omitted, the usage comes unasked."""


def build_tiers(deployment: Deployment, on_refusal: OnRefusal, calls: CallMemory | None = None) -> dict[str, Tier]:
    """Return the tiers by name. `calls` remembers the reasoning of tool calls."""
    waiting: Counter[str] = Counter()  # a surface's waiters are counted in the whole worker
    identity_of = cache(new_identity)  # one for equal ones
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


def new_identity(auth: CloudAuth | None) -> Identity | None:
    """Return a new identity of a cloud; None where there is none, as with a key."""
    if auth is None:
        return None
    from gateway.backends import clouds

    return clouds.identity_for(auth.model_dump())


def _tier(config: TierConfig, make: Callable[[BackendConfig], Endpoint]) -> Tier:
    endpoints = [make(backend) for backend in config.backends]
    for endpoint in endpoints:
        endpoint.tier = config.name
    return Tier(config.name, endpoints, select=config.select)


def _endpoint(
    config: BackendConfig, *, waiting: Counter[str], identity_of: IdentityOf, calls: CallMemory | None
) -> Endpoint:
    quota, refused = Quota(), RefusedFields(config.name)
    identity = identity_of(config.auth) if config.configured else None
    backend = _backend(config, quota, refused, identity, calls)
    return Endpoint(config, backend, waiting=waiting, quota=quota, refused_fields=refused, identity=identity)


def _backend(
    config: BackendConfig, quota: Quota, refused: RefusedFields, identity: Identity | None, calls: CallMemory | None
) -> Backend | None:
    if not config.configured:
        return None
    key = config.key.get_secret_value() if config.key is not None else None
    common = Common(model=config.model, key=key, maker=config.maker(), quota=quota, refused=refused)
    make = _IN_DIALECT.get(config.kind) or partial(_chat, calls=calls)
    backend = make(config, common, partial(_transport, config, identity))
    omit = frozenset(config.omit) - {_USAGE_OPTION}
    return AdaptedBackend(backend, config.rename, omit) if config.rename or omit else backend


def _chat(config: BackendConfig, common: Common, transport: MakeTransport, calls: CallMemory | None) -> Backend:
    return OpenAIBackend(
        transport("/chat/completions"),
        stores="store" in config.can,
        asks_usage=_USAGE_OPTION not in config.omit,
        one_system=config.roles == "one_system",
        calls=calls,
        custom_tools=f".{urlsplit(config.base_url).hostname}".endswith(_HAVE_CUSTOM_TOOLS),
        **common,
    )


def _messages(config: BackendConfig, common: Common, transport: MakeTransport) -> Backend:
    from gateway.backends.anthropic import AnthropicBackend

    if config.names_model_in_url:
        from gateway.backends.platform_messages import PlatformMessagesBackend

        path, whole, streamed, version = _ON_PLATFORM[config.auth_kind]
        path = path.format(quote(config.model, safe="@" if config.auth_kind == "google" else ""))
        streaming = transport(path + streamed)
        return PlatformMessagesBackend(transport(path + whole), streaming=streaming, version=version, **common)
    bills = f".{urlsplit(config.base_url).hostname}".endswith(".anthropic.com")
    path = "/messages" if config.base_url.endswith("/v1") else "/v1/messages"
    return AnthropicBackend(transport(path), bills=bills, **common)


def _responses(config: BackendConfig, common: Common, transport: MakeTransport) -> Backend:
    from gateway.backends.responses import ResponsesBackend

    return ResponsesBackend(transport("/responses"), one_system=config.roles == "one_system", **common)


def _decisions(config: BackendConfig, common: Common, transport: MakeTransport) -> Backend:
    from gateway.backends.decisions import DecisionsBackend

    return DecisionsBackend(transport("/decisions"), **common)


_IN_DIALECT: Final = {"anthropic": _messages, "responses": _responses, "decisions": _decisions}
"""What makes a backend of another dialect than chat completions, by its kind in the config."""
_ON_PLATFORM: Final = {
    "aws": ("/model/{}/", "invoke", "invoke-with-response-stream", "bedrock-2023-05-31"),
    "google": ("/publishers/anthropic/models/{}:", "rawPredict", "streamRawPredict", "vertex-2023-10-16"),
}
"""Paths of Anthropic's models on Bedrock and Vertex, what whole and streamed calls add, and the version to name."""


def _transport(config: BackendConfig, identity: Identity | None, path: str) -> Transport:
    """Return the transport for calls to this path, which follows the base URL."""
    if config.kind == "scripted":
        from gateway.backends.scripted import ScriptedTransport

        return ScriptedTransport(config.script, max_reply=config.max_reply)
    make: Callable[..., Transport] = Http1Transport
    if config.http.client == "httpx2":
        from gateway.backends.httpx2_transport import Httpx2Transport

        make = partial(Httpx2Transport, http2=config.http.http2, proxy=config.http.proxy)
    url = config.base_url + path
    transport = make(
        url, max_in_flight=config.max_in_flight, connect_timeout_s=config.connect_timeout, max_reply=config.max_reply
    )
    if identity is None:
        return transport
    from gateway.backends.identity import SignedTransport

    return SignedTransport(transport, url, identity)
