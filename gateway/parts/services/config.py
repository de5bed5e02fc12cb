"""Define the config of services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Self

from pydantic import model_validator

from gateway.chat.usage import Dollars
from gateway.config.backends import Keyed
from gateway.config.notations import BaseUrl, Count, Name, Positive, Size
from gateway.config.resolver import Resolver
from gateway.config.schema import Deployment
from gateway.config.sections import Sections
from policies.errors import KeyPath
from policies.validation import Seconds


class ServiceConfig(Keyed):
    """A server for what is not a chat, such as embeddings or audio."""

    base_url: BaseUrl = ""
    """URL up to and including `/v1`, without a slash at the end; if empty, the service is unconfigured."""
    kind: Literal["openai", "anthropic"] = "openai"
    """Whose API it speaks: `anthropic` is sent the key as `x-api-key`, and the client's version and betas."""
    models: Mapping[str, str] = {}
    """Models by the names under which clients ask for them in JSON; other names are passed on as they are."""
    prices: Mapping[str, Dollars] = {}
    """US dollars per million tokens embedded, by model. A model without a price has an unknown cost."""
    request_price: Dollars | None = None
    """US dollars of each request that is passed on and makes something (POST); None if nobody states it."""
    share_files: bool = False
    """Whether tenants may use files and batches, which all of them would share: the account at the service is one."""
    max_in_flight: Count = 64
    """Most concurrent calls per worker."""
    max_request: Size = 512 << 20
    """Largest request body that is passed on. Bodies of embeddings are limited by `limits.body`."""
    max_reply: Size = 512 << 20
    """Largest reply that is passed on."""
    connect_timeout: Seconds = 2.0
    idle_timeout: Positive = 120.0
    """Longest silence, before the reply and within it."""

    @model_validator(mode="after")
    def _is_not_signed(self) -> Self:
        if self.auth is not None and self.auth.signs_bodies:
            raise ValueError("services are sent bodies in parts, and AWS signs whole ones; call it as a backend")
        return self


class ServiceSections(Sections):
    """The sections of the config that this part reads."""

    services: Mapping[Name, ServiceConfig] = {}
    """Servers for what is not a chat, which policies name under `endpoints`."""

    @classmethod
    def resolve(cls, deployment: Deployment, resolver: Resolver) -> Mapping[str, object]:
        """Return the services with their keys."""
        services = services_in(deployment).items()
        return {"services": {name: _resolved(("services", name), service, resolver) for name, service in services}}

    @classmethod
    def servers(cls, deployment: Deployment) -> Iterator[tuple[KeyPath, Keyed]]:
        """Yield the services."""
        yield from ((("services", name), service) for name, service in services_in(deployment).items())

    @classmethod
    def named(cls, deployment: Deployment) -> Mapping[str, Sequence[str]]:
        """Return the names of services, which policies may use."""
        return {"services": tuple(services_in(deployment))}

    @classmethod
    def summary(cls, deployment: Deployment) -> Iterator[str]:
        """Yield the state of each service."""
        for name, service in services_in(deployment).items():
            state = f"unconfigured: {service.unconfigured_reason}" if service.unconfigured_reason else "configured"
            yield f"service  {name:<14} {service.base_url:<28} {state}"

    @classmethod
    def shown(cls, deployment: Deployment) -> Mapping[str, Any]:
        """Return the state of each service as JSON values."""
        services = services_in(deployment).items()
        return {
            "services": [
                {"name": name, "configured": service.unconfigured_reason is None, "reason": service.unconfigured_reason}
                for name, service in services
            ]
        }


def services_in(deployment: Deployment) -> Mapping[str, ServiceConfig]:
    """Return the services of a config, by their names."""
    return deployment.of(ServiceSections).services


def _resolved(path: KeyPath, service: ServiceConfig, resolver: Resolver) -> ServiceConfig:
    key, reason = resolver.own_key(path, service, lacks_url=not service.base_url)
    file = service.key_file and resolver.absolute(service.key_file)
    return service.model_copy(update={"key": key, "unconfigured_reason": reason, "key_file": file})


SECTIONS: Final = ServiceSections
