"""Define every metric: its name, what it means, its labels, and the buckets of histograms.

Labels hold names from the config and the policies, and words of fixed sets: no tenant, no request id, no text of a
client.

Write metrics of prometheus-client in Prometheus' text format, in slices between which other work can run.

The worker that answers `/metrics` serves requests meanwhile. prometheus-client's own writer takes about 15 us a sample
and writes all of them at once, so that every stream would stand still for a tenth of a second at some thousand samples.
These two take about 1 us a sample, because the text before each value is made once and kept:

    OwnText      the metrics of this process, from prometheus-client's objects
    SharedText   those of all workers, from the files in which prometheus-client keeps them
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.utils import floatToGoString

from gateway.telemetry.metrics import FIRST_BYTE_BUCKETS, Joined

Metric = Counter | Gauge | Histogram
_Value = tuple[str, float, float, int]
"""Key, value, time and position of a value in a file."""
_SLICE: Final = 200
"""Samples read or written before other work may run: about half a millisecond."""
_FEW: Final = 40
"""Samples seen for the first time before other work may run."""
_JOINS: Final[Mapping[str, Callable[[float, float], float]]] = {"livemax": max, "livemin": min}
"""How the values of a gauge in several processes become one, where they are not added."""
_FILE: Final = re.compile(r"(counter|histogram|gauge)_(?:([a-z]+)_)?\d+\.db")
"""Name of a file of one process: the kind of its metrics, and for gauges how those of several processes are joined."""


def name_of(metric: Metric) -> str:
    """Return the name that a metric has in the text, which ends with `_total` for a counter."""
    return f"{metric._name}_total" if isinstance(metric, Counter) else metric._name


@dataclass(slots=True)
class _Lines:
    """One line of text, or all lines of one histogram: what stands before the values."""

    before: list[str]
    is_histogram: bool = False
    keys: list[str] = field(default_factory=list)
    """Keys of the values in the workers' files, for a histogram its buckets in order and then its sum."""

    @classmethod
    def of(cls, name: str, labels: Mapping[str, str], bounds: Sequence[str] | None = None) -> _Lines:
        """Return the series of a name with these labels; `bounds` are a histogram's upper bounds as text."""
        if bounds is None:
            return cls([_before(name, labels)])
        buckets = [_before(f"{name}_bucket", {**labels, "le": bound}) for bound in bounds]
        return cls([*buckets, _before(f"{name}_sum", labels), _before(f"{name}_count", labels)], is_histogram=True)

    def text(self, values: list[float]) -> str:
        """Return the lines with these values, in the order of `keys`."""
        if self.is_histogram:
            counts = list(accumulate(values[:-1]))
            values = [*counts, values[-1], counts[-1] if counts else 0.0]
        return "".join([f"{before}{value!r}\n" for before, value in zip(self.before, values, strict=True)])


class OwnText:
    """Write these metrics of this process."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        self._series: dict[Metric, _Lines] = {}

    def slices(self) -> Iterator[str]:
        """Return the text in parts."""
        for metric in self._metrics:
            parts, samples = [_header(name_of(metric), metric._type, metric._documentation)], 0
            children: Iterable[Any] = list(metric._metrics.values()) if metric._labelnames else [metric]
            for child in children:
                series = self._series.get(child)
                if series is None:
                    series = self._series[child] = self._made(metric, child)
                parts.append(series.text(_values(child)))
                samples += len(series.before)
                if samples >= _SLICE:
                    yield "".join(parts)
                    parts, samples = [], 0
            yield "".join(parts)

    def _made(self, metric: Metric, child: Any) -> _Lines:
        labels = dict(zip(metric._labelnames, child._labelvalues, strict=True)) if metric._labelnames else {}
        bounds = [floatToGoString(one) for one in child._upper_bounds] if isinstance(child, Histogram) else None  # type: ignore[no-untyped-call]
        return _Lines.of(name_of(metric), labels, bounds)


@dataclass(slots=True)
class _Group:
    """The values in the workers' files that make one series."""

    labels: dict[str, str]
    keys: list[tuple[float, str, str]]
    """Upper bound as number and as text, and the key; without a bound, infinity and an empty text."""
    series: _Lines | None = None
    """None while some of its values are not there yet."""


