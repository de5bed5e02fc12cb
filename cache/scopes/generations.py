"""Keep generations: numbers in the store that purge a whole surface at once.

One hash holds them: the field `surface` counts its purges for everybody, `surface owner` those for one owner. A scope's
generation is the sum of the two, so either purge changes the scope. Every worker reads the hash a few times a second,
off the path of requests, and uses what it read for at most SEEN_S; a purge raises a number and waits that long. When it
returns, no worker uses the old keys any more: each has read the new number, or has none. A worker without numbers,
because the store does not answer, uses a random generation of its own, shared with nobody.
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
"""Maximum seconds for which a worker uses the generations it has read, and duration of a purge."""
_EVERY_S: Final = 0.25
_AGAIN_S: Final = 0.05
_READ_S: Final = 0.25


class Generations:
    """One worker's copy of the generations. `run` is a task; `clock` is monotonic, in seconds."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._alone = _nobody_elses()
        self._known: Mapping[str, int] = {}
        self._until = -1.0

    def of(self, owner: str, surface: str) -> int:
        """Return the generation of an owner's entries on a surface."""
        return of(self._known, owner, surface) if self._clock() <= self._until else self._alone

    async def refresh(self) -> bool:
        """Read the generations from the store; return whether that succeeded."""
        asked_at = self._clock()
        try:
            (reply,) = await self._store.ask([read()], _READ_S)
        except StoreUnavailable:
            return False
        if self._clock() > self._until:
            self._alone = _nobody_elses()  # entries of the last one may have been purged meanwhile
        self._known, self._until = parsed(reply), asked_at + SEEN_S
        return True

    async def run(self) -> None:
        """Refresh until cancelled."""
        ok = True
        while True:
            await asyncio.sleep(_EVERY_S if ok else _AGAIN_S)
            try:
                ok = await self.refresh()
            except Exception:
                ok = False
                log.exception("the generations of the cache could not be read")


def of(raised: Mapping[str, int], owner: str, surface: str) -> int:
    """Return the generation of an owner's entries on a surface, from the table of counts."""
    return raised.get(surface, 0) + raised.get(f"{surface} {owner}", 0) if raised else 0


def read() -> Command:
    """Return the command that reads all generations; `parsed` reads the reply."""
    return Command((b"HGETALL", TABLE.encode()))


def raised(surface: str, owner: str | None) -> Command:
    """Return the command that raises a surface's generation, for one owner or, with None, for everybody."""
    field = surface if owner is None else f"{surface} {owner}"
    return Command((b"HINCRBY", TABLE.encode(), field.encode(), b"1"))


def parsed(reply: object) -> dict[str, int]:
    """Return the fields and numbers in a reply to `read`; invalid ones are left out."""
    if not isinstance(reply, list):
        return {}
    pairs = zip(reply[::2], reply[1::2], strict=False)
    return {name.decode(errors="replace"): int(value) for name, value in pairs if value.removeprefix(b"-").isdigit()}


def _nobody_elses() -> int:
    return -1 - secrets.randbits(62)
