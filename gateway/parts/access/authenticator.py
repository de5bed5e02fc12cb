"""Say who sends a request, by the keys, tenants and identities of a deployment; and who may see how it does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.caller import bearer_key
from gateway.config.environment import LEAST_KEY
from gateway.config.schema import key_digest
from gateway.errors import Overloaded, Unauthorized
from gateway.parts.access.callers import Callers, is_key
from gateway.parts.access.config import AccessSections
from gateway.parts.access.keys.identities import Identities
from gateway.parts.access.keys.kept_keys import KeptKeys, copy_file
from gateway.parts.access.keys.known_keys import KnownKeys, configured_owners
from gateway.parts.access.keys.minting import secret_of
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.parts.access.keys.tokens import is_token

if TYPE_CHECKING:
    from pydantic import SecretStr

    from cache.store.base import Store
    from gateway.config.schema import Deployment
    from gateway.steps import KeyFiles


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
