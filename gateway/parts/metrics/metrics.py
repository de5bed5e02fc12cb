"""Count requests in Prometheus metrics with prometheus-client, and render the text of `/metrics`.

Each finished request is counted by one call, `observe(trace, ledger)`, after its reply, with others; what waits for it
is counted before the text is rendered (`count_waiting`). To keep that cheap, counters are summed in a plain dict and
passed to prometheus-client by `flush_slices()`, which telemetry calls every five seconds and `render()` always: a dict
update costs 0.1 us, a counter's `inc()` 0.4 us, 1 us with several workers. A flush adds to the values of counters past
`inc()`, whose checks are for amounts that may be negative. Series are looked up once per combination of labels and
cached, because `labels()` costs 0.9 us. Gauges are read from where the state is (`watch...`) every five seconds and
whenever the text is rendered.

A metric has at most `MOST[type]` series in one process; what comes after has the value `other` in every label.

With several workers, PROMETHEUS_MULTIPROC_DIR is set before they start (`shared_metrics`). Every worker writes its
values to files in that folder, and `render()` in any worker returns the values of all.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from math import nan
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from gateway.parts.measures.endings import HELD, answered, is_beside, no_answer
from gateway.parts.metrics.metric_set import LENGTH_NAMES, LENGTHS, MOST, OTHER, Metric, MetricSet, OwnText, SharedText
from gateway.telemetry import names
from gateway.telemetry.ledger import PLAYGROUND
from gateway.telemetry.metrics import FIRST_BYTE_BUCKETS, Joined, Metrics
from gateway.version import version
from routing.cascade import REJECTED

if TYPE_CHECKING:
    from cache.store.base import StoreState
    from gateway.config.policy_reload import Policies
    from gateway.request.load_shedding import LoadShedder
    from gateway.steps import Steps
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Hop, Trace
    from gateway.tiers import Tier
    from policies.loader import PolicySet

TARGETS: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "deadline": 0.999, "goodput": 0.99}
"""Share of requests that should meet an objective, by the end of its name."""
GOODPUT: Final = "goodput"
_GROUPS: Final = {None: "undrawn", False: "routed", True: "held_out"}
"""Values of the label `group`, by `Ledger.holdout`."""

# A request's metrics, and the fields of its ledger that they are made of: milliseconds, and amounts, of which those
# above 0 are added. prometheus-client raises for a negative amount, and a backend may report one.
_TIMES: Final = (
    ("duration", "total_ms"), ("overhead", "overhead_ms"), ("ttft", "ttft_ms"), ("tpot", "tpot_ms"), ("gap", "gap_ms"),
)  # fmt: skip
_AMOUNTS: Final = ("wasted_usd", "counterfactual_usd")
_times_of: Final = attrgetter(*(field for _, field in _TIMES))
_amounts_of: Final = attrgetter(*_AMOUNTS)

# By hop name, the counter of the hop, and the attributes that become its labels, after the surface.
_COUNTED: Final = {
    names.CACHE_EXACT: ("lookups", (names.CACHE_OUTCOME, names.CACHE_REASON)),
    names.CACHE_SEMANTIC: ("lookups", (names.CACHE_OUTCOME, names.CACHE_REASON)),
    names.CACHE_FOLLOW: ("coalesced", (names.CACHE_OUTCOME,)),
    names.CACHE_WRITE: ("writes", (names.CACHE_OUTCOME, names.CACHE_REASON)),
    names.BUDGET_WAIT: ("steered", (names.OUTCOME,)),
    names.ATTEMPT: ("attempts", (names.TIER, names.BACKEND, names.OUTCOME)),
}
_MARKS: Final = frozenset(
    {names.HEDGE, names.UPSTREAM_STATUS, names.COST_UNKNOWN, names.PROMPT_CACHE_USD, names.STAGE, names.CHECK_MS}
)
"""Attributes of those hops that are counted by themselves."""
_STORE_STATUSES: Final = ("ok", "degraded", "unconfigured")
_NONE: Final = "none"
_OK: Final = 200
_TOO_MANY: Final = 429
_OVERLOADED: Final = "server_is_overloaded"
_UNKNOWN: Final = "unknown"
_MOST_CACHED: Final = 5000
_LONGEST_LABEL: Final = 100
_REFRESH_S: Final = 5.0
_SLICE: Final = 64
"""Series that take over their sums in one turn of the event loop."""
METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder through which workers share their metrics; unset with one worker."""

_Key = tuple[str | None, ...]


