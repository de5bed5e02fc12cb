"""Hold answers that are finished but not stored yet, so that equal requests of this worker get them.

The producer of an answer adds it before its last byte is sent, and removes it when the write has succeeded or failed:
an answer that the store rejected is not served again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cache.entry import CacheEntry
from cache.store.base import Store
from cache.write import PendingWrite, WritePlanner

log = logging.getLogger("tierline.cache")

MOST: Final = 4_096
LONGEST_S: Final = 2.0
"""Maximum time in seconds that an answer is served from here; a write takes a few hundredths of a second."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pending entry. `contested`: the stored one may be of a stronger tier, which then has priority."""

    entry: CacheEntry
    contested: bool


class Pending:
    """One worker's pending answers by key. `clock` is monotonic, in seconds; above `most` the oldest are dropped."""

    def __init__(
        self, store: Store, keeper: WritePlanner, *, clock: Callable[[], float] = time.monotonic, most: int = MOST
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._clock = clock
        self._most = most
        self._added: dict[str, tuple[PendingWrite, float]] = {}

    def __len__(self) -> int:
        return len(self._added)

    def __contains__(self, key: str) -> bool:
        return key in self._added

    def add(self, keeping: PendingWrite) -> None:
        """Add a finished answer that is about to be stored."""
        keys = keeping.plan.keys
        if keys is None or keeping.plan.policy.exact is None or self._store.state().status == "unconfigured":
            return
        self._added.pop(keys.key, None)  # moves the key to the end of the insertion order
        self._added[keys.key] = (keeping, self._clock() + LONGEST_S)
        if len(self._added) > self._most:
            del self._added[next(iter(self._added))]

    def done(self, keeping: PendingWrite) -> None:
        """Remove an answer that was stored or has failed. A later one under the same key stays."""
        keys = keeping.plan.keys
        if keys is not None and (added := self._added.get(keys.key)) is not None and added[0] is keeping:
            del self._added[keys.key]

    def get(self, key: str) -> Waiting | None:
        """Return the answer pending under this key; None if there is none, or it may not be cached."""
        added = self._added.get(key)
        if added is None:
            return None
        keeping, until = added
        if self._clock() < until:
            try:
                keep = keeping.keep()
                entry = None if keep is None else self._keeper.entry(keep)
            except Exception:
                # The answer is unvalidated JSON from a backend; the write itself reports what is wrong with it.
                log.debug("a pending answer could not be converted to a cache entry", exc_info=True)
            else:
                if keep is not None and isinstance(entry, CacheEntry):
                    return Waiting(entry, keep.contested)
        self.done(keeping)
        return None
