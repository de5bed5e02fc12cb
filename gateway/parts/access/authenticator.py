"""Say who sends a request, by the keys, tenants and identities of a deployment; and who may see how it does.

Find who sends a request: an `Authenticator` (`gateway.steps`).

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

import contextlib
import hmac
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from gateway.caller import ANYBODY, Caller, bearer_key
from gateway.config.environment import LEAST_KEY, BadSecret
from gateway.config.schema import key_digest
from gateway.errors import Overloaded, Unauthorized
from gateway.parts.access.config import AccessSections
from gateway.parts.access.keys.held_keys import UNKNOWN
from gateway.parts.access.keys.identities import Identities, is_token
from gateway.parts.access.keys.kept_keys import KeptKeys, copy_file
from gateway.parts.access.keys.key_caller import caller_of
from gateway.parts.access.keys.known_keys import KnownKeys, configured_owners
from gateway.parts.access.keys.records import PREFIX, KeyRecord, OwnerRecord, secret_of
from gateway.parts.access.keys.registry import KeyRegistry

if TYPE_CHECKING:
    from cache.store.base import Store
    from gateway.config.schema import Deployment
    from gateway.parts.access.config import TenantConfig
    from gateway.steps import KeyFiles

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


class KeyAuthenticator(Callers):
    """The callers of one worker, with what knows them. It starts by reading the store's keys, and follows these."""

    def __init__(self, deployment: Deployment, store: Store) -> None:
        url, state = deployment.store.url, deployment.embedding.state
        kept = None if url is None else KeptKeys(copy_file(state, url))
        self._config = config = deployment.of(AccessSections)
        owners = configured_owners(config.teams, config.tenants)
        self.keys = KnownKeys(KeyRegistry(store), secret_of(), owners, kept, team_of=deployment.team_of)
        self.identities = Identities(config.identity, config.roles, state)
        super().__init__(config.tenants, required=config.keys.required, identities=self.identities, keys=self.keys)
        self._deployment = deployment

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong with the store's keys, in words, for /readyz."""
        return self.keys.notes

    async def is_operator(self, headers: Mapping[bytes, bytes]) -> bool:
        """See `Authenticator`: whoever has the admin key or a role; everybody where no key is required."""
        return await is_operator(headers, self._deployment, self.identities)

    def watch(self, files: KeyFiles) -> None:
        """Have the keys of tenants read again when their files change."""
        for name, tenant in self._config.tenants.items():
            named = [os.environ[variable].encode() for variable in tenant.key_env if os.environ.get(variable)]

            def digests(keys: list[SecretStr], name: str = name, named: Sequence[bytes] = named) -> None:
                texts = [*named, *(key.get_secret_value().encode() for key in keys)]
                self.rekey(name, tuple(map(key_digest, texts)))

            files.watch(tenant.key_file, LEAST_KEY, digests)

    async def start(self) -> None:
        """Take what the registry says, if the store answers within two seconds, and follow it from now on."""
        await self.keys.start()

    async def aclose(self) -> None:
        """Follow no more."""
        await self.keys.aclose()


async def is_operator(headers: Mapping[bytes, bytes], deployment: Deployment, identities: Identities) -> bool:
    """Return whether the sender may read data on all tenants: /metrics and the details of /readyz."""
    if deployment.keyless or deployment.access.public_metrics:
        return True
    admin, key = deployment.of(AccessSections).admin, bearer_key(headers)
    if admin is not None and admin.key is not None and is_key(key, admin.key):
        return True
    if identities and is_token(key):
        with contextlib.suppress(Unauthorized, Overloaded):
            return (await identities.person(key)).may("look")
    return False