class BackendState(NamedTuple):
    """The state of one backend in this worker."""

    tier: str
    backend: str
    open: bool
    """Whether it is not called, because its breaker is open."""
    in_flight: int
    queued: int
    capacity: int
    headroom: Mapping[Any, float]
    """Part of each rate limit that is left, by its unit; empty where the backend says nothing."""
    refuses: bool = False
    """Whether it refuses our key or account, or has not its model."""


class PrometheusMetrics(MetricSet, Metrics):
    """Count in the metrics of this process, and render them."""

    first_bytes: tuple[list[float], list[float]]

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        super().__init__()
        self._process: CollectorRegistry | None = None
        self._series: dict[_Key, _Series] = {}
        self._calls: dict[_Key, tuple[Any, ...]] = {}
        self._hops: dict[_Key, Counter] = {}
        self._labelled: dict[tuple[Metric, _Key], Any] = {}
        self._tally: defaultdict[Counter, float] = defaultdict(float)
        self._observed: defaultdict[Histogram, list[float]] = defaultdict(list)
        self.first_bytes = untimed(), untimed()
        self._first_bytes = tuple(zip(map(self.first_byte.labels, ("new", "kept")), self.first_bytes, strict=True))
        self._watched: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._policies: PolicySet | None = None
        self._text: OwnText | SharedText
        if folder := os.environ.get(METRICS_FOLDER):
            self._text = SharedText(Path(folder))
        else:
            self._text = OwnText(self.defined)
            self._process = CollectorRegistry()
            ProcessCollector(registry=self._process)
            self.workers_configured.set(1)
        self.build.labels(version()).set(1)

    def observe(self, trace: Trace, ledger: Ledger) -> None:
        """Count one finished request: its ledger, attempts, cache lookups and cache write."""
        tokens = ledger.answer_tokens_in  # as the backend counted them, else as the router did
        if tokens is None and trace.decision is not None:
            tokens = trace.decision.given.features.approx_tokens
        length = _UNKNOWN if tokens is None else LENGTH_NAMES[bisect_right(LENGTHS, tokens)]
        key = (ledger.surface, ledger.path, ledger.tier, ledger.backend, length)
        series = self._series.get(key) or self._series_of(key)
        tally, observed = self._tally, self._observed
        tally[series.requests.get(ledger.status) or self._requests_of(series, ledger.status)] += 1
        for place, time_ms in enumerate(_times_of(ledger)):
            if time_ms is not None:
                observed[series.times[place] or self._time_of(series, place)].append(time_ms / 1000)
        for counter, amount in zip(series.amounts, amounts := _amounts_of(ledger), strict=True):
            if amount and amount > 0:
                tally[counter] += amount
        fault = self._count_calls(series, ledger) if ledger.calls or ledger.tokens_in else ""
        cost, alone = ledger.cost_usd, amounts[1]
        if alone is not None and not ledger.cost_unknown and cost >= 0 and alone >= 0:
            saving = series.savings.get(ledger.holdout) or self._saving_of(series, ledger.holdout)
            for counter, amount in zip(saving, (1, cost, alone, cost * cost, alone * alone, cost * alone), strict=True):
                tally[counter] += amount
        whole = ledger.status == _OK and ledger.error is None
        if ledger.slo or not (whole or ledger.arm == PLAYGROUND or is_beside(ledger.surface)):
            self._check(series, ledger, fault, whole=whole)
        for hop in trace.hops:
            if (counted := _COUNTED.get(hop.name)) is None:
                continue
            attributes = hop.attributes
            hop_key = (hop.name, series.surface, *map(attributes.get, counted[1]))
            tally[self._hops.get(hop_key) or self._resolve(hop_key)] += 1
            if not _MARKS.isdisjoint(attributes):
                self._count_marks(hop, series.surface, ledger)
        made = None if (decided := trace.decision) is None else decided.decision
        if ledger.error == _OVERLOADED or (
            decided and (made is None or made.stand_in or made.missing or made.steering)
        ):
            self._count_hindered(trace, ledger, series.surface)

    def policy_reloaded(self, ok: bool) -> None:
        """Count a policy reload; `ok` says whether it took effect or was refused."""
        self._child(self.reloads, ("applied" if ok else "refused",)).inc()

    def warmed(self, backend: str, outcome: str) -> None:
        """Count a finished keep-warm request."""
        self._child(self.warmings, (backend, outcome)).inc()

    def spent_beside(self, surface: str, part: str, dollars: float) -> None:
        """Count US dollars of calls that no client pays for, by what they were made for."""
        self._child(self.spent, (surface, part)).inc(dollars)

    def counting(self, name: str, text: str, *labels: str) -> Callable[..., None]:
        """Define a counter of a part, and return what adds to it: `add(*values of the labels, amount=1)`."""
        counter = self.counter(name, text, *labels)

        def add(*values: str | None, amount: float = 1) -> None:
            self._child(counter, values).inc(amount)

        return add

    def gauging(self, name: str, text: str, joined: Joined, *labels: str) -> Callable[..., None]:
        """Define a gauge of a part, and return what sets it: `put(value, *values of the labels)`.

        `joined`: how the values of several workers become one.
        """
        gauge = self.gauge(name, text, joined, *labels)

        def put(value: float, *values: str | None) -> None:
            self._child(gauge, values).set(value)

        return put

    def watch(self, read: Callable[[], None]) -> None:
        """Call `read`, which sets gauges, whenever they are shown, and every few seconds with several workers."""
        self._watched.append(read)

    def telemetry_dropped(self, reason: str, count: int = 1) -> None:
        """Count `count` lost traces; `reason` is one of a fixed set of words."""
        self._child(self.drops, (reason,)).inc(count)

    def watch_store(self, state: Callable[[], StoreState]) -> None:
        """Read the store gauge from `state()`."""
        gauges = [(status, self.store.labels(status)) for status in _STORE_STATUSES]

        def read() -> None:
            now = state().status
            for status, gauge in gauges:
                gauge.set(status == now)

        self._watched.append(read)

    def watch_evictions(self, evicted: Callable[[], int]) -> None:
        """Read the gauge of evicted keys from `evicted()`."""
        self._watched.append(lambda: self.evicted.set(evicted()))

    def watch_gate(self, gate: LoadShedder) -> None:
        """Read the gauges of requests in flight, event-loop lag, memory and accept queue from `gate`."""

        def read() -> None:
            self.in_flight.set(gate.in_hand)
            self.lag.set(gate.lag_s)
            self.memory.set(gate.memory)
            self.accept_queue.set(gate.waiting)

        self._watched.append(read)

    def watch_backends(self, states: Callable[[], Iterable[BackendState]]) -> None:
        """Read the gauges of backends from `states()`."""

        def read() -> None:
            for state in states():
                labels = state.tier, state.backend
                self._child(self.open, labels).set(state.open)
                self._child(self.calls_in_flight, labels).set(state.in_flight)
                self._child(self.queued, labels).set(state.queued)
                self._child(self.capacity, labels).set(state.capacity)
                for unit, share in state.headroom.items():
                    self._child(self.headroom, (*labels, unit)).set(share)
                if state.refuses or (self.refusing, labels[1:]) in self._labelled:
                    self._child(self.refusing, labels[1:]).set(state.refuses)

        self._watched.append(read)

    def watch_policies(self, policies: Policies) -> None:
        """Read the gauges of objectives and of policies in force from `policies`."""
        written: dict[tuple[Gauge, _Key], None] = {}

        def write(gauge: Gauge, labels: _Key, value: float) -> None:
            written[gauge, labels] = None
            self._child(gauge, labels).set(value)

        def read() -> None:
            self.drift.set(sum(note.startswith("drift: ") for note in policies.notes))
            self.refused.set(policies.failure is not None)
            if policies.current is self._policies:
                return
            self._policies = policies.current
            for gauge, labels in written:  # of a surface or an objective that there is no more
                self._child(gauge, labels).set(nan if gauge in (self.slo_limit, self.slo_target) else 0)
            for surface, policy in policies.current.by_surface.items():
                fingerprint = zlib.crc32(policy.label.encode())
                write(self.fingerprint_lowest, (surface,), fingerprint)
                write(self.fingerprint_highest, (surface,), fingerprint)
                for objective, limit_s in policy.slo.limits().items():
                    write(self.slo_limit, (surface, objective), limit_s)
                    write(self.slo_target, (surface, objective), TARGETS[objective.rpartition("_")[2]])
                write(self.slo_target, (surface, GOODPUT), TARGETS[GOODPUT])

        self._watched.append(read)

    def start(self, steps: Steps) -> None:
        """Count this process as a serving worker, and watch what its steps say of themselves."""
        for tier in steps.tiers.values():
            for endpoint in tier.endpoints:
                if (day := endpoint.config.retires) is not None:
                    at = datetime(day.year, day.month, day.day, tzinfo=UTC)
                    self._child(self.retirement, (endpoint.config.name,)).set(at.timestamp())
        self.watch_store(steps.store.state)
        if steps.room is not None:
            self.watch_evictions(steps.room.evicted)
        self.watch_policies(steps.policies)
        self.watch_backends(partial(_states, steps.tiers))
        self.watch_gate(steps.gate)
        self.serve()

    def serve(self) -> None:
        """Count this process as a serving worker; one of several updates its gauges every five seconds.

        What a worker's gauges say is then read by another, from the folder that they share. One that is alone updates
        them as they are read.
        """
        self.workers.set(1)
        if METRICS_FOLDER in os.environ:
            self._refresh_later(asyncio.get_running_loop())
        else:
            self.refresh()

    def stop(self) -> None:
        """Stop what `start` began."""
        self.workers.set(0)
        if self._timer is not None:
            self._timer.cancel()

    def _refresh_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(_REFRESH_S, self._refresh_later, loop)
        self.refresh()

    def refresh(self) -> None:
        """Update the gauges."""
        for read in self._watched:
            read()

    def flush_slices(self) -> Iterator[None]:
        """Pass what was counted since the last flush to prometheus-client, some series at each step."""
        left = len(self._tally) + len(self._observed)  # what is counted meanwhile is for the next flush
        while left > 0 and (self._tally or self._observed):
            for _ in range(min(left, _SLICE)):
                if self._tally:
                    series, amount = self._tally.popitem()
                    series._value.inc(amount)
                elif self._observed:
                    _observe_all(*self._observed.popitem())
            left -= _SLICE
            yield
        for histogram, times in self._first_bytes:
            if times[-1]:
                _observe_counted(histogram, times)
                times[:] = untimed()

    def render(self) -> bytes:
        """Return the exposition text, of all workers if there are several, else of this process."""
        return b"".join(self.render_slices())

    def render_slices(self) -> Iterator[bytes]:
        """Return the exposition text in parts, some of them empty; each takes about half a millisecond to make."""
        if self.count_waiting is not None:
            for _ in self.count_waiting():
                yield b""
        for _ in self.flush_slices():
            yield b""
        self.refresh()
        for text in self._text.slices():
            yield text.encode("utf-8", "backslashreplace")
        if self._process is not None:
            yield generate_latest(self._process)

    def _child(self, metric: Any, labels: _Key) -> Any:
        """Return the series of these labels, or that of `other` when the metric has as many as it may."""
        key = metric, labels
        child = self._labelled.get(key)
        if child is None:
            if not labels:
                return metric
            values = tuple((value or _NONE)[:_LONGEST_LABEL] for value in labels)
            if values not in metric._metrics and len(metric._metrics) >= MOST[type(metric)]:
                values = (OTHER,) * len(values)
            child = metric.labels(*values)
            if len(self._labelled) < _MOST_CACHED:
                self._labelled[key] = child
        return child

    def _series_of(self, key: _Key) -> _Series:
        own = key if len(self._series) < MOST[Histogram] else (OTHER,) * len(key)
        series = self._series.get(own)
        if series is None:
            series = self._series[own] = _Series(self._child, self, own)
        if len(self._series) < _MOST_CACHED:
            self._series[key] = series
        return series

    def _time_of(self, series: _Series, place: int) -> Histogram:
        histogram: Histogram = self._child(getattr(self, _TIMES[place][0]), series.key)
        series.times[place] = histogram
        return histogram

    def _call_series_of(self, labels: _Key) -> tuple[Any, ...]:
        """Return what one backend's calls for a surface are counted in: queue, tokens in and out, dollars."""
        made = (
            self._child(self.queue, labels),
            self._child(self.tokens, (*labels, "in")),
            self._child(self.tokens, (*labels, "out")),
            self._child(self.cost, labels),
        )
        if len(self._calls) < _MOST_CACHED:
            self._calls[labels] = made
        return made

    def _requests_of(self, series: _Series, status: int) -> Counter:
        counter: Counter = self._child(self.requests, (series.surface, series.path, series.tier, str(status)))
        if len(series.requests) < MOST[Counter]:
            series.requests[status] = counter
        return counter

    def _saving_of(self, series: _Series, holdout: bool | None) -> tuple[Counter, ...]:
        group = series.surface, _GROUPS[holdout]
        saving = series.savings[holdout] = tuple(self._child(counter, group) for counter in self.saving)
        return saving

    def _count(self, counter: Counter, labels: _Key, amount: float = 1) -> None:
        self._tally[self._labelled.get((counter, labels)) or self._child(counter, labels)] += amount

    def _check(self, series: _Series, ledger: Ledger, fault: str, *, whole: bool) -> None:
        """Count which objectives a request met, and how it ended. `fault`: the structural one of its `whole` answer."""
        tally, missed = self._tally, []
        for objective, met in (ledger.slo or {}).items():
            pair = series.objectives.get(objective)
            if pair is None:
                labels = series.surface, objective
                pair = self._child(self.slo_requests, labels), self._child(self.slo_misses, labels)
                series.objectives[objective] = pair
            tally[pair[0]] += 1
            if not met:
                tally[pair[1]] += 1
                missed.append(objective)
        ending = series.ending
        if missed or fault:
            ending = answered(missed, series.path, fault)
        if not whole or ledger.refused:
            ending = no_answer(ledger.status, ledger.error, refused=ledger.refused) or ending
        if ending in HELD:
            tally[series.goodput_requests] += 1
        if ending == "good":
            tally[series.goodput_good] += 1
        else:
            self._count(self.not_good, (series.surface, ending))

    def _count_calls(self, series: _Series, ledger: Ledger) -> str:
        """Count the calls, each by the backend that was called, whoever answered in the end: what its provider is owed.

        Return the structural fault of the answer, empty if it had none.
        """
        surface, tally, fault = series.surface, self._tally, ""
        for call in ledger.calls:
            labels = surface, call.tier, call.backend
            queue, *counters = self._calls.get(labels) or self._call_series_of(labels)
            self._observed[queue].append(call.queue_ms / 1000)
            for counter, amount in zip(counters, (call.tokens_in, call.tokens_out, call.cost_usd), strict=True):
                if amount > 0:
                    tally[counter] += amount
            if call.wasted and (tokens := call.tokens_in + call.tokens_out) > 0:
                self._count(self.wasted_tokens, (surface, call.tier), tokens)
            if call.outcome in REJECTED:
                self._count(self.rejected, (surface, call.tier, _stable(call.fault or "confidence")))
            fault = fault or ("" if call.wasted else call.fault)
        if not ledger.calls and ledger.tokens_in:  # by the gateway's own encoder
            _, counter, *_ = self._call_series_of((surface, ledger.tier, ledger.backend))
            tally[counter] += ledger.tokens_in
        return fault

    def _count_hindered(self, trace: Trace, ledger: Ledger, surface: str) -> None:
        """Count why a request was rejected, tiers that a rate limit ruled out, and whether a budget steered it."""
        if ledger.error == _OVERLOADED:
            self._count(self.shed, (surface, _why_shed(trace, ledger)))
        made = None if trace.decision is None else trace.decision.decision
        if ledger.steered_from and made is not None and made.steering is not None:
            self._count(self.steered, (surface, "capped" if made.steering.wanted else "eased"))
        for name, health in () if trace.decision is None else trace.decision.given.health.items():
            if health.unavailable.startswith((names.OUT_OF_QUOTA, names.PAUSES)):
                self._count(self.rate_limited, (surface, name, "skipped"))

    def _count_marks(self, hop: Hop, surface: str, ledger: Ledger) -> None:
        """Count a hedge by how it ended, what a call's price or prompt cache was, and what decided on a neighbour."""
        attributes = hop.attributes
        if attributes.get(names.HEDGE):
            self._count(self.hedges, (surface, _raced(hop, ledger)))
        if attributes.get(names.UPSTREAM_STATUS) == _TOO_MANY and attributes.get(names.BLAME) != "account":
            tier = attributes.get(names.TIER)
            self._count(self.rate_limited, (surface, tier, "refused"))
            self._count(self.rate_limited_time, (surface, tier), hop.seconds)
        if names.COST_UNKNOWN in attributes:
            self._count(self.unpriced, (attributes.get(names.TIER), attributes.get(names.BACKEND)))
        if cache_usd := attributes.get(names.PROMPT_CACHE_USD):
            self._count(self.prompt_caches, (surface, "saved" if cache_usd > 0 else "lost"), abs(cache_usd))
        if (stage := attributes.get(names.STAGE)) is not None:
            self._count(self.stages, (surface, stage, attributes.get(names.CACHE_OUTCOME)))
        if (check_ms := attributes.get(names.CHECK_MS)) is not None:
            self._observed[self.checks].append(check_ms / 1000)

    def _resolve(self, key: _Key) -> Counter:
        hop, surface, *values = key
        labels = (surface, *map(_stable, values))
        metric = _COUNTED[hop or ""][0]
        if metric == "lookups":
            labels = (surface, hop, *labels[1:])
        counter: Counter = self._child(getattr(self, metric), labels)
        if len(self._hops) < _MOST_CACHED:
            self._hops[key] = counter
        return counter


