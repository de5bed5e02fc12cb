"""Write metrics of prometheus-client in Prometheus' text format, in slices between which other work can run.

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

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.utils import floatToGoString

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
