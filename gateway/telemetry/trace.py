"""The trace of one request, recorded as cheaply as Python allows: plain slots and one clock call at each end of a hop.

On the request path nothing is exported, serialised or locked. After the reply, `telemetry.sink` turns a finished trace
into OpenTelemetry spans and into the record that `tierline trace` draws. (A span of opentelemetry-sdk with eight
attributes costs 18 us when it is made; a hop costs about 1.)
"""

from __future__ import annotations

import random
import time
from typing import Any

_SPAN_ID_MASK = (1 << 64) - 1
# Seeded by the system once a process: these ids must differ, not be secret, and a system call for each costs 2 us.
_ids = random.Random()  # noqa: S311


class Hop:
    """One traced step. Times are `time.perf_counter_ns()`; `error` is an `error.type` word when the step failed."""

    __slots__ = ("attributes", "end_ns", "error", "name", "number", "start_ns")

    def __init__(self, name: str, number: int, attributes: dict[str, Any]) -> None:
        self.name = name
        self.number = number
        self.attributes = attributes
        self.error: str | None = None
        self.end_ns = 0
        self.start_ns = time.perf_counter_ns()

    def end(self, error: str | None = None) -> None:
        """Closes the hop, once; a second call changes nothing."""
        if not self.end_ns:
            self.end_ns = time.perf_counter_ns()
            self.error = error

    @property
    def seconds(self) -> float:
        """How long the hop took, or has taken so far."""
        return ((self.end_ns or time.perf_counter_ns()) - self.start_ns) / 1e9


class Trace:
    """All hops of one request, in the order they began; hop 0 is the request itself.

    `trace_id` and `parent_id` (0 if none) come from a valid incoming `traceparent`, else the trace id is made.
    Span ids are consecutive from a random base, so that they need not be drawn one by one.
    """

    __slots__ = ("_base", "hops", "parent_id", "started_unix_ns", "trace_id")

    def __init__(self, name: str, trace_id: int = 0, parent_id: int = 0) -> None:
        drawn = _ids.getrandbits(192)
        self.trace_id = trace_id or (drawn >> 64) or 1
        self.parent_id = parent_id
        self._base = drawn & _SPAN_ID_MASK
        self.started_unix_ns = time.time_ns()
        self.hops: list[Hop] = [Hop(name, 0, {})]

    @property
    def root(self) -> Hop:
        """The hop of the whole request."""
        return self.hops[0]

    def begin(self, name: str, attributes: dict[str, Any] | None = None) -> Hop:
        """Opens a hop under the root. The caller ends it."""
        hop = Hop(name, len(self.hops), {} if attributes is None else attributes)
        self.hops.append(hop)
        return hop

    def waited_ns(self, *names: str) -> int:
        """How long any hop of these names was open so far; hops that ran beside each other count once."""
        now = time.perf_counter_ns()
        waited = until = 0
        for hop in self.hops:
            if hop.name in names:
                end = hop.end_ns or now
                if end > until:
                    waited += end - max(hop.start_ns, until)
                    until = end
        return waited

    def span_id(self, hop: Hop) -> int:
        """The 64-bit span id of a hop of this trace, never 0."""
        return ((self._base + hop.number) & _SPAN_ID_MASK) or 1

    def traceparent(self, hop: Hop) -> str:
        """The W3C header that makes a backend's spans children of `hop`."""
        return f"00-{self.trace_id:032x}-{self.span_id(hop):016x}-01"