class _Series:
    """Hold the series of one combination of surface, path, tier, backend and length of the prompt."""

    __slots__ = (
        "amounts", "ending", "goodput_good", "goodput_requests", "key", "objectives", "path", "requests", "savings",
        "surface", "tier", "times",
    )  # fmt: skip

    def __init__(self, child: Callable[[Any, _Key], Any], metrics: PrometheusMetrics, key: _Key) -> None:
        surface, path, tier, _, prompt = (value or _NONE for value in key)
        self.key, self.surface, self.path, self.tier = key, surface, path, tier
        self.ending = answered((), path, "")
        """How a request ended that got a whole answer without a fault, in time."""
        self.requests: dict[int, Counter] = {}
        """By HTTP status."""
        self.savings: dict[bool | None, tuple[Counter, ...]] = {}
        """By `Ledger.holdout`."""
        self.objectives: dict[str, tuple[Counter, Counter]] = {}
        """By objective: the counters of requests and of misses."""
        self.times: list[Histogram | None] = [
            child(metrics.duration, key),
            child(metrics.overhead, (surface, path, prompt)),
            *[None] * (len(_TIMES) - 2),
        ]
        """As in _TIMES; None until there is such a time."""
        self.goodput_requests: Counter = child(metrics.goodput_requests, key)
        self.goodput_good: Counter = child(metrics.goodput_good, key)
        self.amounts: tuple[Counter, ...] = (
            child(metrics.wasted, (surface,)),
            child(metrics.counterfactual, (surface,)),
        )
        """As in _AMOUNTS."""


