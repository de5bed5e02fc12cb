"""Answers that have ended and are not in the store yet. Until they are, they answer equal requests of this worker.

Whoever makes an answer adds it before its last byte is sent, and takes it out when the write has come to its end, good
or bad: an answer that the store did not take is not served again.
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
"""A write takes a few hundredths of a second. Whatever becomes of it, nothing is served from here for longer."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry to come. `contested`: the one that is stored may be a stronger tier's, and then stays."""

    entry: CacheEntry
    contested: bool


class Pending:
    """One worker's, by key. `clock` is monotonic, in seconds; of more than `most` the oldest go."""

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
        """Takes an answer that has ended and is on its way to the store."""
        keys = keeping.plan.keys
        if keys is None or keeping.plan.policy.exact is None or self._store.state().status == "unconfigured":
            return
        self._added.pop(keys.key, None)  # the latest stands last
        self._added[keys.key] = (keeping, self._clock() + LONGEST_S)
        if len(self._added) > self._most:
            del self._added[next(iter(self._added))]

    def done(self, keeping: PendingWrite) -> None:
        """Lets go of an answer: the store has it, or never will. A later one under the same key stays."""
        keys = keeping.plan.keys
        if keys is not None and (added := self._added.get(keys.key)) is not None and added[0] is keeping:
            del self._added[keys.key]

    def get(self, key: str) -> Waiting | None:
        """The answer under this key; None where none is waiting, or none that may be kept."""
        added = self._added.get(key)
        if added is None:
            return None
        keeping, until = added
        if self._clock() < until:
            try:
                keep = keeping.keep()
                entry = None if keep is None else self._keeper.entry(keep)
            except Exception:
                # An answer is a stranger's JSON: what is odd about it is the write's to tell.
                log.debug("an answer on its way to the store could not be put together", exc_info=True)
            else:
                if keep is not None and isinstance(entry, CacheEntry):
                    return Waiting(entry, keep.contested)
        self.done(keeping)
        return None
