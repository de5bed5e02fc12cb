"""Keeps the policies in force in step with their files, while requests go on.

The files are looked at (names, times, sizes) about twice a second, in a thread; less often where there are so many
that this would take more than 0.4% of a core: 1,000 about once a second. A change is read once it has come to rest for
one look: a burst of writes is one reload, and a file that is half written or, between an editor's two renames, not
there is not read. Only the files that changed are read. A set that cannot be loaded changes nothing: the last good one
stays in force, and what is wrong is told once and remembered until it is mended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from policies.errors import ConfigError
from policies.loader import PolicySet, PolicySource, Snapshot

_SHARE: Final = 0.004
"""Of a core, what looking at unchanged files may take."""


class PolicyReloader:
    """`current` is the set in force; `failure` is why the files as they are now are not, or None. `run()` is a task.

    A request takes `current` once, at its start, and keeps that set to its end. `on_success` is called with every set
    that comes into force and when a failure is mended; `on_failure` with every new failure; both on the event loop.
    """

    def __init__(
        self,
        source: PolicySource,
        policies: PolicySet,
        on_success: Callable[[PolicySet], None],
        on_failure: Callable[[ConfigError], None],
        interval_s: float = 0.5,
    ) -> None:
        self.current = policies
        self.failure: ConfigError | None = None
        self._source = source
        self._on_success = on_success
        self._on_failure = on_failure
        self._interval_s = interval_s
        self._pause_s = interval_s
        # Nothing counts as seen yet, so what was written between the first load and the first look is not missed.
        self._read: Snapshot | None = None
        self._last: Snapshot | None = None

    async def run(self) -> None:
        """Looks and reloads until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._pause_s)

    async def look(self) -> None:
        """Looks at the files once, and reloads if they changed and rest."""
        now, cost_s = await asyncio.to_thread(self._snapshot)
        rests, self._last = now == self._last, now
        # What has just changed is looked at again soon.
        self._pause_s = max(self._interval_s, cost_s / _SHARE) if rests else self._interval_s / 2
        if rests and now != self._read:
            await self._reload(now)

    async def _reload(self, seen: Snapshot) -> None:
        loaded, failure = await asyncio.to_thread(self._load, seen)
        if await asyncio.to_thread(self._source.snapshot) != seen:
            return  # written to while it was read: what was read may be neither the old nor the new
        self._read = seen
        if failure is not None:
            if self.failure is None or self.failure.problems != failure.problems:
                self.failure = failure
                self._on_failure(failure)
        elif loaded is not None and (self.failure is not None or loaded.by_surface != self.current.by_surface):
            self.failure = None
            self.current = loaded
            self._on_success(loaded)

    def _snapshot(self) -> tuple[Snapshot, float]:
        """The files as they look now, and the seconds of CPU that this took."""
        began = time.thread_time()
        return self._source.snapshot(), time.thread_time() - began

    def _load(self, seen: Snapshot) -> tuple[PolicySet | None, ConfigError | None]:
        try:
            return self._source.load(seen), None
        except ConfigError as error:
            return None, error
