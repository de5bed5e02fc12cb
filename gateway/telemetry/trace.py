"""Record the trace of one request at low cost: plain slots, and one clock call at each end of a hop.

Nothing is exported, serialised or locked on the request path. After the reply, `telemetry.sink` decides whether the
hops are kept, has worked out what decided each of them, makes of the trace the record that `tierline trace` draws, and
hands it to an exporter of OpenTelemetry spans where there is one. Making a span of opentelemetry-sdk with eight
attributes takes 18 us; a hop takes about 1 us.

A client's `traceparent` gives the trace its id, its parent and its random flag. The sampled flag of a client decides
nothing here: it is a client that sends it, and whoever pays for the storage sets the rate (`telemetry.sample`). It is
passed on, though, so that a trace which the client records is not cut off behind the gateway; `tracestate` is passed on
as it came. With a sampler of OTEL_TRACES_SAMPLER that goes by the parent, the flag decides what is exported, and is
passed on as it is; the store keeps the trace all the same. Of a trace that no caller records, backends are told whether
that sampler, and the rate, export it.

Ids begin with the time: whoever has one of them, or its beginning, knows where to look for its record. A trace id is 32
hex digits and a request id `req_` with 24: first the Unix time in milliseconds in 11 digits (44 bits, until the year
2527), then random bits. So ids of one service sort by time, as those of UUID version 7 (RFC 9562) do, and the low 64
bits of a trace id, by which sampling decides, are all random, as W3C Trace Context level 2 asks.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gateway.telemetry import names
from policies.value_type import from_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.telemetry.ledger import Ledger
    from policies.model import Policy
    from routing.confidence.judge import Evidence
    from routing.decide import Decision, DecisionInput

_PREFIX: Final = "req_"
_REQUEST_RANDOM_BITS: Final = 52
TRACE_RANDOM_BITS: Final = 84
"""Bits of a trace id behind its time."""
# Seeded by the system once per process: ids must be unique but not secret, and a system call for each costs 2 us.
_random = random.Random()  # noqa: S311


def new_request_id() -> str:
    """Return the id of a request that begins now."""
    now_ms = time.time_ns() // 1_000_000
    return f"{_PREFIX}{now_ms << _REQUEST_RANDOM_BITS | _random.getrandbits(_REQUEST_RANDOM_BITS):024x}"


SPAN_ID_MASK = (1 << 64) - 1
EVERY_TRACE: Final = 1 << 64
"""Bound of the low 64 bits of a trace id below which a trace is sampled, for all traces."""
_SAMPLED: Final = 1
_WAITS: Final = frozenset({names.ATTEMPT, names.CACHE_FOLLOW, names.BUDGET_WAIT, names.QUOTA_WAIT})
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_PASSED_ON: Final = 3
"""The flags of a client's `traceparent` that are passed on: sampled, and that the id is random."""
_ids = random.Random()  # noqa: S311  (unique, not secret: see `telemetry.ids`)


class Judged(NamedTuple):
    """The evidence on which an answer was judged, and when (Unix time in ns).

    `tokens` are the texts of its tokens, empty unless texts are captured.
    """

    evidence: Evidence
    at_ns: int
    threshold: float | None = None
    tokens: Sequence[str] = ()


judged_of: Final = from_fields(Judged)


class Ejected(Protocol):
    """Why a backend gets no calls but probes."""

    @property
    def reason(self) -> str:
        """The reason in words."""


BackendLoad = tuple[int, int, int, Ejected | None]
"""A backend as a call went out: calls in flight, how many may be, requests that wait, and its ejection if it is one."""


class Hop:
    """One traced step. Times are `time.perf_counter_ns()`; `error` is the `error.type` attribute if the step failed.

    `judged` and `load` are kept as they are, for what says after the reply how the hop ended.
    """

    __slots__ = ("attributes", "end_ns", "error", "judged", "load", "name", "number", "start_ns")

    def __init__(self, hops: list[Hop], name: str, attributes: dict[str, Any] | None = None) -> None:
        """Begin a hop, the next one of `hops`."""
        self.name = name
        self.number = len(hops)
        hops.append(self)
        self.attributes: dict[str, Any] = {} if attributes is None else attributes
        self.error: str | None = None
        self.judged: Judged | None = None
        self.load: BackendLoad | None = None
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


class RemoteParent(NamedTuple):
    """What a client's trace headers say: its trace, its span, its flags, and `tracestate` as it came."""

    trace_id: int
    parent_id: int
    flags: int = 0
    tracestate: str = ""


NO_PARENT: Final = RemoteParent(0, 0)


@dataclass(slots=True)
class RecordedDecision:
    """A decision by `policy`, and what it was made of. `decision` is None until it is made, or if no tier could answer.

    A request may be decided upon early and again later: the trace holds the last decision.
    """

    policy: Policy
    given: DecisionInput
    decision: Decision | None = None


