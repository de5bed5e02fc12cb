"""Define the config of identities: whose tokens are keys, and who may do what.

identity: {issuers: [...]}   issuers of tokens (JWT), whose claims say a request's tenant, team and surfaces
roles: [...]                 which claims give which role
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator

from gateway.config.addresses import check_http_url, is_loopback
from gateway.parts.access.quotas.terms import NO_TERMS, Terms
from policies.validation import Seconds, Section

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
