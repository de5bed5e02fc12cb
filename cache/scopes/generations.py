"""Generations: the numbers in the store by which a whole surface is purged at once.

One hash holds them all: under a surface's name how often it was purged for everybody, under `surface owner` how often
for one owner. A scope's generation is the sum of its two, so either makes the scope another one. Every worker reads the
hash a few times a second, off the path of requests, and holds by what it read for SEEN_S at most; a purge raises a
number and waits that long. When it returns, no worker asks for the old keys any more: each has read the new number, or
knows none. A worker that knows none, as the store does not answer, has generations of its own, shared with nobody.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from cache.scopes.scope import SCHEMA
from cache.store.base import Command, Store, StoreUnavailable

log = logging.getLogger("tierline.cache")

TABLE: Final = f"tierline:{SCHEMA}:generations"
SEEN_S: Final = 1.0
"""For so long a worker holds by the generations that it has read, and so long a purge waits."""
_EVERY_S: Final = 0.25
_AGAIN_S: Final = 0.05
_READ_S: Final = 0.25


class Generations:
    """What one worker knows of them. `run` is a task; `clock` is monotonic, in seconds."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._alone = _nobody_elses()
        self._known: Mapping[str, int] = {}
        self._until = -1.0

    def of(self, owner: str, surface: str) -> int:
        """The generation of an owner's entries on a surface."""
        return of(self._known, owner, surface) if self._clock() <= self._until else self._alone

    async def refresh(self) -> bool:
        """Reads what the store says now; whether it says anything."""
        asked_at = self._clock()
        try:
            (reply,) = await self._store.ask([read()], _READ_S)
        except StoreUnavailable:
            return False
        if self._clock() > self._until:
            self._alone = _nobody_elses()  # what was kept under the last one may have been purged by then
        self._known, self._until = parsed(reply), asked_at + SEEN_S
        return True

    async def run(self) -> None:
        """Refreshes until cancelled."""
        known = True
        while True:
            await asyncio.sleep(_EVERY_S if known else _AGAIN_S)
            try:
                known = await self.refresh()
            except Exception:
                known = False
                log.exception("the generations of the cache could not be read")


def of(raised: Mapping[str, int], owner: str, surface: str) -> int:
    """The generation of an owner's entries on a surface, by what was raised how often."""
    return raised.get(surface, 0) + raised.get(f"{surface} {owner}", 0) if raised else 0


def read() -> Command:
    """Asks for all generations; `parsed` reads the reply."""
    return Command((b"HGETALL", TABLE.encode()))


def raised(surface: str, owner: str | None) -> Command:
    """Raises the generation of a surface, for one owner or, with None, for everybody."""
    field = surface if owner is None else f"{surface} {owner}"
    return Command((b"HINCRBY", TABLE.encode(), field.encode(), b"1"))


def parsed(reply: object) -> dict[str, int]:
    """The fields and numbers in a reply to `read`; whatever is not ours in it is left out."""
    if not isinstance(reply, list):
        return {}
    pairs = zip(reply[::2], reply[1::2], strict=False)
    return {name.decode(errors="replace"): int(value) for name, value in pairs if value.removeprefix(b"-").isdigit()}


def _nobody_elses() -> int:
    return -1 - secrets.randbits(62)
