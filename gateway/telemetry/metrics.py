"""What `/metrics` says, by prometheus-client, at a cost the hot path can bear.

One finished request updates everything by one call, `observe(trace, ledger)`. Counters are tallied in a plain dict
and handed to prometheus-client by `flush()`, which the telemetry's background task calls every few tens of
milliseconds and `render()` always: a dict update costs 0.1 us, a counter's `inc()` 0.4 us, 1 us with several workers.
Series are resolved once per combination of labels and kept, for `labels()` costs 0.9 us.

With several workers the server names PROMETHEUS_MULTIPROC_DIR before they start (or takes the one named), empties it,
and calls `worker_died` for each that ends; every worker writes its values to files there, and `render()` in any of them
answers for all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

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

from cache.store import StoreState
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

# Seconds. From a cache hit (1 ms) over a hosted model's first token (0.2-2 s) to a long batch answer (minutes).
_DURATION: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)
_TTFT: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.9, 1.5, 2.5, 5, 10, 30)
_OVERHEAD: Final = (0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1)

# The attributes that become labels of the hops that are counted one by one.
_COUNTED: Final = {
    names.CACHE_EXACT: (names.CACHE_OUTCOME, names.CACHE_REASON),
    names.CACHE_SEMANTIC: (names.CACHE_OUTCOME, names.CACHE_REASON),
    names.CACHE_WRITE: (names.CACHE_OUTCOME, names.CACHE_REASON),
    names.ATTEMPT: (names.TIER, names.BACKEND, names.OUTCOME),
}
_STORE_STATUSES: Final = ("ok", "degraded", "unconfigured")
_NONE: Final = "none"
METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder through which the workers share their metrics; without it there is one worker."""

_Key = tuple[str | None, ...]


class Metrics:
    """The metrics of this process, in their own registry. Made once; methods are for the event loop's thread."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._define()
        self._series: dict[tuple[str, str, str, int], _Series] = {}
        self._hops: dict[_Key, Counter] = {}
        self._tally: dict[Counter, float] = {}
        self._in_flight = 0
        self._store_state: Callable[[], StoreState] | None = None

    def _define(self) -> None:
        registry = self._registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tierline_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"tierline_{name}_seconds", text, labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, mode: str, *labels: str) -> Gauge:
            return Gauge(f"tierline_{name}", text, labels, registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]

        self.requests = counter("requests", "Requests answered.", "surface", "path", "tier", "status")
        self.duration = histogram("request_duration", "Request to last byte.", _DURATION, "surface", "path")
        self.ttft = histogram("ttft", "Request to first byte of content.", _TTFT, "surface", "path")
        self.overhead = histogram("overhead", "Our own time in a request.", _OVERHEAD, "path")
        self.attempts = counter("attempts", "Backend calls, by how they ended.", "tier", "backend", "outcome")
        self.lookups = counter("cache_lookups", "Cache lookups.", "hop", "outcome", "reason")
        self.writes = counter("cache_writes", "Cache writes.", "outcome", "reason")
        self.tokens = counter("tokens", "Tokens, by direction.", "surface", "tier", "direction")
        self.cost = counter("cost_usd", "Dollars spent, wasted ones included.", "surface", "tier")
        self.wasted = counter("wasted_usd", "Dollars spent on drafts nobody saw.", "surface")
        self.drops = counter("telemetry_dropped", "Traces not counted, not kept or not exported.", "reason")
        self.reloads = counter("policy_reload", "Policy reloads that took effect.")
        self.reload_failures = counter("policy_reload_failed", "Policy reloads refused; the last good policy serves.")
        self.in_flight = gauge("in_flight", "Requests being answered now.", "livesum")
        self.store = gauge("store_state", "1 for the state the store is in.", "livemax", "state")
        if METRICS_FOLDER not in os.environ:
            ProcessCollector(registry=registry)

    def observe(self, trace: Trace, ledger: Ledger) -> None:
        """Counts one finished request: its ledger, its attempts, its cache lookups and its cache write."""
        key = (ledger.surface, ledger.path, ledger.tier, ledger.status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(self, *key)
        tally = self._tally
        tally[series.requests] = tally.get(series.requests, 0) + 1
        series.duration.observe(ledger.total_ms / 1000)
        series.overhead.observe(ledger.overhead_ms / 1000)
        if ledger.ttft_ms is not None:
            series.ttft.observe(ledger.ttft_ms / 1000)
        if ledger.attempts:
            self._spend(series, ledger)
        for hop in trace.hops:
            labels = _COUNTED.get(hop.name)
            if labels is not None:
                hop_key = (hop.name, *map(hop.attributes.get, labels))
                counter = self._hops.get(hop_key) or self._resolve(hop_key)
                tally[counter] = tally.get(counter, 0) + 1

    def request_started(self) -> None:
        """A request has come in; `request_ended` must follow, however it ends."""
        self._in_flight += 1

    def request_ended(self) -> None:
        """The request is over: nothing more will be sent."""
        self._in_flight -= 1

    def policy_reloaded(self, ok: bool) -> None:
        """A policy file has changed; `ok` says whether it took effect or was refused."""
        (self.reloads if ok else self.reload_failures).inc()

    def telemetry_dropped(self, reason: str, count: int = 1) -> None:
        """`count` traces were lost, for a stable word of a reason."""
        self.drops.labels(reason).inc(count)

    def watch_store(self, state: Callable[[], StoreState]) -> None:
        """From now on the store gauge follows `state()`."""
        self._store_state = state

    def flush(self) -> None:
        """Hands what was tallied since the last time to prometheus-client."""
        tally, self._tally = self._tally, {}
        for series, amount in tally.items():
            series.inc(amount)
        self.in_flight.set(self._in_flight)
        if self._store_state is not None:
            now = self._store_state().status
            for status in _STORE_STATUSES:
                self.store.labels(status).set(status == now)

    def render(self) -> bytes:
        """The exposition text (see CONTENT_TYPE): of all workers when there are several, else of this process."""
        self.flush()
        if METRICS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)  # type: ignore[no-untyped-call]
        return generate_latest(everyone)

    def _spend(self, series: _Series, ledger: Ledger) -> None:
        tally = self._tally
        for counter, amount in (
            (series.tokens_in, ledger.tokens_in),
            (series.tokens_out, ledger.tokens_out),
            (series.cost, ledger.cost_usd),
            (series.wasted, ledger.wasted_usd),
        ):
            if amount > 0:  # prometheus-client refuses to take a counter down, and a backend may report anything
                tally[counter] = tally.get(counter, 0) + amount

    def _resolve(self, key: _Key) -> Counter:
        hop, *values = key
        # Behind a colon a reason tells what is different each time.
        labels = [(value or _NONE).partition(":")[0] for value in values]
        if hop == names.ATTEMPT:
            counter = self.attempts.labels(*labels)
        elif hop == names.CACHE_WRITE:
            counter = self.writes.labels(*labels)
        else:
            counter = self.lookups.labels(hop, *labels)
        self._hops[key] = counter
        return counter


class _Series:
    """All series that one combination of surface, path, tier and status needs."""

    __slots__ = ("cost", "duration", "overhead", "requests", "tokens_in", "tokens_out", "ttft", "wasted")

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


def worker_died(pid: int) -> None:
    """Takes a dead worker's gauges out of what the others render; its counters stay. For the supervisor."""
    if METRICS_FOLDER in os.environ:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]