class SharedText:
    """Write the metrics of all processes that keep theirs in one folder, dead ones' included."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[str] = set()
        self._families: dict[str, tuple[str, dict[str, _Group]]] = {}
        """Header and series of each metric by its name; the series by their labels as JSON."""

    def slices(self) -> Iterator[str]:
        """Return the text in parts; the first ones are empty, while the files are read."""
        values: dict[str, float] = {}
        for file in sorted(self._folder.glob("*.db")):
            for _ in self._read(file, values):
                yield ""
        for header, groups in list(self._families.values()):
            parts, samples = [header], 0
            for group in list(groups.values()):
                series = group.series
                if series is None or series.keys[-1] not in values:
                    continue  # not complete yet, or the gauge of a process that is gone
                parts.append(series.text([values.get(key, 0.0) for key in series.keys]))
                samples += len(series.keys)
                if samples >= _SLICE:
                    yield "".join(parts)
                    parts, samples = [], 0
            yield "".join(parts)

    def _read(self, file: Path, values: dict[str, float]) -> Iterator[None]:
        """Add a file's values to `values`, and pause now and then."""
        named = _FILE.fullmatch(file.name)
        if named is None:
            return
        kind, join = named[1], _JOINS.get(named[2] or "", _sum)
        try:
            read: Iterator[_Value] = MmapedDict.read_all_values_from_file(file)  # type: ignore[no-untyped-call]
            fresh: list[tuple[str, str]] = []
            for number, (key, value, _, _) in enumerate(read):
                values[key] = join(values[key], value) if key in values else value
                if key not in self._known:
                    fresh.append((key, kind))
                if number % _SLICE == _SLICE - 1:
                    yield
        except FileNotFoundError:  # the gauges of a worker that has just died
            return
        for at in range(0, len(fresh), _FEW):
            self._add(fresh[at : at + _FEW])
            yield

    def _add(self, fresh: Sequence[tuple[str, str]]) -> None:
        """Make series of keys that were not seen before, each with the kind of its metric."""
        changed: dict[int, tuple[str, str, _Group]] = {}
        for key, kind in fresh:
            if key in self._known:
                continue
            self._known.add(key)
            metric, sample, labels, about = json.loads(key)
            bound = labels.pop("le", "") if kind == "histogram" else ""
            name = sample if kind == "counter" else metric
            _, groups = self._families.setdefault(name, (_header(name, kind, about), {}))
            group = groups.setdefault(json.dumps(labels), _Group(labels, []))
            group.keys.append((float(bound or "inf"), bound, key))
            changed[id(group)] = name, kind, group
        for name, kind, group in changed.values():
            group.series = _Lines.of(name, group.labels) if kind != "histogram" else _histogram(name, group)
            if group.series is not None:
                group.series.keys = [key for _, _, key in _in_order(group)]


def _in_order(group: _Group) -> list[tuple[float, str, str]]:
    """Return a histogram's buckets by their bounds, and then its sum, which has none."""
    return sorted(group.keys, key=lambda key: (not key[1], key[0]))


def _histogram(name: str, group: _Group) -> _Lines | None:
    """Return a histogram's series; None if its sum or its last bucket is not there."""
    *buckets, last = [bound for _, bound, _ in _in_order(group)]
    return None if last or buckets[-1:] != ["+Inf"] else _Lines.of(name, group.labels, buckets)


def _sum(value: float, other: float) -> float:
    return value + other


def _values(child: Any) -> list[float]:
    if isinstance(child, Histogram):
        return [*[bucket.get() for bucket in child._buckets], child._sum.get()]
    return [child._value.get()]


