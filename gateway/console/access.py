"""Decide who may see the console: everybody on this machine, or whoever has a key.

Without keys it listens on loopback alone, and only to names of this machine, so that a web page cannot reach it through
a name of its own (DNS rebinding). With a key, a browser signs in once and gets a cookie; scripts send the key as
`Authorization: Bearer KEY`. The editor's key may change policies, the viewer's may look.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from gateway.config.addresses import is_loopback

COOKIE: Final = "tierline-console"
SESSION_S: Final = 7 * 86400
_BEARER: Final = "bearer "


class Role(IntEnum):
    """What somebody may do; each role may do what those before it may."""

    NOBODY = 0
    VIEWER = 1
    EDITOR = 2


class ConsoleAccess:
    """Find the role of a request. Keys are kept as SHA-256 alone; sessions are signed by them, and stored nowhere."""

    def __init__(self, keys: Mapping[Role, str], hosts: frozenset[str] = frozenset()) -> None:
        """`keys`: by role, those that are set; empty for a console that needs none. `hosts`: further names of ours."""
        self._digests = {role: hashlib.sha256(key.encode()).digest() for role, key in keys.items()}
        self._roles = {role.value for role in keys}
        self._hosts = hosts
        self.needs_key = bool(keys)

    def host_allowed(self, host: str) -> bool:
        """Return whether the `Host` header names this machine, where no key protects the console."""
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        return self.needs_key or name in self._hosts or is_loopback(name)

    def role_of(self, authorization: str, cookie: str) -> Role:
        """Return the role that a request's headers give."""
        if not self.needs_key:
            return Role.EDITOR
        if authorization[: len(_BEARER)].lower() == _BEARER:
            return self.role_of_key(authorization[len(_BEARER) :].strip())
        return self._role_of_session(cookie)

    def role_of_key(self, key: str) -> Role:
        """Return the role of a key: NOBODY for an unknown one."""
        digest = hashlib.sha256(key.encode()).digest()
        found = [role for role, known in self._digests.items() if hmac.compare_digest(known, digest)]
        return max(found, default=Role.NOBODY)

    def session(self, role: Role) -> str:
        """Return the value of the cookie that keeps a browser signed in for SESSION_S."""
        until = int(time.time()) + SESSION_S
        return f"{role.value}.{until}.{self._signature(role, until)}"

    def _role_of_session(self, cookie: str) -> Role:
        number, _, rest = cookie.partition(".")
        until, _, signature = rest.partition(".")
        if not (number.isdecimal() and until.isdecimal() and int(number) in self._roles and int(until) > time.time()):
            return Role.NOBODY
        role = Role(int(number))
        if not hmac.compare_digest(signature, self._signature(role, int(until))):
            return Role.NOBODY
        return role

    def _signature(self, role: Role, until: int) -> str:
        return hmac.new(self._digests[role], f"console {role.value} {until}".encode(), "sha256").hexdigest()
