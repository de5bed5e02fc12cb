"""Record the trace of one request at low cost: plain slots, and one clock call at each end of a hop.

Nothing is exported, serialised or locked on the request path. After the reply, `telemetry.sink` turns a finished trace
into OpenTelemetry spans and into the record that `tierline trace` draws. Making a span of opentelemetry-sdk with eight
attributes takes 18 us; a hop takes about 1 us.
"""

from __future__ import annotations

import random
import re
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.telemetry.decisions import RecordedDecision
    from gateway.telemetry.ledger import Ledger

_SPAN_ID_MASK = (1 << 64) - 1
# Seeded by the system once per process: ids must be unique but not secret, and a system call for each costs 2 us.
_ids = random.Random()  # noqa: S311


class Hop:
    """One traced step. Times are `time.perf_counter_ns()`; `error` is the `error.type` attribute if the step failed."""

    __slots__ = ("attributes", "end_ns", "error", "name", "number", "start_ns")

    def __init__(self, name: str, number: int, attributes: dict[str, Any]) -> None:
        self.name = name
        self.number = number
        self.attributes = attributes
        self.error: str | None = None
        self.end_ns = 0
        self.start_ns = time.perf_counter_ns()

    def end(self, error: str | None = None) -> None:
        """End the hop; a second call changes nothing."""
        if not self.end_ns:
            self.end_ns = time.perf_counter_ns()
            self.error = error

    @property
    def seconds(self) -> float:
        """Seconds that the hop took, or has taken so far."""
        return ((self.end_ns or time.perf_counter_ns()) - self.start_ns) / 1e9


class Trace:
    """Hold all hops of one request in the order they began; hop 0 is the request itself.

    `trace_id` and `parent_id` (0 if none) come from a valid incoming `traceparent`; without one the trace id is random.
    Span ids are consecutive from a random base, which is cheaper than drawing each.
    """

    __slots__ = ("_base", "after", "decision", "hops", "parent_id", "root", "started_unix_ns", "trace_id")

    def __init__(self, name: str, trace_id: int = 0, parent_id: int = 0) -> None:
        drawn = _ids.getrandbits(192)
        self.trace_id = trace_id or (drawn >> 64) or 1
        self.parent_id = parent_id
        self._base = drawn & _SPAN_ID_MASK
        self.started_unix_ns = time.time_ns()
        self.root = Hop(name, 0, {})
        """The hop of the whole request."""
        self.hops: list[Hop] = [self.root]
        self.decision: RecordedDecision | None = None
        """The routing decision and what it was made of; None if there was none."""
        self.after: Callable[[Ledger], None] | None = None
        """Called with the ledger when the request is over and its reply is out; must not block or raise."""

    def then(self, done: Callable[[Ledger], None]) -> None:
        """Call `done`, too, when the request is over."""
        if (before := self.after) is None:
            self.after = done
            return

        def both(ledger: Ledger) -> None:
            before(ledger)
            done(ledger)

        self.after = both

    def begin(self, name: str, attributes: dict[str, Any] | None = None) -> Hop:
        """Begin a hop under the root; the caller must end it."""
        hop = Hop(name, len(self.hops), {} if attributes is None else attributes)
        self.hops.append(hop)
        return hop

    def waited_ns(self, *names: str) -> int:
        """Return the nanoseconds during which any hop of these names was open; overlapping hops count once."""
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
        """Return the 64-bit span id of a hop of this trace, never 0."""
        return ((self._base + hop.number) & _SPAN_ID_MASK) or 1

    def traceparent(self, hop: Hop) -> str:
        """Return the W3C `traceparent` header that makes a backend's spans children of `hop`."""
        return f"00-{self.trace_id:032x}-{self.span_id(hop):016x}-01"


# version "-" trace-id "-" parent-id "-" flags. Later versions may add "-" and more, version 00 may not; ff is invalid.
_FORM = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-[!-~]*)?")
_LONGEST = 128


def parse_traceparent(header: bytes | None) -> tuple[int, int] | None:
    """Return (trace id, parent span id), neither of them 0; None if the header is absent or invalid.

    Strictly by W3C Trace Context level 1. A request with an invalid header gets a new trace id, as without one.
    """
    if header is None or len(header) > _LONGEST or (match := _FORM.fullmatch(header)) is None:
        return None
    version, trace_id, parent_id, more = match.groups()
    if version == b"00" and more is not None:
        return None
    trace, parent = int(trace_id, 16), int(parent_id, 16)
    return (trace, parent) if trace and parent else None
