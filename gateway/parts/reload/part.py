"""Reload policy files when they change, while requests continue.

The files' names, times, sizes and contents (by their hash) are checked about three times a second, in a thread; less
often if that would take more than 1% of a core (1,000 files: about once a second). A change is taken when two checks in
a row see the same state, so a burst of writes is one reload, and a file that is still being written, or missing between
an editor's two renames, is not taken; one that stays cut off shows it by its last line, which has no line break. Only
files with another content are parsed. If the new set cannot be loaded, the last valid one stays in force; the failure
is reported once and remembered until it is corrected.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gateway.config.policy_reload import FilePolicies
from policies.errors import ConfigError
from policies.loader import PolicySet, PolicySource, Snapshot

_SHARE: Final = 0.01
"""Largest share of one CPU core for checking unchanged files."""


def watched(
    source: PolicySource, reloaded: Callable[[PolicySet], None], refused: Callable[[ConfigError], None]
) -> PolicyReloader:
    """Return what follows the files of policies. Raises ConfigError."""
    return PolicyReloader(source, reloaded, refused)


class PolicyReloader(FilePolicies):
    """Hold the policy set in force (`current`), and why newer files could not be loaded (`failure`, or None).

    A request reads `current` once, at its start, and uses that set to its end. `on_success` is called with every set
    that comes into force, and when a failure is corrected; `on_failure` with every new failure; both on the event loop.
    Run `run()` as a task.
    """

    def __init__(
        self,
        source: PolicySource,
        on_success: Callable[[PolicySet], None],
        on_failure: Callable[[ConfigError], None],
        interval_s: float = 0.3,
    ) -> None:
        super().__init__(source)
        self._on_success = on_success
        self._on_failure = on_failure
        self._interval_s = interval_s
        self._pause_s = interval_s
        # No snapshot yet: the first check reloads, so a change between the first load and that check is not missed.
        self._read: Snapshot | None = None
        self._last: Snapshot | None = None

    async def run(self) -> None:
        """Check in a thread and reload here, until cancelled. The event loop has no work while nothing changes."""
        cancelled = threading.Event()
        thread = ThreadPoolExecutor(1, thread_name_prefix="tierline-policies")
        try:
            while True:
                changed = await asyncio.get_running_loop().run_in_executor(thread, self._next_change, cancelled)
                if changed is not None:
                    await self._reload(changed)
        finally:
            cancelled.set()
            thread.shutdown(wait=False)

    async def look(self) -> None:
        """Check the files once; reload them if they have changed since the last load but not since the last check."""
        if (changed := await asyncio.to_thread(self._changed)) is not None:
            await self._reload(changed)

    def _next_change(self, cancelled: threading.Event) -> Snapshot | None:
        """Check until the files' state is to be loaded, and return it; None if cancelled before."""
        while (changed := self._changed()) is None and not cancelled.wait(self._pause_s):
            pass
        return changed

    def _changed(self) -> Snapshot | None:
        """Check the files once; return their state if it is to be loaded, and set the pause before the next check."""
        began = time.thread_time()
        now = self.source.snapshot()
        cost_s = time.thread_time() - began
        rests, self._last = now == self._last, now
        self._pause_s = max(self._interval_s, cost_s / _SHARE) if rests else self._interval_s
        return now if rests and now != self._read else None

    async def _reload(self, seen: Snapshot) -> None:
        loaded, failure = await asyncio.to_thread(self._load, seen)
        if await asyncio.to_thread(self.source.snapshot) != seen:
            return  # the files changed while being read, so this may be a mixture of old and new
        self._read = seen
        if failure is not None:
            if self.failure is None or self.failure.problems != failure.problems:
                self.failure = failure
                self._on_failure(failure)
        elif loaded is not None and (self.failure is not None or loaded.by_surface != self.current.by_surface):
            self.failure = None
            self.current = loaded
            self._on_success(loaded)

    def _load(self, seen: Snapshot) -> tuple[PolicySet | None, ConfigError | None]:
        try:
            return self.source.load(seen), None
        except ConfigError as error:
            return None, error
