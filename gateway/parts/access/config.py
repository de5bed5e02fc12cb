"""Define the config of those who call: tenants and teams, keys, alerts of budgets, identities and roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, SecretStr, field_validator

from gateway.config.environment import LEAST_KEY, BadSecret, secret_from_env
from gateway.config.notations import Name, Words
from gateway.config.resolver import Resolver, is_importable
from gateway.config.schema import DEFAULT_TENANT, AdminPlace, Deployment, key_digest
from gateway.config.sections import Sections
from gateway.parts.access.alert_config import AlertsConfig
from gateway.parts.access.identity_config import IdentityConfig, RoleConfig
from gateway.parts.access.key_config import KeysConfig, OwnerTerms
from policies.errors import Finding, KeyPath
from policies.validation import Section, Whole


class TenantConfig(OwnerTerms):
    """One tenant. Its keys come from environment variables and files (one key per line), never from the config."""

    team: Name | None = None
    """The tenants of one team share cached answers on surfaces whose policy says `cache: {scope: team}`."""
    key_env: tuple[str, ...] = ()
    """Names of environment variables that hold one key each."""
    key_file: tuple[Path, ...] = ()
    """Files that hold keys, one per line."""
    key_digests: Annotated[tuple[bytes, ...], Field(repr=False)] = ()
    """The SHA-256 of each key, 32 bytes; set as the config is loaded, which keeps no key itself."""
    may_try: bool = False
    """Whether its requests may choose the policy version that answers them (`x-tierline-try`)."""

    @field_validator("key_env", "key_file", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value


class Admin(Section):
    """Address and key of the admin API, both separate from the gateway's; with `roles`, people's tokens do too."""

    key_env: Words | None = None
    host: str = "127.0.0.1"
    port: Annotated[Whole, Field(ge=1, le=65535)] = 8788
    key: SecretStr | None = None
    """The key itself, set as the config is loaded."""


class AccessSections(Sections):
    """The sections of the config that this part reads, and what the core asks of them."""

    tenants: Mapping[Name, TenantConfig] = {}
    teams: Mapping[Name, OwnerTerms] = {}
    keys: KeysConfig = KeysConfig()
    alerts: AlertsConfig = AlertsConfig()
    identity: IdentityConfig = IdentityConfig()
    roles: tuple[RoleConfig, ...] = ()
    """Who may do what in the console and over the admin API, by claims."""
    admin: Admin | None = None
    """Where the admin API listens; None without one."""

    resolved: ClassVar[frozenset[str]] = frozenset({"key_digests"})

    @property
    def team_of(self) -> dict[str, str]:
        """See `Deployment`; so of what follows."""
        return {name: tenant.team for name, tenant in self.tenants.items() if tenant.team is not None}

    @property
    def tenant_names(self) -> tuple[str, ...]:
        return tuple(self.tenants)

    @property
    def admin_place(self) -> AdminPlace | None:
        admin = self.admin
        return None if admin is None else AdminPlace(admin.host, admin.port, admin.key_env)

    @property
    def client_variables(self) -> tuple[str, ...]:
        return tuple(name for tenant in self.tenants.values() for name in tenant.key_env)

    @property
    def of_unknown_price(self) -> str:
        terms = self.keys.unknown_price
        if terms == "refuse":
            return (
                "a request whose key has a budget of money is refused with 403 (price_unknown) if it may come to this "
                "tier; keys.unknown_price.ceiling lets it in"
            )
        return f"of a budget of money each call takes ${terms.ceiling:g} (keys.unknown_price.ceiling)"

    @property
    def unshared(self) -> frozenset[str]:
        several = len(self.tenants) > 1 or self.keys.required or bool(self.identity.issuers)
        return frozenset() if several else frozenset(self.tenants or (DEFAULT_TENANT,))

    @property
    def keyless(self) -> bool:
        """Whether requests need no key, because there are no tenants and `keys.required` is not set."""
        return not self.tenants and not self.keys.required

    @classmethod
    def check(cls, deployment: Deployment) -> Iterator[Finding]:
        """Yield roles whose claims nobody says, and an admin API that nobody could use, or whose port is taken."""
        own = deployment.of(cls)
        if own.admin is not None and own.admin.port == deployment.port:
            yield Finding((), "admin.port is the gateway's own port; give it another")
        issuers = own.identity.issuers
        for i, role in enumerate(own.roles):
            if not issuers or (role.issuer is not None and own.identity.find(role.issuer) is None):
                yield Finding(("roles", i), "its claims come from no issuer; list it in identity.issuers")
        if len(issuers) > 1:
            message = "any of several issuers could say so of its people; name the one that may as `issuer`"
            yield from (Finding(("roles", n), message) for n, role in enumerate(own.roles) if role.issuer is None)
        if own.admin is not None and own.admin.key_env is None and not own.roles:
            yield Finding(("admin",), "nobody could use it; name a key with key_env, or give people `roles`")

    @classmethod
    def resolve(cls, deployment: Deployment, resolver: Resolver) -> Mapping[str, object]:
        """Return the tenants with the digests of their keys, the admin API and the alerts with their secrets."""
        own = deployment.of(cls)
        if own.identity.issuers and not is_importable("joserfc"):
            message = "tokens need joserfc, which is not installed: pip install 'tierline[identity]'"
            resolver.refuse(("identity", "issuers"), message)
        tenants = {name: _tenant(("tenants", name), tenant, resolver) for name, tenant in own.tenants.items()}
        owner: dict[bytes, str] = {}
        for name, tenant in tenants.items():
            for digest in tenant.key_digests:
                if (other := owner.setdefault(digest, name)) != name:
                    resolver.refuse(("tenants", name), f"has a key that is also {other!r}'s")
        admin, path = own.admin, ("admin", "key_env")
        if admin is not None and admin.key_env is not None:
            key = resolver.secret(path, admin.key_env, "without a key nobody could use the admin API")
            if key is not None and key_digest(key.get_secret_value().encode()) in owner:
                resolver.refuse(path, "is a tenant's key too; the admin API wants one of its own")
            admin = admin.model_copy(update={"key": key})
        alerts = own.alerts
        if alerts.secret_env is not None:
            path = ("alerts", "secret_env")
            secret = resolver.secret(path, alerts.secret_env, "without it no alert could be signed")
            alerts = alerts.model_copy(update={"secret": secret})
        return {"tenants": tenants, "admin": admin, "alerts": alerts}


def _tenant(path: KeyPath, tenant: TenantConfig, resolver: Resolver) -> TenantConfig:
    keys = []
    try:
        for name in tenant.key_env:
            key = secret_from_env(name, resolver.environ, LEAST_KEY)
            if key is None:
                raise BadSecret(f"{name} is not set")
            keys.append(key)
        for file in tenant.key_file:
            keys += resolver.keys_in_file((*path, "key_file"), file, least=LEAST_KEY)
        if not keys:
            raise BadSecret("a tenant needs key_env or key_file; without a key nobody could be it")
    except BadSecret as error:
        resolver.refuse_secret(path, str(error))
    return tenant.model_copy(
        update={
            "key_digests": tuple(key_digest(key.get_secret_value().encode()) for key in keys),
            "key_file": tuple(map(resolver.absolute, tenant.key_file)),
        }
    )


SECTIONS: Final = AccessSections
