"""Decide who may see the console: everybody on this machine, or whoever has a key.

Without keys it listens on loopback alone, and only to names of this machine, so that a web page cannot reach it through
a name of its own (DNS rebinding). With a key, a browser signs in once and gets a cookie; scripts send the key as
`Authorization: Bearer KEY`. The editor's key may change policies, the viewer's may look. Sessions live in this
process: one ends when it is signed out, after SESSION_S, and when the console starts anew.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from gateway.config.addresses import is_loopback
from gateway.request.key_tries import KeyTries

COOKIE: Final = "tierline-console"
SESSION_S: Final = 7 * 86400
_BEARER: Final = "bearer "
_MOST_SESSIONS: Final = 1000


class Role(IntEnum):
    """What somebody may do; each role may do what those before it may."""

    NOBODY = 0
    VIEWER = 1
    EDITOR = 2


class ConsoleAccess:
    """Find the role of a request. Of keys and of sessions' cookies the SHA-256 alone is kept."""

    def __init__(self, keys: Mapping[Role, str], hosts: frozenset[str] = frozenset()) -> None:
        """`keys`: by role, those that are set; empty for a console that needs none. `hosts`: further names of ours."""
        self._digests = {role: _digest(key) for role, key in keys.items()}
        self._sessions: OrderedDict[bytes, tuple[Role, float]] = OrderedDict()
        """By the digest of its cookie, the role of a session and the time at which it ends; the oldest first."""
        self._tries = KeyTries()
        self._hosts = hosts
        self.needs_key = bool(keys)

    def host_allowed(self, host: str) -> bool:
        """Return whether the `Host` header names this machine, where no key protects the console."""
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        return self.needs_key or name in self._hosts or is_loopback(name)

    def role_of(self, authorization: str, cookie: str, address: str = "") -> Role:
        """Return the role that a request's headers give. Raises RateLimited as `role_of_key` does."""
        if not self.needs_key:
            return Role.EDITOR
        if authorization[: len(_BEARER)].lower() == _BEARER:
            return self.role_of_key(authorization[len(_BEARER) :].strip(), address)
        role, until = self._sessions.get(_digest(cookie), (Role.NOBODY, 0.0))
        return role if until > time.monotonic() else Role.NOBODY

    def role_of_key(self, key: str, address: str = "") -> Role:
        """Return the role of a key: NOBODY for an unknown one.

        Raises RateLimited if too many unknown ones came from the address.
        """
        self._tries.check(address)
        digest = _digest(key)
        found = [role for role, known in self._digests.items() if hmac.compare_digest(known, digest)]
        if not found:
            self._tries.refused(address)
        return max(found, default=Role.NOBODY)

    def session(self, role: Role) -> str:
        """Begin a session, and return the value of the cookie that keeps a browser signed in for SESSION_S."""
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = role, time.monotonic() + SESSION_S
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return cookie

    def end_session(self, cookie: str) -> None:
        """End the session of a cookie, whoever still has it."""
        self._sessions.pop(_digest(cookie), None)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
