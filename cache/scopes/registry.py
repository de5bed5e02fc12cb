"""Register scopes in plain text, because keys contain only hashes and a purge must find the scopes of an owner.

One hash in the store maps a scope's hash to its owner, surface, policy, models and generation, and to the time until
which it may have entries. A worker registers a scope when it first writes to it or reads tags in it, and again every
five minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson

from cache.scopes.scope import SCHEMA, Scope, prefix_of
from cache.store.base import Command

TABLE: Final = f"tierline:{SCHEMA}:scopes"
_AGAIN_S: Final = 300.0
_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Listed:
    """A registered scope; `until` is in seconds since 1970."""

    scope: Scope
    until: float


class Registry:
    """The scopes that one worker has registered. `clock` is the wall clock in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}

    def enter(self, scope: Scope, ttl_s: float) -> tuple[Command, ...]:
        """Return the commands that register a scope whose entries live `ttl_s` seconds; none if done recently."""
        now = self._clock()
        if self._due.get(scope.prefix, 0.0) > now:
            return ()
        if len(self._due) >= _REMEMBERED:
            self._due.clear()
        self._due[scope.prefix] = now + _AGAIN_S
        words = (scope.owner, scope.surface, scope.policy, scope.models, scope.generation)
        value = orjson.dumps((*words, now + _AGAIN_S + ttl_s))
        return (Command((b"HSET", TABLE.encode(), scope.digest.encode(), value)),)

    def forget(self) -> None:
        """Register all scopes again when next used: the store may not have executed the commands."""
        self._due.clear()


def read() -> Command:
    """Return the command that reads all scopes; `parsed` reads the reply."""
    return Command((b"HGETALL", TABLE.encode()))


def parsed(reply: object) -> list[Listed]:
    """Return the scopes in a reply to `read`, by surface and owner, the latest generation first."""
    if not isinstance(reply, list):
        return []
    listed = []
    for digest, value in zip(reply[::2], reply[1::2], strict=False):
        with contextlib.suppress(ValueError, TypeError):  # malformed
            *words, until = orjson.loads(value)
            listed.append(Listed(Scope(prefix_of(digest.decode()), *words), until))
    return sorted(listed, key=lambda one: (one.scope.surface, one.scope.owner, -one.scope.generation, -one.until))


def struck(scope: Scope) -> Command:
    """Return the command that removes a scope from the list."""
    return Command((b"HDEL", TABLE.encode(), scope.digest.encode()))
