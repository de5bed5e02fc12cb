"""Find who sends a token (JWT): the key record that it stands for, and the person with their roles.

A verified token is remembered by its SHA-256 until it ends, REMEMBERED_S at most, so that one whose signing key was
withdrawn is looked at again; its caller for CALLER_S, since the terms of its team may change. What a token says of
itself is read without a library, so a gateway can tell a token from a key before anybody has verified it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from gateway.config.schema import DEFAULT_TENANT, Deployment
from gateway.errors import Overloaded, Unauthorized, retry_after
from gateway.parts.access.config import NAME, AccessSections, IdentityConfig, IssuerConfig, RoleConfig
from gateway.parts.access.keys.key_caller import KeyCaller
from gateway.parts.access.keys.records import NO_NAMES, KeyRecord
from gateway.parts.access.keys.roles import Grant, Person

if TYPE_CHECKING:
    from gateway.parts.access.keys.issuer import Issuer

MOST: Final = 16384
"""Longest token in bytes."""


class BadToken(Exception):
    """A token that is not accepted; the message says why, after the words `The token is not accepted:`."""


def is_token(key: bytes) -> bool:
    """Return whether a key has the form of a JWT: three parts, of which the first is a JSON object."""
    return key.startswith(b"eyJ") and key.count(b".") == 2


def issuer_in(token: bytes) -> str:
    """Return who claims to have issued a token; empty for nobody. Raises BadToken. Nothing is verified yet."""
    if len(token) > MOST:
        raise BadToken(f"it is longer than {MOST} bytes")
    header, payload, _ = token.split(b".")
    _decoded(header)
    issuer = _decoded(payload).get("iss")
    return issuer if isinstance(issuer, str) else ""


def claims_in(payload: bytes) -> Mapping[str, Any]:
    """Return the object that JSON holds. Raises BadToken for anything else, and for a claim that is there twice."""
    try:
        claims = json.loads(payload, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise BadToken("it holds no claims that can be read, or one of them twice") from None
    if not isinstance(claims, dict):
        raise BadToken("it holds no claims")
    return claims


def claim_in(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim; of `a.b`, where there is none of that name, `b` in the object `a`. None if it is not there.

    An e-mail address that its provider has not verified is anybody's to choose, so it counts as not there.
    """
    if name == "email" and claims.get("email_verified") is not True:
        return None
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def is_left_out(claims: Mapping[str, Any], name: str) -> bool:
    """Return whether a claim is not in a token because it is too long: the provider says where else it can be had.

    Entra does so from 200 groups on (`_claim_names`, OpenID Connect's distributed claims), and with `hasgroups`.
    """
    elsewhere = claims.get("_claim_names")
    named = isinstance(elsewhere, Mapping) and name in elsewhere
    return claim_in(claims, name) is None and (named or (name == "groups" and bool(claims.get("hasgroups"))))