class Trace:
    """Hold all hops of one request in the order they began; hop 0 is the request itself.

    Without a `caller` the trace id is new (`telemetry.ids`), and `parent_id` is 0. Span ids are consecutive from a
    random base, which is cheaper than drawing each. `sampled`: whether head sampling keeps the hops: whether the low 64
    bits of the trace id are under `sampled_below`, by which every service of the same rate keeps the same traces.
    `follows`: whether the caller's sampled flag decides what is exported. `told_below`: the same bound for the sampled
    flag that backends get where the caller's is not set and does not decide.
    """

    __slots__ = (
        "_flags",
        "after",
        "answer",
        "asked",
        "begin",
        "caller_sampled",
        "captures",
        "counted",
        "deadline_s",
        "decision",
        "first_span_id",
        "hops",
        "parent_id",
        "policy",
        "root",
        "route",
        "sampled",
        "settled",
        "started_unix_ns",
        "trace_id",
        "tracestate",
        "ttft_s",
    )

    def __init__(
        self,
        name: str,
        caller: RemoteParent = NO_PARENT,
        sampled_below: int = EVERY_TRACE,
        *,
        follows: bool = False,
        told_below: int = EVERY_TRACE,
    ) -> None:
        self.started_unix_ns = time.time_ns()
        drawn = _ids.getrandbits(TRACE_RANDOM_BITS + 64)
        trace_id, self.parent_id, flags, self.tracestate = caller
        self.trace_id = trace_id or self.started_unix_ns // 1_000_000 << TRACE_RANDOM_BITS | drawn >> 64
        self.sampled = self.trace_id & SPAN_ID_MASK < sampled_below
        self.caller_sampled = bool(flags & _SAMPLED) if follows and self.parent_id else None
        """Whether the caller records the trace; None where that decides nothing."""
        self._flags = (flags & _PASSED_ON) | (self.trace_id & SPAN_ID_MASK < told_below and self.caller_sampled is None)
        self.first_span_id = (drawn & SPAN_ID_MASK) or 1
        """The 64-bit span id of the root."""
        self.hops: list[Hop] = []
        self.begin = partial(Hop, self.hops)
        """Begin a hop under the root, by its name and, if given, its attributes; the caller must end it."""
        self.root = self.begin(name)
        """The hop of the whole request."""
        self.route = ""
        """Path of the endpoint that was called; empty where the request came another way."""
        self.asked: Mapping[str, Any] = _NOTHING
        """What the request asks of models, as `gen_ai.request.*`; only where spans are exported."""
        self.deadline_s: float | None = None
        """Seconds from the start of the request to its deadline; None where it has none."""
        self.ttft_s: float | None = None
        """Seconds from the start of the request until a stream's first token is due; None without such a limit."""
        self.captures = False
        """Whether the texts of prompt and answer are recorded."""
        self.answer: Callable[[], str] | None = None
        """Returns the text of the answer once it has ended, only where texts are captured."""
        self.policy: Policy | None = None
        """The policy that answers; None where none was found."""
        self.decision: RecordedDecision | None = None
        """The routing decision and what it was made of; None if there was none."""
        self.settled = False
        """Whether the ledger has the request's final figures."""
        self.counted = False
        """Whether the metrics have the request."""
        self.after: Callable[[Ledger], None] | None = None
        """Called with the ledger when the request is over and its reply is out; must not block or raise."""

    def then(self, done: Callable[[Ledger], None]) -> None:
        """Have `done` called, after earlier callbacks, when the request is over."""
        if (before := self.after) is None:
            self.after = done
            return

        def both(ledger: Ledger) -> None:
            before(ledger)
            done(ledger)

        self.after = both

    def overhead_ms(self) -> float:
        """Return the gateway's own milliseconds so far: the request's time less that in which a backend's or a shared
        answer was awaited, or its owners' money; overlapping waits count once.
        """
        root = self.root
        own = now = root.end_ns or time.perf_counter_ns()
        own -= root.start_ns
        until = 0
        for hop in self.hops:
            if hop.name in _WAITS:
                end = hop.end_ns or now
                if end > until:
                    own -= end - max(hop.start_ns, until)
                    until = end
        return max(0, own) / 1e6

    def span_id(self, hop: Hop) -> int:
        """Return the 64-bit span id of a hop of this trace, never 0: the root's plus the hop's number."""
        return ((self.first_span_id + hop.number) & SPAN_ID_MASK) or 1

    def traceparent(self, hop: Hop) -> str:
        """Return the W3C `traceparent` header that makes a backend's spans children of `hop`."""
        span_id = (self.first_span_id + hop.number) & SPAN_ID_MASK or 1  # as `span_id` has it
        # Hexadecimal through bytes takes half the time of `:032x`.
        return f"00-{self.trace_id.to_bytes(16).hex()}-{span_id.to_bytes(8).hex()}-{self._flags:02x}"

    def headers(self, hop: Hop) -> dict[str, str]:
        """Return the W3C headers that make a service's spans children of `hop`, with `tracestate` as it came."""
        headers = {"traceparent": self.traceparent(hop)}
        if self.tracestate:
            headers["tracestate"] = self.tracestate
        return headers


# version "-" trace-id "-" parent-id "-" flags. Later versions may add "-" and more, version 00 may not; ff is invalid.
_FORM = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_LONGEST = 128
_STATE = re.compile(rb"[\t -~]{1,8192}")


def parse_parent(headers: Mapping[bytes, bytes]) -> RemoteParent:
    """Return what a client's trace headers say; NO_PARENT if there is no valid `traceparent`.

    Strictly by W3C Trace Context level 1. A request with an invalid header gets a new trace id, as without one.
    """
    traceparent, tracestate = headers.get(b"traceparent"), headers.get(b"tracestate")
    if traceparent is None or len(traceparent) > _LONGEST or (match := _FORM.fullmatch(traceparent)) is None:
        return NO_PARENT
    version, trace_id, parent_id, flags, more = match.groups()
    if version == b"00" and more is not None:
        return NO_PARENT
    trace, parent = int(trace_id, 16), int(parent_id, 16)
    if not trace or not parent:
        return NO_PARENT
    state = tracestate.decode() if tracestate is not None and _STATE.fullmatch(tracestate) else ""
    return RemoteParent(trace, parent, int(flags, 16), state)