def _header(name: str, kind: str, about: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n"


def _before(name: str, labels: Mapping[str, str]) -> str:
    """Return the text of a sample before its value."""
    if not labels:
        return f"{name} "
    written = ",".join(f'{label}="{_escaped(labels[label])}"' for label in sorted(labels))
    return f"{name}{{{written}}} "


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# Upper bounds of histogram buckets in seconds. Those of TTFT and of the whole request hold every objective of the
# shipped policies, so that the share of requests within one can be read exactly.
TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 0.9, 1, 1.5, 2.5, 4, 7, 15, 30,
)  # fmt: skip
DURATION_BUCKETS: Final = (
    0.001, 0.005, 0.025, 0.1, 0.15, 0.2, 0.25, 0.5, 1, 1.5, 2.5, 4, 6, 8, 10, 12, 20, 30, 45, 60, 80, 120, 140, 180,
    300, 400, 600,
)  # fmt: skip
_QUEUE: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)
_CHECK: Final = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5)
GAP_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
TPOT_BUCKETS: Final = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.038, 0.039, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
OVERHEAD_BUCKETS: Final = (
    0.00002, 0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25,
)  # fmt: skip

LENGTHS: Final = (256, 1024, 4096, 16384)
LENGTH_NAMES: Final = ("0-255", "256-1023", "1024-4095", "4096-16383", "16384+")
"""Values of the label `prompt`: the prompt's length in tokens. `unknown` where nothing counted them."""

MOST: Final[Mapping[type, int]] = {Histogram: 200, Counter: 1000, Gauge: 1000}
"""Most series of one metric in one process. A histogram's has some twenty lines of text."""
OTHER: Final = "other"
"""The value of every label of the series that counts what has no series of its own."""

CONFIGURED: Final = "Worker processes that should serve."
LOST: Final = "Worker processes that ended although nobody had asked them to."
_REQUEST: Final = ("surface", "path", "tier", "backend", "prompt")
_BACKEND: Final = ("tier", "backend")
_COMPARED: Final = ("surface", "group")


