"""Find who sends a request, in one place for all routes: a tenant of the config, a key of the store, or an identity.

    no key                           `default`, where none is demanded
    begins with `tl_`                a key of the store, also where none is demanded: an unknown one is refused
    a token (JWT), with issuers      an identity, verified by its issuer's keys
    anything else                    a tenant's key in the config

What a worker knows already is found with no `await`; the rest is looked up (`find`), once for all who wait for it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol

from gateway.config.schema import key_digest
from gateway.errors import Unauthorized
from gateway.keys.records import ANYBODY, Caller, KeyRecord, Limited, OwnerRecord
from gateway.keys.tokens import is_token
from gateway.request.access import bearer_key

if TYPE_CHECKING:
    from gateway.config.keys import OwnerTerms
    from gateway.config.schema import TenantConfig
    from gateway.keys.identities import Identities

PREFIX: Final = b"tl_"
"""What the keys of the store begin with."""
_NOBODY: Final = (bytes(32), ANYBODY)
"""Compared with an unknown key, so that checking it takes as long as checking a known one."""
_REFUSED: Final = "The API key is missing or unknown. Send it as 'Authorization: Bearer KEY'."


class KeySource(Protocol):
    """The keys of the store, as a worker knows them; `gateway.keys` implements it."""

    def known(self, key: bytes) -> Caller | None:
        """Return the caller of a key that is at hand and valid; None if it has to be found. Raises Unauthorized."""

    async def find(self, key: bytes) -> Caller:
        """Return the caller of a key. Raises Unauthorized; Overloaded where the store cannot say."""

    async def of_record(self, record: KeyRecord) -> Caller:
        """Return the caller of the record that an identity's token stands for. Raises Unauthorized."""


class Callers:
    """Find the caller of a request. Only the SHA-256 of a tenant's key is kept.

    A check takes one hash and one lookup, for any number of tenants and for known and unknown keys alike.
    """

    def __init__(
        self,
        tenants: Mapping[str, TenantConfig],
        teams: Mapping[str, OwnerTerms] = MappingProxyType({}),
        *,
        required: bool = False,
        identities: Identities | None = None,
        keys: KeySource | None = None,
    ) -> None:
        """Prepare the callers of the config's tenants. `required`: also without tenants, who has no key is refused.

        `keys` are those of the store; None where there is none.
        """
        self._tenants, self._teams = tenants, teams
        self._keys = keys
        self._identities = identities or None
        self._by_digest = {
            digest: (digest, caller)
            for name, one in tenants.items()
            for caller in [self.configured(KeyRecord("", "", name, one.team or "", may_try=one.may_try))]
            for digest in one.key_digests
        }
        self._anybody = None if tenants or required else ANYBODY

    def known(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the caller of a request; None if it has to be found. Raises Unauthorized for a key that is none."""
        key = bearer_key(headers)
        if key[:3] == PREFIX and self._keys is not None:
            return self._keys.known(key)
        if self._identities is not None and is_token(key):
            return self._identities.known(key)
        if self._anybody is not None:
            return self._anybody
        digest = key_digest(key)
        expected, caller = self._by_digest.get(digest, _NOBODY)
        if not hmac.compare_digest(expected, digest):
            raise Unauthorized(_REFUSED)
        return caller

    async def find(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller of a request that is not known yet. Raises Unauthorized, and Overloaded in trouble."""
        key = bearer_key(headers)
        if self._keys is not None and key[:3] == PREFIX:
            return await self._keys.find(key)
        if self._identities is None:
            raise Unauthorized(_REFUSED)
        record = await self._identities.record(key)
        caller = self.configured(record) if self._keys is None else await self._keys.of_record(record)
        self._identities.keep(key, caller)
        return caller

    async def of(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller of a request, known or found. Raises Unauthorized, and Overloaded in trouble."""
        return self.known(headers) or await self.find(headers)

    def configured(self, record: KeyRecord) -> Caller:
        """Return the caller of a record, by the terms that the config gives its team and its tenant."""
        team, tenant = self._teams.get(record.team), self._tenants.get(record.tenant)
        return caller_of(
            record,
            None if team is None else _owner("team", record.team, team),
            None if tenant is None else _owner("tenant", record.tenant, tenant),
        )


def _owner(kind: Literal["team", "tenant"], name: str, terms: OwnerTerms) -> OwnerRecord:
    return OwnerRecord(kind, name, terms.limits, terms.per_user, terms.per_session)


def caller_of(record: KeyRecord, team: OwnerRecord | None = None, tenant: OwnerRecord | None = None) -> Caller:
    """Return the caller of a key with the terms of all its owners; `team` and `tenant` are None for no terms."""
    owners = [one for one in (team, tenant) if one is not None]
    limited = [Limited("key", record.id, record.terms), *(Limited(one.kind, one.name, one.terms) for one in owners)]
    every: tuple[KeyRecord | OwnerRecord, ...] = (record, *owners)
    return Caller(
        record.tenant,
        record.team,
        record.id,
        record,
        tuple(one for one in limited if one.terms),
        tuple(one.per_user for one in every if one.per_user),
        tuple(one.per_session for one in every if one.per_session),
    )
