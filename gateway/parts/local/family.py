"""Run all children of one supervisor: start them at once, and stop them in order on a signal.

The first SIGINT, SIGTERM or SIGHUP stops the children one after another, last started first, each within its limit; a
second signal kills what is left at once. SIGHUP stays ignored if it was ignored at the start, as under nohup.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence

from gateway.exit_codes import Exit
from gateway.parts.local.child import Child, ChildSpec, Say, rotate_log

PROGRESS_EVERY_S = 5.0
_ROTATE_EVERY_S = 60.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

OnReady = Callable[[Sequence[Child]], Awaitable[None]]


class Family:
    """Run the children, given in the order in which they depend on each other.

    `on_ready` is called once, when each child's first start has succeeded or failed for good.
    """

    def __init__(self, specs: Sequence[ChildSpec], say: Say, on_ready: OnReady) -> None:
        self._children = [Child(spec, say) for spec in specs]
        self._say = say
        self._on_ready = on_ready
        self._stop_asked = asyncio.Event()
        self._forced = False

    async def run(self) -> int:
        """Run until a signal and return the exit code. Raises CannotStart if a vital child cannot start."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal)
        runs = [asyncio.create_task(child.run()) for child in self._children]
        attend = asyncio.create_task(self._attend())
        stop = asyncio.create_task(self._stop_asked.wait())
        await asyncio.wait({stop, attend, *runs}, return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            self._say("stopping")
        await self._stop_all()
        stop.cancel()
        attend.cancel()
        await asyncio.wait({attend, *runs})
        for task in (attend, *runs):
            if not task.cancelled():
                task.result()
        return Exit.INTERRUPTED if self._forced else Exit.OK

    def _on_signal(self) -> None:
        if self._stop_asked.is_set():
            self._forced = True
            for child in self._children:
                child.kill()
        self._stop_asked.set()

    async def _stop_all(self) -> None:
        for child in reversed(self._children):
            await child.stop()

    async def _attend(self) -> None:
        """Report progress until all children are up, then rotate the logs every minute until cancelled."""
        await self._say_progress()
        await self._on_ready(self._children)
        while True:
            await asyncio.sleep(_ROTATE_EVERY_S)
            for child in self._children:
                rotate_log(child.spec.log)

    async def _say_progress(self) -> None:
        started = time.monotonic()
        waiting = {asyncio.create_task(child.settled.wait()): child for child in self._children}
        while waiting:
            done, _ = await asyncio.wait(waiting, timeout=PROGRESS_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            elapsed = time.monotonic() - started
            for child in (waiting.pop(task) for task in done):
                if child.ready:
                    self._say(f"{child.spec.name} is ready ({elapsed:.1f} s)")
            if not done:
                names = ", ".join(child.spec.name for child in waiting.values())
                self._say(f"waiting for: {names} ({elapsed:.0f} s; logs in {self._children[0].spec.log.parent})")