class MetricSet:
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.defined: list[Metric] = []
        """All metrics, in the order of the text."""
        self._define_requests()
        self._define_objectives()
        self._define_money()
        self._define_backends()
        self._define_caches()
        self._define_gateway()

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Define a counter."""
        self.defined.append(made := Counter(f"tierline_{name}", text, labels, registry=self._registry))
        return made

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        made = Histogram(f"tierline_{name}_seconds", text, labels, buckets=buckets, registry=self._registry)
        self.defined.append(made)
        return made

    def gauge(self, name: str, text: str, joined: Joined, *labels: str) -> Gauge:
        """Define a gauge. `joined`: how the values of several workers become one."""
        made = Gauge(f"tierline_{name}", text, labels, registry=self._registry, multiprocess_mode=joined)
        self.defined.append(made)
        return made

    def _define_requests(self) -> None:
        """Define what is counted and timed of each request."""
        self.requests = self.counter("requests", "Requests answered.", "surface", "path", "tier", "status")
        self.duration = self._histogram(
            "request_duration", "Time from request to last byte.", DURATION_BUCKETS, *_REQUEST
        )
        self.ttft = self._histogram("ttft", "Time from request to first byte of content.", TTFT_BUCKETS, *_REQUEST)
        self.tpot = self._histogram("tpot", "Time per output token of a stream, as sent.", TPOT_BUCKETS, *_REQUEST)
        self.gap = self._histogram(
            "gap", "Longest time between two chunks of a stream, as sent.", GAP_BUCKETS, *_REQUEST
        )
        self.overhead = self._histogram(
            "overhead", "The gateway's own time in a request.", OVERHEAD_BUCKETS, "surface", "path", "prompt"
        )
        self.in_flight = self.gauge("in_flight", "Requests being answered now.", "livesum")
        self.steered = self.counter(
            "steered",
            "Requests that a nearly spent budget steered: capped, with eased thresholds alone, or held back.",
            "surface",
            "outcome",
        )
        self.shed = self.counter("shed", "Requests rejected because of overload.", "surface", "reason")

    def _define_objectives(self) -> None:
        """Define what is held against objectives. A whole and its part have equal labels."""
        self.goodput_requests = self.counter("goodput_requests", "Requests checked for goodput.", *_REQUEST)
        self.goodput_good = self.counter(
            "goodput_good", "Requests within all their limits, neither degraded nor structurally invalid.", *_REQUEST
        )
        self.not_good = self.counter(
            "not_good",
            "Requests that were not good: failed, late or poor (degraded, invalid), and refused or left by the client.",
            "surface",
            "outcome",
        )
        self.slo_requests = self.counter(
            "slo_requests", "Requests checked against an objective.", "surface", "objective"
        )
        self.slo_misses = self.counter("slo_misses", "Requests that missed an objective.", "surface", "objective")
        self.slo_limit = self.gauge("slo_limit_seconds", "Limit of an objective.", "livemax", "surface", "objective")
        self.slo_target = self.gauge(
            "slo_target_ratio", "Share of requests that should meet an objective.", "livemax", "surface", "objective"
        )

    def _define_money(self) -> None:
        """Define tokens and dollars, and the sums from which a saving and its interval are computed."""
        self.tokens = self.counter(
            "tokens", "Tokens of the calls of each backend, by direction.", "surface", *_BACKEND, "direction"
        )
        self.wasted_tokens = self.counter(
            "wasted_tokens", "Tokens of calls whose text was not served.", "surface", "tier"
        )
        self.cost = self.counter(
            "cost_usd", "Cost of each backend's calls in US dollars, wasted or not.", "surface", *_BACKEND
        )
        self.wasted = self.counter("wasted_usd", "Cost in US dollars of calls whose text was not served.", "surface")
        self.counterfactual = self.counter(
            "counterfactual_usd", "Cost in US dollars of the same answers from the strongest tier.", "surface"
        )
        self.prompt_caches = self.counter(
            "prompt_cache_usd",
            "US dollars by which calls cost less (saved) or more (lost) than without providers' prompt caches.",
            "surface",
            "outcome",
        )
        self.unpriced = self.counter(
            "unpriced_calls", "Calls of backends whose price nobody states.", "tier", "backend"
        )
        self.saving = (
            self.counter(
                "saving_requests", "Requests whose cost can be compared with the strongest tier's.", *_COMPARED
            ),
            self.counter("saving_cost_usd", "Their cost in US dollars.", *_COMPARED),
            self.counter("saving_counterfactual_usd", "Cost of their answers from the strongest tier.", *_COMPARED),
            self.counter("saving_cost_usd_squared", "Sum of the squares of their costs.", *_COMPARED),
            self.counter("saving_counterfactual_usd_squared", "Sum of the squares of the others.", *_COMPARED),
            self.counter("saving_product_usd_squared", "Sum of the products of both costs.", *_COMPARED),
        )

    def _define_backends(self) -> None:
        """Define calls, judgements, hedges, queues and the state of backends."""
        self.attempts = self.counter("attempts", "Backend calls.", "surface", "tier", "backend", "outcome")
        self.rejected = self.counter(
            "rejected_answers", "Answers that the judge rejected.", "surface", "tier", "reason"
        )
        self.hedges = self.counter("hedges", "Hedges: second attempts beside a slow first one.", "surface", "outcome")
        self.queue = self._histogram("queue", "Wait in a backend's queue.", _QUEUE, "surface", *_BACKEND)
        self.warmings = self.counter("warmings", "Requests that keep a backend warm.", "backend", "outcome")
        self.retirement = self.gauge(
            "backend_retires_timestamp_seconds",
            "When the provider switches the model off, in Unix seconds, where that is announced.",
            "livemax",
            "backend",
        )
        self.refusing = self.gauge(
            "backend_refuses",
            "1 while a backend refuses our key or account, or has not its model.",
            "livemax",
            "backend",
        )
        self.headroom = self.gauge(
            "backend_headroom_ratio",
            "Part of a rate limit that a backend's replies leave, 0 to 1; no series where it says nothing.",
            "livemin",
            *_BACKEND,
            "unit",
        )
        self.rate_limited = self.counter(
            "rate_limited", "Calls refused for a rate limit, and tiers skipped for one.", "surface", "tier", "outcome"
        )
        self.rate_limited_time = self.counter(
            "rate_limited_seconds", "Time that calls took which were refused for a rate limit.", "surface", "tier"
        )
        self.open = self.gauge(
            "backend_open", "1 while a backend is not called: its breaker is open.", "livemax", *_BACKEND
        )
        self.calls_in_flight = self.gauge("backend_in_flight", "Calls of a backend under way.", "livesum", *_BACKEND)
        self.queued = self.gauge("backend_queued", "Requests in a backend's queue.", "livesum", *_BACKEND)
        self.capacity = self.gauge("backend_capacity", "Calls that may be under way at once.", "livesum", *_BACKEND)

    def _define_caches(self) -> None:
        """Define lookups, writes, and what decided on neighbours."""
        self.lookups = self.counter("cache_lookups", "Cache lookups.", "surface", "hop", "outcome", "reason")
        self.coalesced = self.counter(
            "coalesced", "Requests that shared the answer of an equal one.", "surface", "outcome"
        )
        self.stages = self.counter(
            "cache_decisions", "What decided on the best neighbour.", "surface", "stage", "outcome"
        )
        self.checks = self._histogram("cache_check", "Wait for the cross-encoder's scores.", _CHECK)
        self.writes = self.counter("cache_writes", "Cache writes.", "surface", "outcome", "reason")
        self.spent = self.counter(
            "learn_usd", "Cost in US dollars of comparisons and summaries; in no client's ledger.", "surface", "part"
        )

    def _define_gateway(self) -> None:
        """Define the state of the workers themselves, their policies and their telemetry."""
        self.reloads = self.counter("policy_reloads", "Changes of policies, applied or refused.", "outcome")
        self.refused = self.gauge(
            "policy_refused", "1 while something newer than the policies in force is refused.", "livemax"
        )
        self.drift = self.gauge("policy_drift", "Policy files that differ from what is in force.", "livemax")
        self.fingerprint_lowest = self.gauge(
            "policy_fingerprint_lowest",
            "Number made of the policy in force; the workers' lowest.",
            "livemin",
            "surface",
        )
        self.fingerprint_highest = self.gauge(
            "policy_fingerprint_highest", "The workers' highest.", "livemax", "surface"
        )
        self.drops = self.counter("telemetry_dropped", "Traces not counted, not stored or not exported.", "reason")
        self.lag = self.gauge(
            "loop_lag_seconds", "Delay of the event loop: least of its last few measurements.", "livemax"
        )
        self.first_byte = self._histogram(
            "first_byte",
            "Time from a request's arrival at this system, read or not, to the first byte of its reply.",
            FIRST_BYTE_BUCKETS,
            "connection",
        )
        self.accept_queue = self.gauge(
            "accept_queue", "Connections that wait to be accepted, at the last measurement.", "livemax"
        )
        self.memory = self.gauge("memory_ratio", "Share of the process's permitted memory in use, 0 to 1.", "livemax")
        self.store = self.gauge("store_state", "1 for the state that the store is in.", "livemax", "state")
        self.evicted = self.gauge("store_evicted_keys", "Keys that the store has evicted since it started.", "livemax")
        self.workers = self.gauge("workers", "Worker processes that serve.", "livesum")
        self.workers_configured = self.gauge("workers_configured", CONFIGURED, "livemax")
        self.workers_lost = self.counter("workers_lost", LOST)
        self.build = self.gauge("build_info", "1, with the version as a label.", "livemax", "version")
