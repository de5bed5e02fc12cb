"""Find who uses the console: anybody on this machine, whoever has a key, or a person of an identity provider.

Without keys and login it listens on loopback alone, and only to names of this machine, so that a web page cannot reach
it through a name of its own (DNS rebinding). Else a browser signs in once and gets a cookie; scripts send the key, or a
person's token, as `Authorization: Bearer KEY`. What each may do is said by `access.keys.roles`. Sessions live in this
process: one ends when it is signed out, after SESSION_S (LOGIN_S for a person), and when the console starts anew.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Final, Self

from gateway.config.addresses import is_loopback
from gateway.errors import Unauthorized
from gateway.parts.access.key_tries import KeyTries
from gateway.parts.access.keys.identities import Identities, is_token
from gateway.parts.access.keys.roles import ADMIN, EDITOR, NOBODY, OWNER, VIEWER, Person

COOKIE: Final = "tierline-console"
SESSION_S: Final = 7 * 86400
LOGIN_S: Final = 12 * 3600
"""A person who has lost a role at the provider keeps it here no longer."""
_BEARER: Final = "bearer "
_MOST_SESSIONS: Final = 1000


class ConsoleAccess:
    """Find the person of a request. Of keys and of sessions' cookies the SHA-256 alone is kept."""

    def __init__(
        self,
        keys: Mapping[Person, str],
        hosts: frozenset[str] = frozenset(),
        identities: Identities | None = None,
        *,
        login: bool = False,
    ) -> None:
        """`keys`: by whom they stand for; empty for a console that needs none, unless people log in.

        `hosts`: further names of ours. `identities` verify the tokens of people.
        """
        self._digests = {person: _digest(key) for person, key in keys.items()}
        self._sessions: OrderedDict[bytes, tuple[Person, float]] = OrderedDict()
        """By the digest of its cookie, the person of a session and the time at which it ends; the oldest first."""
        self.tries = KeyTries()
        """Wrong keys, by address."""
        self._hosts = hosts
        self._identities = identities
        self.has_keys = bool(keys)
        self.needs_key = self.has_keys or login

    @classmethod
    def by_roles(
        cls, keys: Mapping[str, str], hosts: frozenset[str], identities: Identities | None, *, login: bool
    ) -> Self:
        """Return the access of a console whose static keys are given by role: viewer, editor and admin."""
        persons = {"viewer": VIEWER, "editor": EDITOR, "admin": ADMIN}
        return cls({persons[role]: key for role, key in keys.items()}, hosts, identities, login=login)

    def host_allowed(self, host: str) -> bool:
        """Return whether the `Host` header names this machine, where no key protects the console."""
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        return self.needs_key or name in self._hosts or is_loopback(name)

    async def person_of(self, authorization: str, cookie: str, address: str = "") -> Person:
        """Return the person that a request's headers give. Raises as `person_of_key` does."""
        if not self.needs_key:
            return OWNER
        if authorization[: len(_BEARER)].lower() == _BEARER:
            return await self.person_of_key(authorization[len(_BEARER) :].strip(), address)
        person, until = self._sessions.get(_digest(cookie), (NOBODY, 0.0))
        return person if until > time.monotonic() else NOBODY

    async def person_of_key(self, key: str, address: str = "") -> Person:
        """Return whose a key or a token is: NOBODY for an unknown one.

        Raises RateLimited if too many unknown ones came from the address, and Overloaded if no token can be verified.
        """
        digest = _digest(key)
        persons = [person for person, known in self._digests.items() if hmac.compare_digest(known, digest)]
        if not persons and self._identities and is_token(token := key.encode("utf-8", "replace")):
            try:
                return await self._identities.person(token)
            except Unauthorized:
                pass
        if not persons:
            self.tries.refused(address)
        return persons[-1] if persons else NOBODY

    def session(self, person: Person) -> str:
        """Begin a session, and return the value of the cookie that keeps a browser signed in for its time."""
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = person, time.monotonic() + (LOGIN_S if person.id else SESSION_S)
        if len(self._sessions) > _MOST_SESSIONS:
            self._make_room()
        return cookie

    def _make_room(self) -> None:
        """End the oldest session of whoever has the most, so that nobody's sign-ins end another's session."""
        most, _ = Counter(person.id or person.name for person, _ in self._sessions.values()).most_common(1)[0]
        held = self._sessions.items()
        del self._sessions[next(digest for digest, (person, _) in held if (person.id or person.name) == most)]

    def end_session(self, cookie: str) -> None:
        """End the session of a cookie, whoever still has it."""
        self._sessions.pop(_digest(cookie), None)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
