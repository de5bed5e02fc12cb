"""Keeps the policies in force in step with their files, while requests go on.

The files are looked at (names, times, sizes) about twice a second, in a thread. A change is read once it has come to
rest for one look: a burst of writes is one reload, a file that is half written or, between an editor's two renames,
not there is not read. Files that never rest are read all the same after a few seconds. A set that cannot be loaded
changes nothing: the last good one stays in force, and what is wrong is told once and remembered until it is mended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from policies.errors import ConfigError
from policies.loader import PolicySet, PolicySource, Snapshot

_MAX_RESTLESS_LOOKS = 8


class PolicyWatcher:
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
        # Nothing counts as seen yet, so what was written between the first load and the first look is not missed.
        self._read: Snapshot | None = None
        self._last: Snapshot | None = None
        self._restless = 0

    async def run(self) -> None:
        """Looks and reloads until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Looks at the files once, and reloads if they changed and rest."""
        now = await asyncio.to_thread(self._source.snapshot)
        changed, resting = now != self._read, now == self._last
        self._last = now
        if not changed:
            self._restless = 0
            return
        self._restless += 1
        if resting or self._restless > _MAX_RESTLESS_LOOKS:
            self._restless = 0
            self._read = now
            await self._reload()

    async def _reload(self) -> None:
        try:
            loaded = await asyncio.to_thread(self._source.load)
        except ConfigError as error:
            if self.failure is None or self.failure.problems != error.problems:
                self.failure = error
                self._on_failure(error)
            return
        if self.failure is None and loaded.by_surface == self.current.by_surface:
            return
        self.failure = None
        self.current = loaded
        self._on_success(loaded)
