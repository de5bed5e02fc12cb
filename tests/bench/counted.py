"""Run a server and count what its event loop's thread does: `python -m tests.bench.counted FILE MODULE [ARGUMENT ...]`.

SIGUSR1 begins to count and SIGUSR2 ends it; FILE, as JSON, says when either is done ({} for the beginning). The counts
do not depend on how fast the machine is at the moment, as times do:

    calls        Python functions entered and coroutines or generators resumed (`call` events of `sys.setprofile`)
    tasks        asyncio tasks made
    timers       callbacks asked for at some later time
    callbacks    callbacks asked for at the next turn of the loop
    round_trips  exchanges with the store
    store_bytes  bytes sent to the store and received from it
    peak_bytes   the most memory that was allocated at one time, above what there was at the beginning (tracemalloc)

Each is counted for the root that does it: the callback or the step of a task that the event loop runs. Roots of
requests are the protocols of clients and backends, the tasks and callbacks that follow from them, and the tasks that
finish requests in batches (`_BATCHES`). All others are the clock's: they run so often a second, however many requests
there are, so a slow machine has more of them among as many requests. So are timers that fire, such as deadlines.

How many requests one batch has would depend on the machine, too. So nothing is finished while requests are counted; at
the end everything is, in full batches, as under load. Time limits that a slow machine would reach are far away.

A file beside FILE, `.modules`, holds the calls of requests by the module in which the function stands.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import runpy
import signal
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import uvloop

from cache.store.connections import WirePool
from cache.store.redis_node import StoreConnection
from cache.store.redis_store import RedisStore
from gateway.parts.adaptive.part import AdaptiveLimit
from gateway.tiers.tier import Tier
from routing.load.latency import Forecasts, LatencyModel, Sketch
from routing.load.limits import Reserve

_LOOP_METHODS: Final = {"call_later": "timers", "call_at": "timers", "call_soon": "callbacks", "create_task": "tasks"}
_PROTOCOL: Final = {
    "connection_made", "data_received", "eof_received", "connection_lost", "pause_writing", "resume_writing",
}  # fmt: skip
_LINGERING: Final = {"tierline.telemetry", "tierline.write_behind", "tierline.delayed_writes"}
"""Tasks that wait for more requests before they finish those that are over."""
_BATCHES: Final = {*_LINGERING, "cache-index"}
"""Tasks that run all the time, and do what requests cause."""
_NOW_AND_THEN: Final = {
    Tier._health.__code__,
    Tier._candidate.__code__,
    Reserve._turn.__code__,
    Forecasts._forecast.__code__,
    LatencyModel._settle.__code__,
    LatencyModel._gathered.__code__,
    LatencyModel._slope.__code__,
    Sketch.quantile.__code__,
    AdaptiveLimit._close.__code__,
}
"""What requests do for the clock: the first request after some time refreshes what all of them read."""
_DIAL: Final = WirePool._dial.__code__
_STORE_REPLY: Final = StoreConnection.data_received.__code__
_FAR_S: Final = 60
_LIMITS: Final = {
    ("gateway.request.context", "_PATIENCE_S"): _FAR_S,
    ("gateway.parts.early_heads.part", "_AFTER_S"): _FAR_S,
    ("gateway.request.load_shedding", "MOST_LAG_S"): _FAR_S,
    ("cache.index", "_BLOCK_MS"): 1000 * _FAR_S,  # its reader returns when there are records, and not before
    (
        "gateway.parts.adaptive.part",
        "_BASELINE_S",
    ): 0.0,  # usual latencies are known from the thirtieth call on
}
"""What they are set to, in their units; the time limits of the store become `_SLACK` times as long."""
_SLACK: Final = 50.0
_QUIET_S: Final = 0.02
_QUIET: Final = 8
"""Everything is finished when requests had no call between so many looks, so far apart."""

REQUESTS, CLOCK = "requests", "clock"
_root: ContextVar[str] = ContextVar("root")
"""Whose work a callback or task is. Callbacks and tasks inherit it from where they were asked for."""


class Counting:
    """The profile function of the event loop's thread, and what it has counted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._base: FrameType | None = None
        self._whose = CLOCK
        self._aside: FrameType | None = None
        self._counts: dict[str, Counter[str]] = {}
        self._modules: Counter[str] = Counter()
        self._timed: set[CodeType] = set()
        self._askers: dict[int, str] = {}
        self._held: list[Callable[[], object]] = []
        self._holding = False
        self._began = 0.0
        self._memory = 0
        self._clear()

    def begin(self, *_: object) -> None:
        """Count from when everything before is finished."""
        sys.setprofile(self._profile)
        self._when_quiet(self._started)

    def end(self, *_: object) -> None:
        """Have everything finished, in full batches; then stop, and write the counts."""
        self._holding = False
        held, self._held = self._held, []
        for go in held:
            go()
        self._when_quiet(self._stopped)

    def _started(self) -> None:
        gc.collect()
        tracemalloc.start()
        self._memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        self._write({})
        self._clear()
        self._holding = True
        self._began = time.monotonic()

    def _stopped(self) -> None:
        sys.setprofile(None)
        seconds = time.monotonic() - self._began
        peak = tracemalloc.get_traced_memory()[1] - self._memory
        tracemalloc.stop()
        self._file.with_suffix(".modules").write_text(json.dumps(self._modules))
        self._counts[REQUESTS]["peak_bytes"] = peak
        self._write({REQUESTS: self._counts[REQUESTS], CLOCK: self._counts[CLOCK], "seconds": seconds})

    def _clear(self) -> None:
        self._counts = {whose: Counter() for whose in (REQUESTS, CLOCK)}
        self._modules.clear()

    def _write(self, value: object) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(value))
        part.replace(self._file)

    def _when_quiet(self, then: Callable[[], None]) -> None:
        """Call `then` once the roots of requests have not run for a while."""
        loop = asyncio.get_running_loop()
        seen, quiet = -1, 0

        def look() -> None:
            nonlocal seen, quiet
            calls = self._counts[REQUESTS]["calls"]
            seen, quiet = calls, quiet + 1 if calls == seen else 0
            if quiet < _QUIET:
                _call_later(loop, _QUIET_S, look)
            else:
                then()

        look()

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame is self._aside:
            self._whose, self._aside = REQUESTS, None
        if event != "call":
            return
        if frame.f_back is self._base:
            self._whose, self._aside = self._whose_is(frame), None
        elif self._whose is REQUESTS and frame.f_code in _NOW_AND_THEN:
            self._whose, self._aside = CLOCK, frame
        if frame.f_globals is not _HERE:
            self._counts[self._whose]["calls"] += 1
            if self._whose is REQUESTS:
                self._modules[frame.f_globals.get("__name__", "")] += 1

    def _whose_is(self, frame: FrameType) -> str:
        """Return whose a root is, and have what it asks for inherit it."""
        code = frame.f_code
        if code is _STORE_REPLY:  # a connection to the store serves everybody in turn
            asker = self._askers.get(id(frame.f_locals["self"]), CLOCK)
            self._counts[asker]["store_bytes"] += len(frame.f_locals["data"])
            return asker
        if frame.f_globals is _HERE:
            return _root.get(CLOCK)
        if code is _DIAL or code in self._timed:
            whose = CLOCK
        elif code.co_name in _PROTOCOL:
            whose = REQUESTS
        elif (known := _root.get(None)) is not None:
            return known
        else:
            task = _task()
            whose = REQUESTS if task is not None and task.get_name() in _BATCHES else CLOCK
        _root.set(whose)
        return whose

    def watch_loop(self) -> None:
        """Count what is asked of the loop, and note where it runs. It is compiled: `sys.setprofile` does not see it."""
        for method, what in _LOOP_METHODS.items():
            setattr(uvloop.Loop, method, self._watched(getattr(uvloop.Loop, method), what))
        run = uvloop.Loop.run_forever

        def run_forever(loop: uvloop.Loop) -> None:
            self._base = sys._getframe()
            run(loop)

        uvloop.Loop.run_forever = run_forever

    def _watched(self, original: Callable[..., Any], what: str) -> Callable[..., Any]:
        def counted(loop: uvloop.Loop, first: Any, *more: Any, **named: Any) -> Any:
            self._counts[self._whose][what] += 1
            if what != "timers":
                return original(loop, first, *more, **named)
            callback, *arguments = more
            code = getattr(getattr(callback, "func", callback), "__code__", None)
            if code is not None:
                self._timed.add(code)
            if not self._holding or not _lingers():
                return original(loop, first, *more, **named)
            handle = original(loop, first + 24 * _FAR_S, callback, *arguments)

            def go() -> None:
                if not handle.cancelled():
                    handle.cancel()
                    _call_soon(loop, callback, *arguments, context=context)

            context = named.get("context") or copy_context()
            self._held.append(go)
            return handle

        return counted

    def watch_store(self) -> None:
        """Count the exchanges with the store, and give it time."""
        exchange = StoreConnection.exchange

        def counted(connection: StoreConnection, commands: bytes, replies: int, *limit: float) -> Any:
            self._askers[id(connection)] = self._whose
            counts = self._counts[self._whose]
            counts["round_trips"] += 1
            counts["store_bytes"] += len(commands)
            return exchange(connection, commands, replies, *limit)

        StoreConnection.exchange = counted
        RedisStore.from_url = partial(RedisStore.from_url, slack=_SLACK)


def _lingers() -> bool:
    task = _task()
    return task is not None and task.get_name() in _LINGERING


def _task() -> asyncio.Task[Any] | None:
    """Return the current task. `asyncio.current_task` is a Python function here, which would count itself."""
    return asyncio.tasks._current_tasks.get(asyncio.get_running_loop())  # type: ignore[attr-defined, no-any-return]


_HERE: Final = globals()
_call_later, _call_soon = uvloop.Loop.call_later, uvloop.Loop.call_soon


def main() -> None:
    """Run the module as `python -m` would, ready to count."""
    file, module, *arguments = sys.argv[1:]
    counting = Counting(Path(file))
    signal.signal(signal.SIGUSR1, counting.begin)
    signal.signal(signal.SIGUSR2, counting.end)
    counting.watch_loop()
    counting.watch_store()
    for (name, limit), value in _LIMITS.items():
        setattr(importlib.import_module(name), limit, value)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
