"""Count requests in Prometheus metrics with prometheus-client, and render the text of `/metrics`.

Each finished request is counted by one call, `observe(trace, ledger)`. To keep that cheap, counters are summed in a
plain dict and passed to prometheus-client by `flush()`, which telemetry's background task calls every few tens of
milliseconds and `render()` always: a dict update costs 0.1 us, a counter's `inc()` 0.4 us, 1 us with several workers.
Series are looked up once per combination of labels and cached, because `labels()` costs 0.9 us.

With several workers, the server sets PROMETHEUS_MULTIPROC_DIR before they start (unless it is set), empties that
folder, and calls `worker_died` for each worker that ends. Every worker writes its values to files there, and `render()`
in any worker returns the values of all.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from gateway.telemetry import names

if TYPE_CHECKING:
    from cache.risk.audit import SurfaceState
    from cache.store.base import StoreState
    from gateway.telemetry.ledger import CallAccount, Ledger
    from gateway.telemetry.trace import Hop, Trace

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

# Histogram buckets in seconds, from a cache hit (1 ms) over a hosted model's first token (0.2-2 s) to a long batch
# answer (minutes).
_DURATION: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)
_TTFT: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.9, 1.5, 2.5, 5, 10, 30)
_QUEUE: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)
_CHECK: Final = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5)
_TPOT: Final = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
_OVERHEAD: Final = (0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1)

# By hop name, the attributes that become the labels of its counter.
_COUNTED: Final = {
    names.CACHE_EXACT: (names.CACHE_OUTCOME, names.CACHE_REASON),
    names.CACHE_SEMANTIC: (names.CACHE_OUTCOME, names.CACHE_REASON),
    names.CACHE_FOLLOW: (names.CACHE_OUTCOME,),
    names.CACHE_WRITE: (names.CACHE_OUTCOME, names.CACHE_REASON),
    names.ATTEMPT: (names.TIER, names.BACKEND, names.OUTCOME),
}
_STORE_STATUSES: Final = ("ok", "degraded", "unconfigured")
_NONE: Final = "none"
_OVERLOADED: Final = "server_is_overloaded"
METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder through which workers share their metrics; unset with one worker."""

_Key = tuple[str | None, ...]


