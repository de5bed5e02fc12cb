"""Define the config of the console: its address, its keys, and how people sign in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import field_validator

from gateway.config.notations import Port, Words
from gateway.config.schema import Deployment
from gateway.config.sections import Sections
from gateway.parts.access.config import AccessSections, LoginConfig
from policies.errors import Finding
from policies.validation import Section


class ConsoleConfig(Section):
    """Address and keys of the console, a process of its own. Without a key it serves this machine alone."""

    enabled: bool = True
    """Whether `tierline up` starts it."""
    host: str = "127.0.0.1"
    port: Port = 8790
    key_env: Words | None = None
    """Variable with the key of those who may also change policies."""
    viewer_key_env: Words | None = None
    """Variable with the key of those who may look."""
    admin_key_env: Words | None = None
    """Variable with the key of those who may do everything, keys and budgets too."""
    login: LoginConfig | None = None
    """How people sign in by an identity provider; None for keys alone."""
    hosts: tuple[str, ...] = ()
    """Further names by which this machine may be called where no key is required."""
    gateway: str | None = None
    """URL of the gateway whose `/readyz` the page Now tells. `tierline up` passes its own."""
    gateway_key_env: Words | None = None
    """Variable with the key that it is asked with: with tenants the admin's, for the details."""

    @field_validator("gateway")
    @classmethod
    def _is_address(cls, gateway: str | None) -> str | None:
        if gateway is not None and not gateway.startswith(("http://", "https://")):
            raise ValueError(f"{gateway!r} is not an address; it begins with http:// or https://")
        return gateway


class ConsoleSections(Sections):
    """The config's section `console`."""

    console: ConsoleConfig = ConsoleConfig()

    @classmethod
    def check(cls, deployment: Deployment) -> Iterator[Finding]:
        """Yield what is wrong with `console.login`: its issuer is not configured, or no role is given to anybody."""
        login = deployment.of(cls).console.login
        if login is not None and deployment.of(AccessSections).identity.find(login.issuer) is None:
            yield Finding(("console", "login", "issuer"), "no such issuer; list it in identity.issuers")
        if login is not None and not deployment.of(AccessSections).roles:
            yield Finding(("console", "login"), "nobody who signs in may do anything; give them `roles`")


SECTIONS: Final = ConsoleSections
