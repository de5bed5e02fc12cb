"""The registry: which scopes there are, in words. Hashes tell nobody whose they are; whoever purges must know.

One hash in the store, from a scope's hash to its owner, surface, policy, models and generation, and until when it may
have entries. A worker enters a scope when it first writes to it or reads tags in it, and again every five minutes.
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
    """A scope as the registry has it; `until` is in seconds since 1970."""

    scope: Scope
    until: float


class Registry:
    """What one worker has entered. `clock` is the wall clock, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}

    def enter(self, scope: Scope, ttl_s: float) -> tuple[Command, ...]:
        """What it takes to have a scope listed, whose entries live so long: nothing, where that was done just now."""
        now = self._clock()
        if self._due.get(scope.prefix, 0.0) > now:
            return ()
        if len(self._due) >= _REMEMBERED:
            self._due.clear()
        self._due[scope.prefix] = now + _AGAIN_S
        words = (scope.owner, scope.surface, scope.policy, scope.models, scope.generation)
        said = orjson.dumps((*words, now + _AGAIN_S + ttl_s))
        return (Command((b"HSET", TABLE.encode(), scope.digest.encode(), said)),)

    def forget(self) -> None:
        """Enters all anew: the store may not have taken what it was given."""
        self._due.clear()


def read() -> Command:
    """Asks for all scopes; `parsed` reads the reply."""
    return Command((b"HGETALL", TABLE.encode()))


def parsed(reply: object) -> list[Listed]:
    """The scopes in a reply to `read`, by surface and owner, the latest generation first."""
    if not isinstance(reply, list):
        return []
    found = []
    for digest, said in zip(reply[::2], reply[1::2], strict=False):
        with contextlib.suppress(ValueError, TypeError):  # not written by us
            *words, until = orjson.loads(said)
            found.append(Listed(Scope(prefix_of(digest.decode()), *words), until))
    return sorted(found, key=lambda one: (one.scope.surface, one.scope.owner, -one.scope.generation, -one.until))


def struck(scope: Scope) -> Command:
    """Takes a scope off the list."""
    return Command((b"HDEL", TABLE.encode(), scope.digest.encode()))
