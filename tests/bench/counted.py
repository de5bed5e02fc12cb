"""Run a server and count what its event loop's thread does: `python -m tests.bench.counted FILE MODULE [ARGUMENT ...]`.

SIGUSR1 begins to count, SIGUSR2 ends it and writes the counts to FILE, as JSON. Counts do not depend on how fast the
machine is at the moment, as times do:

    calls        Python functions entered and coroutines or generators resumed (`call` events of `sys.setprofile`)
    tasks        asyncio tasks made
    timers       callbacks asked for at some later time
    callbacks    callbacks asked for at the next turn of the loop
    round_trips  exchanges with the store
    peak_bytes   the most memory that was allocated at one time, above what there was at the beginning (tracemalloc)

A file beside it, `.modules`, holds the calls by the module in which the function stands.
"""

from __future__ import annotations

import gc
import json
import runpy
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

from cache.store.redis_node import Node

_LOOP_METHODS = {"call_later": "timers", "call_at": "timers", "call_soon": "callbacks", "create_task": "tasks"}


class Counting:
    """The profile function of one thread, and what it has counted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._counts: Counter[str] = Counter()
        self._modules: Counter[str] = Counter()
        self._base = 0

    def begin(self, *_: object) -> None:
        """Count from here."""
        self._counts.clear()
        self._modules.clear()
        gc.collect()
        tracemalloc.start()
        self._base = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        sys.setprofile(self._profile)

    def end(self, *_: object) -> None:
        """Stop, and write the counts."""
        sys.setprofile(None)
        self._counts["peak_bytes"] = tracemalloc.get_traced_memory()[1] - self._base
        tracemalloc.stop()
        self._file.with_suffix(".modules").write_text(json.dumps(self._modules))
        self._file.with_suffix(".part").write_text(json.dumps(self._counts))
        self._file.with_suffix(".part").replace(self._file)

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._counts["calls"] += 1
            self._modules[frame.f_globals.get("__name__", "")] += 1

    def watch(self, owner: type[Any], method: str, what: str) -> None:
        """Count the calls of one method. uvloop's are compiled, and unseen by `sys.setprofile`."""
        original = getattr(owner, method)

        def counted(*arguments: Any, **named: Any) -> Any:
            self._counts[what] += 1
            self._counts["calls"] -= 1  # this function's own
            return original(*arguments, **named)

        setattr(owner, method, counted)


def main() -> None:
    """Run the module as `python -m` would, ready to count."""
    file, module, *arguments = sys.argv[1:]
    counting = Counting(Path(file))
    signal.signal(signal.SIGUSR1, counting.begin)
    signal.signal(signal.SIGUSR2, counting.end)
    for method, what in _LOOP_METHODS.items():
        counting.watch(uvloop.Loop, method, what)
    counting.watch(Node, "_exchange", "round_trips")  # where all round trips to the store pass
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
