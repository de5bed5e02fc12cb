"""Protect a gateway without keys from web pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gateway.config.addresses import is_loopback
from gateway.errors import Forbidden

if TYPE_CHECKING:
    from gateway.config.schema import Deployment

_TO_ALLOW: Final = "access.hosts in its config allows further names, and with tenants any name is accepted"
_MOST_HOSTS: Final = 64


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
