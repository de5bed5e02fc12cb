"""Define the config of those who call: tenants and teams, keys, alerts of budgets, identities and roles.

identity: {issuers: [...]}   issuers of tokens (JWT), whose claims say a request's tenant, team and surfaces
roles: [...]                 which claims give which role
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator

from gateway.config.addresses import check_http_url, is_loopback
from gateway.config.environment import LEAST_KEY, BadSecret, secret_from_env
from gateway.config.notations import Name, Words
from gateway.config.resolver import Resolver
from gateway.config.schema import DEFAULT_TENANT, AdminPlace, Deployment, key_digest
from gateway.config.sections import Sections
from gateway.parts.access.quotas.terms import NO_TERMS, Terms
from policies.errors import Finding, KeyPath
from policies.validation import Seconds, Section, Share, Whole

Role = Literal["viewer", "editor", "key_admin", "admin"]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Signatures by a private key alone: what a public key could check and make too is never accepted."""
NAME: Final = r"^[a-z0-9][a-z0-9_.-]{0,63}$"
_Name = Annotated[str, Field(pattern=NAME)]


def url_of(url: str) -> str:
    """Return the URL of an issuer, which is reached by https, or on this machine. Raises ValueError."""
    check_http_url(url)
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("what comes over http can be forged; write an https:// URL")
    return url


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


IssuerUrl = Annotated[str, AfterValidator(url_of)]
_Words = Annotated[str, Field(min_length=1)]
SomeWords = Annotated[tuple[_Words, ...], BeforeValidator(_listed), Field(min_length=1)]


class Claims(Section):
    """Names of the claims that say who sends a request; `a.b` stands for `b` in the object `a`.

    A claim that is named here and not in a token refuses it, but for `user`.
    """

    tenant: _Words | None = None
    team: _Words | None = None
    """The team, or a list of groups (see `IssuerConfig.teams`)."""
    user: _Words = "preferred_username"
    """What people are called in histories and the audit trail; `sub` where a token has no such claim."""
    surfaces: _Words | None = None
    """Surfaces that requests may use: a list, or names with spaces between."""


class IssuerConfig(Section):
    """One issuer of tokens, such as a company's identity provider."""

    issuer: IssuerUrl
    """As its tokens name it in `iss`, to the letter."""
    audience: SomeWords
    """Names of this gateway, one of which a token must have in `aud`."""
    jwks_url: IssuerUrl | None = None
    """Where its public keys are; None for where its discovery document says."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    leeway: Annotated[Seconds, Field(le=300)] = 30.0
    """How far its clock and ours may be apart."""
    claims: Claims = Claims()
    tenant: _Name | None = None
    """The tenant of all of its tokens, where no claim says it."""
    teams: Mapping[_Words, _Name] = {}
    """Team by value of the team's claim; the first in this order that a token has is the one that pays. Empty: a value
    is the team's name."""
    limits: Terms = NO_TERMS
    """Limits and budgets of each subject, as a key's; the keys that they make for themselves count against them too."""
    longest_key_life: Annotated[Seconds, Field(gt=0)] = 90 * 86400.0
    """Longest life of a key that a subject makes for themselves, where its team states none."""


class IdentityConfig(Section):
    """Issuers whose tokens are keys."""

    issuers: tuple[IssuerConfig, ...] = ()

    @field_validator("issuers")
    @classmethod
    def _differ(cls, issuers: tuple[IssuerConfig, ...]) -> tuple[IssuerConfig, ...]:
        if len({issuer.issuer for issuer in issuers}) < len(issuers):
            raise ValueError("one is listed twice; keep one, with several names under audience")
        return issuers

    def find(self, issuer: str) -> IssuerConfig | None:
        """Return the issuer of that name; None if it is not listed."""
        return next((config for config in self.issuers if config.issuer == issuer), None)


class LoginConfig(Section):
    """The console (`console.login`) as a client of an issuer, by the authorization code flow with PKCE."""

    issuer: str
    """One of `identity.issuers`."""
    client_id: _Words
    client_secret_env: _Words | None = None
    """Variable with the client's secret; None for a public client."""
    client_secret: SecretStr | None = None
    """Set by whoever serves the console."""
    url: IssuerUrl
    """Where people reach the console; the provider sends them back to `URL/sign-in/callback`."""
    scopes: SomeWords = ("profile", "email")
    """What is asked for beside `openid`."""


class RoleConfig(Section):
    """A role, for those whose tokens have these claims."""

    role: Role
    where: Annotated[Mapping[_Words, SomeWords], Field(min_length=1)]
    """Values by claim: each claim must have, or hold, one of its values. `email` counts if it is verified."""
    issuer: str | None = None
    """The issuer that must say so; None where only one is listed."""
    surfaces: Annotated[tuple[_Name, ...], Field(min_length=1)] | None = None
    """Surfaces of an editor; None for all."""
    teams: Annotated[tuple[_Name, ...], Field(min_length=1)] | None = None
    """Teams of a key admin; None for all."""

    @model_validator(mode="after")
    def _limited_by_its_kind(self) -> Self:
        for name, role in (("surfaces", "editor"), ("teams", "key_admin")):
            if getattr(self, name) is not None and self.role != role:
                raise ValueError(f"{name} limit the role {role}; leave them out")
        return self


class OwnerTerms(Section):
    """The limits of a team or a tenant in all, of each of its end users, and of each of its sessions."""

    limits: Terms = NO_TERMS
    per_user: Terms = NO_TERMS
    """Of each end user that requests name: `user`, `safety_identifier`, or Anthropic's `metadata.user_id`."""
    per_session: Terms = NO_TERMS


class UnknownPrice(Section):
    """The cost that budgets assume for a call whose price is unknown."""

    ceiling: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
    """US dollars."""


class KeysConfig(Section):
    """Which requests need a key, and how limits are applied."""

    required: bool = False
    """Whether each request needs a key, of the store, of a tenant or of an identity; with `tenants` it always does."""
    when_store_is_down: Literal["open", "closed"] = "open"
    """What becomes of requests and tokens beyond the leases of a worker while the store does not answer: let through,
    or refused. Money beyond its lease is refused either way."""
    unknown_price: Literal["refuse"] | UnknownPrice = "refuse"
    """What becomes of requests with a budget of money that may call a model of unknown price."""


def _url(url: str) -> str:
    check_http_url(url)
    return url


class AlertsConfig(Section):
    """Shares of budgets that are told of, once each in every window; without a `webhook` only metrics tell."""

    webhook: Annotated[str, AfterValidator(_url)] | None = None
    """URL that alerts are sent to (POST), signed as Standard Webhooks defines it."""
    secret_env: Annotated[str, Field(min_length=1)] | None = None
    """Variable with the secret that signs them: a text, or `whsec_` and a key in base64."""
    shares: tuple[Share, ...] = (0.5, 0.8, 1.0)
    secret: SecretStr | None = None
    """The secret itself, set by the loader."""

    @field_validator("shares")
    @classmethod
    def _above_nothing(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if not all(shares):
            raise ValueError("a share is above 0% and up to 100%; leave the list empty for no alerts")
        return tuple(sorted(set(shares)))

    @model_validator(mode="after")
    def _is_signed(self) -> Self:
        if (self.webhook is None) != (self.secret_env is None):
            raise ValueError("a webhook is signed: give both webhook and secret_env")
        return self


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
        if own.identity.issuers and find_spec("joserfc") is None:
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
