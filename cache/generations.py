"""Generations: the numbers in the store by which a whole surface is purged at once.

One hash holds them all: under a surface's name how often it was purged for everybody, under `surface owner` how often
for one owner. A scope's generation is the sum of its two, so either makes the scope another one. Every worker reads the
hash twice a second, off the path of requests, so all know of a purge within a second; while the store is down, what was
last known holds. A worker that could never read it has generations of its own, which are shared with nobody: it cannot
know what was purged before it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping
from typing import Final

from cache.scope import SCHEMA
from cache.store import Command, Store, StoreUnavailable

log = logging.getLogger("tierline.cache")

TABLE: Final = f"tierline:{SCHEMA}:generations"
_EVERY_S: Final = 0.5


class Generations:
    """What one worker knows of them. `run` is a task."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._alone = -1 - secrets.randbits(62)
        self._known: Mapping[str, int] | None = None

    def of(self, owner: str, surface: str) -> int:
        """The generation of an owner's entries on a surface."""
        return self._alone if self._known is None else of(self._known, owner, surface)

    async def refresh(self) -> None:
        """Reads what the store says now; what was known stays where it says nothing."""
        with contextlib.suppress(StoreUnavailable):
            (reply,) = await self._store.ask([read()])
            self._known = parsed(reply)

    async def run(self) -> None:
        """Refreshes until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.refresh()
            except Exception:
                # A worker that stopped looking would serve what was purged, for ever.
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