class Metrics:
    """Hold the metrics of this process in a registry of their own. Call its methods on the event loop's thread."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._define()
        self._series: dict[tuple[str, str, str, int], _Series] = {}
        self._hops: dict[_Key, Counter] = {}
        self._queues: dict[str, Histogram] = {}
        self._labelled: dict[tuple[Counter, _Key], Counter] = {}
        self._tally: dict[Counter, float] = {}
        self._observed: dict[Histogram, list[float]] = {}
        self._in_flight = 0
        self._store_state: Callable[[], StoreState] | None = None
        self._store_gauges = [(status, self.store.labels(status)) for status in _STORE_STATUSES]
        self._gate: Callable[[], tuple[float, float]] | None = None
        self._dropped_lines: Callable[[], int] | None = None
        self._lines_counted = 0
        self._learned: Callable[[], Mapping[str, SurfaceState]] | None = None

    def _define(self) -> None:
        registry = self._registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tierline_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"tierline_{name}_seconds", text, labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, mode: str, *labels: str) -> Gauge:
            return Gauge(f"tierline_{name}", text, labels, registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]

        self.requests = counter("requests", "Requests answered.", "surface", "path", "tier", "status")
        self.duration = histogram("request_duration", "Time from request to last byte.", _DURATION, "surface", "path")
        self.ttft = histogram("ttft", "Time from request to first byte of content.", _TTFT, "surface", "path")
        self.overhead = histogram("overhead", "The gateway's own time in a request.", _OVERHEAD, "path")
        self.attempts = counter("attempts", "Backend calls.", "tier", "backend", "outcome")
        self.lookups = counter("cache_lookups", "Cache lookups.", "hop", "outcome", "reason")
        self.coalesced = counter("coalesced", "Requests that shared the answer of an identical one.", "outcome")
        self.stages = counter("cache_decisions", "What decided on the best neighbour.", "stage", "outcome")
        self.checks = histogram("cache_check", "Wait for the cross-encoder's scores.", _CHECK)
        self.writes = counter("cache_writes", "Cache writes.", "outcome", "reason")
        self.tokens = counter("tokens", "Tokens, by direction.", "surface", "tier", "direction")
        self.cost = counter("cost_usd", "Cost of backend calls in US dollars, wasted or not.", "surface", "tier")
        self.wasted = counter("wasted_usd", "Cost in US dollars of calls whose text was not served.", "surface")
        self.wasted_tokens = counter("wasted_tokens", "Tokens of calls whose text was not served.", "surface", "tier")
        self.counterfactual = counter(
            "counterfactual_usd", "Cost in US dollars of the same answers from the strongest tier.", "surface"
        )
        self.queue = histogram("queue", "Wait in a backend's queue.", _QUEUE, "tier")
        self.tpot = histogram("tpot", "Time per output token of a stream, as sent.", _TPOT, "surface", "tier")
        self.hedges = counter("hedges", "Hedges: second attempts beside a slow first one.", "surface", "outcome")
        self.shed = counter("shed", "Requests rejected because of overload.", "surface", "reason")
        self.slo = counter("slo", "Requests checked against their surface's objectives.", "surface", "objective", "met")
        self.warmings = counter("warmings", "Requests that keep a backend warm.", "backend", "outcome")
        self.judgements = counter(
            "cache_judgements", "Pairs of answers compared by a judge for the cache's audits.", "surface", "outcome"
        )
        self.judge_cost = counter(
            "cache_judge_usd", "Cost in US dollars of these comparisons; in no client's ledger.", "surface"
        )
        self.comparisons = counter(
            "learn_comparisons", "Answers drawn to be compared with another tier's.", "surface", "outcome"
        )
        self.comparison_cost = counter(
            "learn_usd", "Cost in US dollars of comparisons; in no client's ledger.", "surface", "part"
        )
        self.shadows = counter(
            "shadows", "Requests drawn to be run under a candidate, for nobody.", "surface", "outcome"
        )
        self.shadow_cost = counter("shadow_usd", "Cost in US dollars of shadows; in no client's ledger.", "surface")
        self.drops = counter("telemetry_dropped", "Traces not counted, not stored or not exported.", "reason")
        self.log_drops = counter("log_dropped", "Log lines that could not be written.")
        self.reloads = counter("policy_reload", "Policy reloads that took effect.")
        self.reload_failures = counter("policy_reload_failed", "Policy reloads refused; the last valid policy applies.")
        self.in_flight = gauge("in_flight", "Requests being answered now.", "livesum")
        self.lag = gauge("loop_lag_seconds", "Delay of the event loop: least of its last few measurements.", "livemax")
        self.memory = gauge("memory_share", "Share of the process's permitted memory in use, 0 to 1.", "livemax")
        self.store = gauge("store_state", "1 for the state that the store is in.", "livemax", "state")
        self.refusing = gauge("backend_refuses", "1 while a backend refuses our key or account.", "livemax", "backend")
        self.threshold = gauge("cache_threshold", "Lowest score that the semantic cache serves.", "livemax", "surface")
        self.compared = gauge("cache_labels", "Compared answers from which it is estimated.", "livemax", "surface")
        self.breached = gauge("cache_breached", "1 while wrong hits are above max_error.", "livemax", "surface")
        if METRICS_FOLDER not in os.environ:
            ProcessCollector(registry=registry)

    def observe(self, trace: Trace, ledger: Ledger) -> None:
        """Count one finished request: its ledger, attempts, cache lookups and cache write."""
        key = (ledger.surface, ledger.path, ledger.tier, ledger.status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(self, *key)
        tally = self._tally
        tally[series.requests] = tally.get(series.requests, 0) + 1
        observe = self._observe
        observe(series.duration, ledger.total_ms / 1000)
        observe(series.overhead, ledger.overhead_ms / 1000)
        if ledger.ttft_ms is not None:
            observe(series.ttft, ledger.ttft_ms / 1000)
        if ledger.tpot_ms is not None:
            observe(series.tpot, ledger.tpot_ms / 1000)
        if ledger.attempts:
            self._spend(series, ledger)
        for call in ledger.calls:
            self._called(series.surface, call)
        if ledger.counterfactual_usd:
            tally[series.counterfactual] = tally.get(series.counterfactual, 0) + ledger.counterfactual_usd
        if ledger.slo:
            for objective, met in ledger.slo.items():
                self._count(self.slo, (series.surface, objective, "yes" if met else "no"))
        for hop in trace.hops:
            if hop.name in _COUNTED:
                self._count_hop(hop, series.surface, ledger)
        if ledger.error == _OVERLOADED:
            self._count(self.shed, (series.surface, _why_shed(trace, ledger)))

    def request_started(self) -> None:
        """Count a request as in flight; `request_ended` must follow, however it ends."""
        self._in_flight += 1

    def request_ended(self) -> None:
        """Count a request as over: nothing more will be sent."""
        self._in_flight -= 1

    def policy_reloaded(self, ok: bool) -> None:
        """Count a policy reload; `ok` says whether it took effect or was refused."""
        (self.reloads if ok else self.reload_failures).inc()

    def warmed(self, backend: str, outcome: str) -> None:
        """Count a finished keep-warm request."""
        self.warmings.labels(backend, outcome).inc()

    def backend_refuses(self, backend: str, refuses: bool) -> None:
        """Record that a backend has begun to refuse our key or account, or that it answers again."""
        self.refusing.labels(backend).set(refuses)

    def judged(self, surface: str, outcome: str, dollars: float) -> None:
        """Count a judge's comparison of two answers of this surface, and its cost in US dollars."""
        self.judgements.labels(surface, outcome).inc()
        self.judge_cost.labels(surface).inc(dollars)

    def answers_compared(self, surface: str, outcome: str, other_usd: float, judge_usd: float) -> None:
        """Count an answer that was to be compared, and the cost of the other answer and of the judge in US dollars."""
        self.comparisons.labels(surface, outcome).inc()
        self.comparison_cost.labels(surface, "other").inc(other_usd)
        self.comparison_cost.labels(surface, "judge").inc(judge_usd)

    def shadow_ended(self, surface: str, outcome: str, dollars: float) -> None:
        """Count a request that was to be run under a candidate policy in shadow mode, and its cost in US dollars."""
        self.shadows.labels(surface, outcome).inc()
        self.shadow_cost.labels(surface).inc(dollars)

    def telemetry_dropped(self, reason: str, count: int = 1) -> None:
        """Count `count` lost traces; `reason` is one of a fixed set of words."""
        self.drops.labels(reason).inc(count)

    def watch_store(self, state: Callable[[], StoreState]) -> None:
        """Read the store gauge from `state()` at each flush."""
        self._store_state = state

    def watch_gate(self, gate: Callable[[], tuple[float, float]]) -> None:
        """Read the gauges of event-loop lag (seconds) and memory (share, 0 to 1) from `gate()` at each flush."""
        self._gate = gate

    def watch_learning(self, learned: Callable[[], Mapping[str, SurfaceState]]) -> None:
        """Read the gauges of the semantic cache's thresholds, by surface, from `learned()` at each flush."""
        self._learned = learned

    def watch_log(self, dropped: Callable[[], int]) -> None:
        """Read the counter of dropped log lines from `dropped()` at each flush."""
        self._dropped_lines = dropped

    def flush(self) -> None:
        """Pass what was counted since the last flush to prometheus-client, and update the gauges."""
        tally, self._tally = self._tally, {}
        for series, amount in tally.items():
            series.inc(amount)
        observed, self._observed = self._observed, {}
        for histogram, values in observed.items():
            _observe_all(histogram, values)
        self.in_flight.set(self._in_flight)
        if self._dropped_lines is not None:
            before, self._lines_counted = self._lines_counted, self._dropped_lines()
            self.log_drops.inc(self._lines_counted - before)
        if self._gate is not None:
            lag_s, memory = self._gate()
            self.lag.set(lag_s)
            self.memory.set(memory)
        for surface, state in self._learned().items() if self._learned is not None else ():
            self.threshold.labels(surface).set(state.threshold)
            self.compared.labels(surface).set(state.labels)
            self.breached.labels(surface).set(state.breached)
        if self._store_state is not None:
            now = self._store_state().status
            for status, gauge in self._store_gauges:
                gauge.set(status == now)

    def render(self) -> bytes:
        """Return the exposition text (see CONTENT_TYPE), of all workers if there are several, else of this process."""
        self.flush()
        if METRICS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)  # type: ignore[no-untyped-call]
        return generate_latest(everyone)

    def _observe(self, histogram: Histogram, seconds: float) -> None:
        values = self._observed.get(histogram)
        if values is None:
            self._observed[histogram] = [seconds]
        else:
            values.append(seconds)

    def _count(self, counter: Counter, labels: _Key, amount: float = 1) -> None:
        resolved = self._labelled.get((counter, labels))
        if resolved is None:
            resolved = self._labelled[(counter, labels)] = counter.labels(*labels)
        self._tally[resolved] = self._tally.get(resolved, 0) + amount

    def _called(self, surface: str, call: CallAccount) -> None:
        tier = call.tier or _NONE
        queue = self._queues.get(tier)
        if queue is None:
            queue = self._queues[tier] = self.queue.labels(tier)
        self._observe(queue, call.queue_ms / 1000)
        if call.wasted and (tokens := call.tokens_in + call.tokens_out) > 0:
            self._count(self.wasted_tokens, (surface, tier), tokens)

    def _count_hop(self, hop: Hop, surface: str, ledger: Ledger) -> None:
        key = (hop.name, *map(hop.attributes.get, _COUNTED[hop.name]))
        counter = self._hops.get(key) or self._resolve(key)
        self._tally[counter] = self._tally.get(counter, 0) + 1
        if hop.attributes.get(names.HEDGE):
            self._count(self.hedges, (surface, _raced(hop, ledger)))
        elif hop.name == names.CACHE_SEMANTIC:
            self._decided(hop.attributes)

    def _decided(self, lookup: Mapping[str, Any]) -> None:
        """Count what decided on a semantic lookup's best neighbour, and how long the cross-encoder took for it."""
        if (stage := lookup.get(names.STAGE)) is not None:
            self._count(self.stages, (stage, lookup.get(names.CACHE_OUTCOME)))
        if (check_ms := lookup.get(names.CHECK_MS)) is not None:
            self._observe(self.checks, check_ms / 1000)

    def _spend(self, series: _Series, ledger: Ledger) -> None:
        tally = self._tally
        for counter, amount in (
            (series.tokens_in, ledger.tokens_in),
            (series.tokens_out, ledger.tokens_out),
            (series.cost, ledger.cost_usd),
            (series.wasted, ledger.wasted_usd),
        ):
            if amount > 0:  # prometheus-client raises for a negative amount, and a backend may report one
                tally[counter] = tally.get(counter, 0) + amount

    def _resolve(self, key: _Key) -> Counter:
        hop, *values = key
        labels = [_stable(value) for value in values]
        if hop == names.ATTEMPT:
            counter = self.attempts.labels(*labels)
        elif hop == names.CACHE_WRITE:
            counter = self.writes.labels(*labels)
        elif hop == names.CACHE_FOLLOW:
            counter = self.coalesced.labels(*labels)
        else:
            counter = self.lookups.labels(hop, *labels)
        self._hops[key] = counter
        return counter