def texts(value: Any, *, split: bool = False) -> tuple[str, ...]:
    """Return the texts of a claim that is one or a list; with `split`, one is several with spaces between."""
    if isinstance(value, str):
        return tuple(value.split()) if split else (value,)
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _decoded(part: bytes) -> Mapping[str, Any]:
    try:
        return claims_in(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except binascii.Error:
        raise BadToken("it is no JWT") from None


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(name)
        found[name] = value
    return found


REMEMBERED_S: Final = 600.0
CALLER_S: Final = 0.5
_MOST: Final = 10_000
"""Most tokens that are remembered; the one that was used longest ago goes first."""
_NOBODY: Final = (0.0, None)
_NAME: Final = re.compile(NAME)
_LONGEST: Final = 120
"""Characters of a person's name that are kept."""


class Identities:
    """Verify tokens of the issuers of a config, and say whose they are. With no issuer all are refused."""

    def __init__(self, config: IdentityConfig, roles: Sequence[RoleConfig] = (), folder: Path | None = None) -> None:
        """Prepare the issuers; nothing is fetched yet. `folder` is where copies of their keys are."""
        self._roles = roles
        self._issuers: dict[str, Issuer] = {}
        self._verified: OrderedDict[bytes, tuple[float, IssuerConfig, Mapping[str, Any]]] = OrderedDict()
        self._callers: OrderedDict[bytes, tuple[float, KeyCaller]] = OrderedDict()
        if config.issuers:
            from gateway.parts.access.keys.issuer import Issuer

            self._issuers = {issuer.issuer: Issuer(issuer, folder) for issuer in config.issuers}

    @classmethod
    def of(cls, deployment: Deployment) -> Self:
        """Return the issuers and roles of a deployment."""
        config = deployment.of(AccessSections)
        return cls(config.identity, config.roles, deployment.embedding.state)

    def __bool__(self) -> bool:
        """Return whether there are issuers."""
        return bool(self._issuers)

    def issuer(self, name: str) -> Issuer:
        """Return an issuer that the config lists."""
        return self._issuers[name]

    def known(self, token: bytes) -> KeyCaller | None:
        """Return whose a token is, if `keep` was told a moment ago: one hash and one lookup."""
        until, caller = self._callers.get(hashlib.sha256(token).digest(), _NOBODY)
        return caller if until > time.time() else None

    def keep(self, token: bytes, caller: KeyCaller) -> None:
        """Remember the caller that a token stands for, as found by `record`, for a while."""
        until = time.time() + CALLER_S
        ends = until if caller.record is None or caller.record.expires is None else caller.record.expires
        digest = hashlib.sha256(token).digest()
        self._callers[digest] = min(until, ends), caller
        self._callers.move_to_end(digest)
        if len(self._callers) > _MOST:
            self._callers.popitem(last=False)

    async def record(self, token: bytes) -> KeyRecord:
        """Return the key that a token stands for; it ends with the token. Raises Unauthorized and Overloaded."""
        digest = hashlib.sha256(token).digest()
        until, issuer, claims = await self._remembered(digest, token)
        try:
            return _record(digest.hex(), until, issuer, claims)
        except BadToken as error:
            raise _refused(error) from None

    async def person(self, token: bytes) -> Person:
        """Return who has a token, with their roles. Raises Unauthorized and Overloaded."""
        _, issuer, claims = await self._remembered(hashlib.sha256(token).digest(), token)
        return self.person_of(issuer, claims)

    def person_of(self, issuer: IssuerConfig, claims: Mapping[str, Any]) -> Person:
        """Return the person that verified claims are of.

        Raises Unauthorized if they name no tenant or a bad one, or if the person's team, or all roles, would come from
        claims that the token was too short for.
        """
        grants = tuple(
            Grant(role.role, role.surfaces or role.teams or ()) for role in self._roles if _has(role, issuer, claims)
        )
        try:
            tenant = _tenant(issuer, claims)
            _require_whole(claims, () if grants else (name for role in self._roles for name in role.where))
            _require_whole(claims, (issuer.claims.team or "", issuer.claims.surfaces or ""))
        except BadToken as error:
            raise _refused(error) from None
        return Person(
            _called(issuer, claims),
            _id(issuer, claims),
            grants,
            tenant,
            tuple(_teams(issuer, claims)),
            _surfaces(issuer, claims) or (NO_NAMES if issuer.claims.surfaces is not None else ()),
            issuer.limits,
            issuer.longest_key_life,
        )

    async def _remembered(self, digest: bytes, token: bytes) -> tuple[float, IssuerConfig, Mapping[str, Any]]:
        """Return until when a token holds, its issuer and its claims. Raises Unauthorized and Overloaded."""
        verified = self._verified.get(digest)
        if verified is not None and verified[0] > time.time():
            self._verified.move_to_end(digest)
            return verified
        from gateway.parts.access.keys.issuer import RETRY_S, IssuerUnavailable

        try:
            issuer = self._issuers.get(issuer_in(token))
            if issuer is None:
                raise BadToken("its issuer is none of this gateway's")
            claims = await issuer.claims(token, issuer.config.audience)
        except BadToken as error:
            self._verified.pop(digest, None)
            raise _refused(error) from None
        except IssuerUnavailable as error:
            message = f"Tokens cannot be verified just now: {error}."
            raise Overloaded(message, code="issuer_unavailable", headers=retry_after(RETRY_S)) from None
        until = min(claims["exp"], time.time() + REMEMBERED_S) + issuer.config.leeway
        self._verified[digest] = until, issuer.config, claims
        if len(self._verified) > _MOST:
            self._verified.popitem(last=False)
        return self._verified[digest]


def _refused(error: BadToken) -> Unauthorized:
    return Unauthorized(f"The token is not accepted: {error}.")


def _record(digest: str, until: float, issuer: IssuerConfig, claims: Mapping[str, Any]) -> KeyRecord:
    """Return the key of a token's subject. Raises BadToken if a claim that the config names is not there."""
    _require_whole(claims, (issuer.claims.team or "", issuer.claims.surfaces or ""))
    team = next(_teams(issuer, claims), "")
    if issuer.claims.team is not None and not team:
        raise BadToken(f"its claim {issuer.claims.team} names no team")
    surfaces = _surfaces(issuer, claims)
    if issuer.claims.surfaces is not None and not surfaces:
        raise BadToken(f"its claim {issuer.claims.surfaces} names no surface")
    called = _called(issuer, claims)
    return KeyRecord(
        id=_id(issuer, claims),
        digest=digest,
        tenant=_tenant(issuer, claims),
        team=team,
        name=called,
        owner=called,
        surfaces=surfaces,
        terms=issuer.limits,
        expires=until,
        created_by=issuer.issuer,
    )


def _require_whole(claims: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise BadToken for the first of these claims that was left out of the token for its length."""
    for name in names:
        if is_left_out(claims, name):
            raise BadToken(
                f"its claim {name} was left out, as it would be too long (overage); have the provider send only the "
                "groups that are assigned to this application, or app roles"
            )


def _id(issuer: IssuerConfig, claims: Mapping[str, Any]) -> str:
    """Return the stable id of a subject: a hash, since what providers call people may be personal."""
    named = hashlib.sha256(f"{issuer.issuer}\0{claims['sub']}".encode("utf-8", "surrogatepass")).digest()
    return f"u_{base64.b32encode(named[:10]).decode().lower()}"


def _tenant(issuer: IssuerConfig, claims: Mapping[str, Any]) -> str:
    if issuer.claims.tenant is None:
        return issuer.tenant or DEFAULT_TENANT
    value = claim_in(claims, issuer.claims.tenant)
    if value is None and issuer.tenant is not None:
        return issuer.tenant
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise BadToken(f"its claim {issuer.claims.tenant} is no tenant's name")
    return value


def _teams(issuer: IssuerConfig, claims: Mapping[str, Any]) -> Iterator[str]:
    """Yield the teams of a subject, in the config's order; the first one pays."""
    named = () if issuer.claims.team is None else texts(claim_in(claims, issuer.claims.team))
    if issuer.teams:
        yield from dict.fromkeys(team for group, team in issuer.teams.items() if group in named)
    else:
        yield from filter(_NAME.fullmatch, named)


def _surfaces(issuer: IssuerConfig, claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the surfaces that a subject's claim names; () for none, and where no claim says them."""
    named = issuer.claims.surfaces
    return () if named is None else tuple(filter(_NAME.fullmatch, texts(claim_in(claims, named), split=True)))


def _called(issuer: IssuerConfig, claims: Mapping[str, Any]) -> str:
    """Return what a person is called, without what could break a line of a log or a page."""
    value = claim_in(claims, issuer.claims.user)
    name = value if isinstance(value, str) and value else claims["sub"]
    return "".join(char for char in str(name)[:_LONGEST] if char.isprintable())


def _has(role: RoleConfig, issuer: IssuerConfig, claims: Mapping[str, Any]) -> bool:
    if role.issuer is not None and role.issuer != issuer.issuer:
        return False
    return all(set(values).intersection(texts(claim_in(claims, name))) for name, values in role.where.items())