def _observe_all(histogram: Histogram, values: list[float]) -> None:
    """Add many values at once: prometheus-client offers one at a time, with a dozen Python calls for each."""
    bounds, buckets = histogram._upper_bounds, histogram._buckets
    counts: dict[int, int] = {}
    for value in values:
        index = bisect_left(bounds, value)
        counts[index] = counts.get(index, 0) + 1
    for index, count in counts.items():
        buckets[index].inc(count)
    histogram._sum.inc(sum(values))


def _observe_counted(histogram: Histogram, times: list[float]) -> None:
    """Add values that are counted by bucket; the last is their sum."""
    *counts, sum_s = times
    for bucket, count in zip(histogram._buckets, counts, strict=True):
        if count:
            bucket.inc(count)
    histogram._sum.inc(sum_s)


def _stable(value: str | None) -> str:
    """Return a reason without its variable details, which follow a colon, so that it can be a label."""
    return (value or _NONE).partition(":")[0]


def _why_shed(trace: Trace, ledger: Ledger) -> str:
    """Return why the request was rejected: the reason of its `shed` hop.

    Without such a hop, `gate` if load shedding rejected it before its surface was known, else `backends_full`.
    """
    hop = next((hop for hop in trace.hops if hop.name == names.HOP_SHED), None)
    if hop is not None:
        return _stable(hop.attributes.get(names.REASON))
    return "backends_full" if ledger.surface else "gate"


def _raced(hop: Hop, ledger: Ledger) -> str:
    """Return a hedge's outcome: `won` if the client got its text, else the outcome of its attempt."""
    number = hop.attributes.get(names.ATTEMPT_NUMBER)
    return "won" if ledger.served and number in ledger.served else _stable(hop.attributes.get(names.OUTCOME))


def untimed() -> list[float]:
    """Return zeros for the requests in each of FIRST_BYTE_BUCKETS and beyond, and for the sum of their seconds."""
    return [0.0] * (len(FIRST_BYTE_BUCKETS) + 2)


def _states(tiers: Mapping[str, Tier]) -> Iterator[BackendState]:
    """Return the state of each backend."""
    for tier in tiers.values():
        for endpoint in tier.endpoints:
            is_open = endpoint.breaker.state(endpoint.now()) == "open"
            name, queued = endpoint.config.name, endpoint.queue.size
            left = {
                unit: most[0] / most[1] for unit, most in endpoint.quota.headroom(endpoint.now()).items() if most[1]
            }
            yield BackendState(
                tier.name, name, is_open, endpoint.in_flight, queued, endpoint.capacity, left, bool(endpoint.refused)
            )
