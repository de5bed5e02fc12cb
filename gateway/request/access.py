"""Who may ask: the tenant that a key stands for, and what a gateway without keys refuses."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from gateway.config.addresses import is_loopback
from gateway.config.schema import DEFAULT_TENANT, Deployment, TenantConfig, key_digest
from gateway.errors import Forbidden, Unauthorized

_BEARER: Final = b"bearer "
_TO_ALLOW: Final = "access.hosts in its config allows more names, and with tenants any name will do"
_NOBODY: Final = (bytes(32), "")
"""What an unknown key is compared with, so that it takes as long as a known one."""


def bearer_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key that a request was sent with; empty if there is none."""
    value = headers.get(b"authorization", b"")
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""


class Tenants:
    """Who a key stands for. Keys are known by their SHA-256 alone; without tenants everyone is `default`.

    A key costs one hash and one lookup, however many tenants there are, and an unknown key costs the same.
    """

    def __init__(self, tenants: Mapping[str, TenantConfig]) -> None:
        self._by_digest = {digest: (digest, name) for name, tenant in tenants.items() for digest in tenant.key_digests}
        self._open = not tenants

    def of(self, headers: Mapping[bytes, bytes]) -> str:
        """The tenant of a request; raises Unauthorized."""
        if self._open:
            return DEFAULT_TENANT
        digest = key_digest(bearer_key(headers))
        known, tenant = self._by_digest.get(digest, _NOBODY)
        if not hmac.compare_digest(known, digest):
            raise Unauthorized("The API key is missing or unknown. Send it as 'Authorization: Bearer KEY'.")
        return tenant


class LoopbackGuard:
    """Refuse what a web page sends to a gateway that asks for no key because it listens on loopback.

    Any page that a person on this machine opens can send requests to 127.0.0.1, or to a name of its own that resolves
    there (DNS rebinding), and would spend the gateway's keys. A browser names both in headers that no page can forge.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.active = deployment.keyless and is_loopback(deployment.host)
        """Where it is not, every request has a key, or the config says that strangers are kept out."""
        self._names = frozenset(deployment.access.hosts)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises Forbidden for a request to a name that is not this machine's, or from another site's page."""
        if not self.active:
            return
        host = headers.get(b"host")
        if host is not None and not self._allows(host):
            raise Forbidden(f"This gateway asks for no key, so it answers to names of this machine alone; {_TO_ALLOW}.")
        origin = headers.get(b"origin")
        if origin is not None and not self._allows(origin.partition(b"://")[2]):
            message = f"This gateway asks for no key, so no page of another site may use it; {_TO_ALLOW}."
            raise Forbidden(message, code="origin_not_allowed")

    def _allows(self, authority: bytes) -> bool:
        """Whether `authority`, a name or an address with or without a port, is loopback or named by the config."""
        text = authority.decode("latin-1").lower()
        name = text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]
        return name in self._names or is_loopback(name)


def is_operator(headers: Mapping[bytes, bytes], deployment: Deployment) -> bool:
    """Whether the sender may read what the gateway knows of all tenants: metrics, models, and what is degraded."""
    if deployment.keyless or deployment.access.public_metrics:
        return True
    admin, key = deployment.admin, bearer_key(headers)
    return admin is not None and admin.key is not None and bool(key) and _same(key, admin.key.get_secret_value())


def _same(key: bytes, known: str) -> bool:
    return hmac.compare_digest(key_digest(key), key_digest(known.encode()))