class _Series:
    """Hold all series of one combination of surface, path, tier and status."""

    __slots__ = (
        "cost", "counterfactual", "duration", "overhead", "requests", "surface", "tokens_in", "tokens_out", "tpot",
        "ttft", "wasted",
    )  # fmt: skip

    def __init__(self, metrics: Metrics, surface: str, path: str, tier: str, status: int) -> None:
        surface, path, tier = surface or _NONE, path or _NONE, tier or _NONE
        self.requests = metrics.requests.labels(surface, path, tier, str(status))
        self.duration = metrics.duration.labels(surface, path)
        self.ttft = metrics.ttft.labels(surface, path)
        self.overhead = metrics.overhead.labels(path)
        self.tokens_in = metrics.tokens.labels(surface, tier, "in")
        self.tokens_out = metrics.tokens.labels(surface, tier, "out")
        self.cost = metrics.cost.labels(surface, tier)
        self.wasted = metrics.wasted.labels(surface)
        self.counterfactual = metrics.counterfactual.labels(surface)
        self.tpot = metrics.tpot.labels(surface, tier)
        self.surface = surface


def _observe_all(histogram: Histogram, values: list[float]) -> None:
    """Add many values at once: prometheus-client offers one at a time, with a dozen Python calls for each."""
    bounds, buckets = histogram._upper_bounds, histogram._buckets
    counts = Counts(map(partial(bisect_left, bounds), values))
    for index, count in counts.items():
        buckets[index].inc(count)
    histogram._sum.inc(sum(values))


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


def worker_died(pid: int) -> None:
    """Remove a dead worker's gauges from what the others render; its counters stay. Called by the parent process."""
    if METRICS_FOLDER in os.environ:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]
