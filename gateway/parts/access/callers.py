"""Find who sends a request: an `Authenticator` (`gateway.steps`).

The sender is found in one place for all routes: a tenant of the config, a key of the store, or an identity.

    no key                           `default`, where none is demanded
    begins with `tl_`                a key of the store, also where none is demanded: an unknown one is refused
    a token (JWT), with issuers      an identity, verified by its issuer's keys
    anything else                    a tenant's key in the config, else one that was imported into the store

What a worker knows already is found with no `await`; the rest is looked up (`find`), once for all who wait for it.
Of two credentials, a bearer token and an `x-api-key`, the one that is a key here counts: clients that are signed in to
a provider send its token beside our key. One that looks like ours and is refused is never made up for by no key.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from gateway.caller import ANYBODY, Caller, bearer_key
from gateway.config.environment import BadSecret
from gateway.config.schema import key_digest
from gateway.errors import Overloaded, Unauthorized
from gateway.parts.access.keys.held_keys import UNKNOWN
from gateway.parts.access.keys.identities import Identities
from gateway.parts.access.keys.key_caller import caller_of
from gateway.parts.access.keys.minting import PREFIX
from gateway.parts.access.keys.records import KeyRecord, OwnerRecord
from gateway.parts.access.keys.tokens import is_token

if TYPE_CHECKING:
    from gateway.parts.access.config import TenantConfig
    from gateway.parts.access.keys.known_keys import KnownKeys

_NOBODY: Final = (bytes(32), ANYBODY)
"""Compared with an unknown key, so that checking it takes as long as checking a known one."""


def credentials(headers: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """Return the bearer token and the `x-api-key` of a request, without those that are empty, each once."""
    first, second = bearer_key(headers), headers.get(b"x-api-key", b"").strip()
    return (first, second) if second and second != first else (first,)


class Callers:
    """Find the caller of a request. Only the SHA-256 of a tenant's key is kept.

    A check takes one hash and one lookup, for any number of tenants and for known and unknown keys alike.
    """

    def __init__(
        self,
        tenants: Mapping[str, TenantConfig],
        *,
        required: bool = False,
        identities: Identities | None = None,
        keys: KnownKeys | None = None,
    ) -> None:
        """Prepare the callers of the config's tenants. `required`: also without tenants, who has no key is refused.

        `keys` are those of the store, and know the terms of teams and tenants; None for neither.
        """
        self._tenants = tenants
        self._keys = keys
        self._identities = identities or None
        self._by_digest: dict[bytes, tuple[bytes, Caller]] = {}
        self._anybody = None if tenants or required else ANYBODY
        if keys is not None:
            keys.on_owners = self._take_terms
        self._take_terms()

    def rekey(self, tenant: str, digests: Collection[bytes]) -> None:
        """Take other digests for a tenant's keys. Raises BadSecret if one of them is another tenant's."""
        others = (tenant_keys for name, tenant_keys in self._tenants.items() if name != tenant)
        if any(digest in other.key_digests for other in others for digest in digests):
            raise BadSecret(f"a key of {tenant!r} is also another tenant's")
        changed = self._tenants[tenant].model_copy(update={"key_digests": tuple(digests)})
        self._tenants = {**self._tenants, tenant: changed}
        self._take_terms()

    def _take_terms(self) -> None:
        """Make the callers of the config's tenants, by the terms that their teams and they themselves have now."""
        owner: Callable[[str], OwnerRecord | None] = (lambda _: None) if self._keys is None else self._keys.owner
        self._by_digest = {
            digest: (digest, caller)
            for name, config in self._tenants.items()
            for caller in [
                caller_of(
                    KeyRecord("", "", name, config.team or "", may_try=config.may_try),
                    owner(f"team:{config.team}"),
                    owner(f"tenant:{name}"),
                    own=False,
                )
            ]
            for digest in config.key_digests
        }

    def known(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the caller of a request; None if it has to be found. Raises Unauthorized for a key that is none."""
        bearer, other = b"authorization" in headers, b"x-api-key" in headers
        if self._anybody is not None and not (bearer or other):
            return self._anybody
        if bearer and other:
            return self._known_of(credentials(headers))
        return self._known(bearer_key(headers))

    def _known_of(self, keys: Sequence[bytes]) -> Caller | None:
        """Return the caller of the first of several credentials that is a key here, as `known` does."""
        refused: Unauthorized | None = None
        nobodys: Caller | None = None
        for key in keys:
            try:
                caller = self._known(key)
            except Unauthorized as error:
                refused = refused or error
                continue
            if caller is not ANYBODY:
                return caller
            nobodys = caller
        if refused is not None:
            raise refused
        return nobodys

    def _known(self, key: bytes) -> Caller | None:
        keys = self._keys
        if key[:3] == PREFIX and keys is not None:
            return keys.known(key)
        if self._identities is not None and is_token(key):
            return self._identities.known(key)
        imported = keys is not None and keys.imported and key != b""
        if self._anybody is not None:
            return None if imported else self._anybody
        digest = key_digest(key)
        expected, caller = self._by_digest.get(digest, _NOBODY)
        if hmac.compare_digest(expected, digest):
            return caller
        if imported and keys is not None:
            return keys.known(key)
        raise Unauthorized(UNKNOWN)

    async def find(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller of a request, known or not. Raises Unauthorized, and Overloaded in trouble."""
        refused: Unauthorized | Overloaded | None = None
        for key in credentials(headers):
            try:
                caller = self._known(key) or await self._find(key)
            except (Unauthorized, Overloaded) as error:
                refused = refused or error
                continue
            if caller is not ANYBODY:
                return caller
        if refused is not None:
            raise refused
        return ANYBODY

    async def _find(self, key: bytes) -> Caller:
        keys = self._keys
        if self._identities is not None and is_token(key):
            record = await self._identities.record(key)
            caller = caller_of(record) if keys is None else await keys.of_record(record)
            self._identities.keep(key, caller)
            return caller
        if keys is None:
            raise Unauthorized(UNKNOWN)
        if self._anybody is None or key[:3] == PREFIX:
            return await keys.find(key)
        return await keys.find_or(key, self._anybody)


def is_key(key: bytes, expected: SecretStr) -> bool:
    """Return whether a request's key is the expected one, in a time that does not tell how far it is right."""
    return bool(key) and hmac.compare_digest(key_digest(key), key_digest(expected.get_secret_value().encode()))
