"""Read the key of a request, check an operator's, and protect a gateway without keys from web pages."""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from pydantic import SecretStr

from gateway.config.addresses import is_loopback
from gateway.config.schema import Deployment, key_digest
from gateway.errors import Forbidden, Overloaded, Unauthorized
from gateway.keys.identities import Identities
from gateway.keys.roles import may
from gateway.keys.tokens import is_token

_BEARER: Final = b"bearer "
_TO_ALLOW: Final = "access.hosts in its config allows further names, and with tenants any name is accepted"
_MOST_HOSTS: Final = 64


def bearer_key(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the key of a request, as a bearer token or in `x-api-key`; empty if there is none."""
    value = headers.get(b"authorization", b"")
    if value[: len(_BEARER)].lower() == _BEARER:
        return value[len(_BEARER) :].strip()
    return headers.get(b"x-api-key", b"").strip()


def in_tenants_space(tenant: str, name: str) -> str:
    """Return a client's name for something at a provider as one that no other tenant's can be equal to."""
    named = b"%d:%s%s" % (len(tenant), tenant.encode(), name.encode("utf-8", "surrogatepass"))
    return f"tl-{sha256(named).hexdigest()[:32]}"


class LoopbackGuard:
    """Refuse requests of web pages to a gateway that requires no key because it listens on loopback.

    Any page open in a browser on this machine can send requests to 127.0.0.1, or to a name of its own that resolves to
    it (DNS rebinding), and would spend the gateway's keys. The browser sends both names, in `Host` and `Origin`, and
    pages cannot change those.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.active = deployment.keyless and is_loopback(deployment.host)
        """Whether requests are checked. If not, each needs a key, or the config has `access: {keyless: true}`."""
        self._names = frozenset(deployment.access.hosts)
        self._pages = deployment.access.cors_pattern
        self._allowed: dict[bytes, bool] = {}

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Forbidden if the Host is not a name of this machine, or the Origin is another site."""
        if not self.active:
            return
        host = headers.get(b"host")
        if host is not None and not (self._allowed.get(host) or self._allows(host)):
            message = f"This gateway requires no key, so it only accepts names of this machine in Host; {_TO_ALLOW}."
            raise Forbidden(message)
        origin = headers.get(b"origin")
        if origin is None or (self._pages is not None and self._pages.fullmatch(origin.decode("latin-1"))):
            return
        if not self._allows(origin.partition(b"://")[2]):
            message = (
                f"This gateway requires no key, so pages of other sites may not use it; {_TO_ALLOW}, and access.cors "
                "lets pages and desktop applications in by their origin."
            )
            raise Forbidden(message, code="origin_not_allowed")

    def _allows(self, authority: bytes) -> bool:
        """Return whether `authority`, a name or address with or without a port, is loopback or in `access.hosts`."""
        text = authority.decode("latin-1").lower()
        name = text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]
        allowed = name in self._names or is_loopback(name)
        if allowed and len(self._allowed) < _MOST_HOSTS:
            self._allowed[authority] = True
        return allowed


async def is_operator(headers: Mapping[bytes, bytes], deployment: Deployment, identities: Identities) -> bool:
    """Return whether the sender may read data on all tenants: /metrics and the details of /readyz."""
    if deployment.keyless or deployment.access.public_metrics:
        return True
    admin, key = deployment.admin, bearer_key(headers)
    if admin is not None and admin.key is not None and is_key(key, admin.key):
        return True
    if identities and is_token(key):
        with contextlib.suppress(Unauthorized, Overloaded):
            return may(await identities.person(key), "look")
    return False


def is_key(key: bytes, expected: SecretStr) -> bool:
    """Return whether a request's key is the expected one, in a time that does not tell how far it is right."""
    return bool(key) and hmac.compare_digest(key_digest(key), key_digest(expected.get_secret_value().encode()))
