"""What a run found, beside what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.live import table
from tests.bench.measure import Figures


@dataclass(frozen=True, slots=True)
class Goal:
    """No more than `target`; `aim` is what we would be proud of."""

    target: float
    aim: float | None = None


GOALS: Mapping[tuple[str, str], Goal] = {
    ("bare", "cpu_us"): Goal(120, 93),
    ("exact", "cpu_us"): Goal(160, 110),
    ("full", "cpu_us"): Goal(450, 300),
    ("bare", "added_p50_c1_ms"): Goal(0.3, 0.15),
    ("bare", "added_p99_c1_ms"): Goal(0.6, 0.3),
    ("exact", "added_p50_c1_ms"): Goal(0.5, 0.25),
    ("exact", "added_p99_c1_ms"): Goal(1.0, 0.5),
    ("full", "added_p50_c1_ms"): Goal(0.8, 0.4),
    ("full", "added_p99_c1_ms"): Goal(1.6, 0.8),
    ("judged", "chunk_us"): Goal(70, 50),
    ("bare", "chunk_us"): Goal(45, 30),
    ("bare", "added_ttft_c1_ms"): Goal(0.4, 0.2),
    ("bare", "added_ttft_c16_ms"): Goal(0.4, 0.2),
    ("static", "start_s"): Goal(2.0),
    ("static", "rss_mb"): Goal(200),
    ("minilm", "rss_mb"): Goal(350),
}

ANCHORS: Mapping[str, float] = {"cpu_us": 77.0, "chunk_us": 40.0}
"""What the bare proxy cost on the machine on which the goals were set; `scaled` figures are as if it did here."""

_QUIET = 0.85
"""The share of its core that a saturated proxy gets on a machine that does nothing else."""

_NAMES = {
    "direct": "direct",
    "nginx": "nginx",
    "raw": "raw ASGI + aiohttp",
    "bare": "ours, bare",
    "exact": "ours, exact hit",
    "full": "ours, full path",
    "judged": "ours, judged",
    "static": "static embedding",
    "minilm": "MiniLM",
}
_WHAT = {
    "cpu_us": "CPU per request, us",
    "added_p50_c1_ms": "added at c = 1, p50, ms",
    "added_p99_c1_ms": "added at c = 1, p99, ms",
    "chunk_us": "CPU per chunk, us",
    "added_ttft_c1_ms": "added TTFT, c = 1, p50, ms",
    "added_ttft_c16_ms": "added TTFT, c = 16, p50, ms",
    "start_s": "command to first answer, s",
    "rss_mb": "idle memory of the worker, MB",
}


@dataclass(frozen=True, slots=True)
class Found:
    """Medians over the rounds, by subject and figure."""

    requests: dict[str, Figures]
    streams: dict[str, Figures]
    starts: dict[str, Figures]
    live: Sequence[table.Row] = ()
    """These are no medians: each is one run of a scenario."""

    def value(self, subject: str, figure: str) -> float | None:
        """One figure, wherever it is kept."""
        for group in (self.requests, self.streams, self.starts):
            if figure in group.get(subject, {}):
                return group[subject][figure]
        return None

    def scaled(self, subject: str, figure: str) -> float | None:
        """A figure of CPU time as it would be where the bare proxy costs what it did when the goals were set."""
        value, raw = self.value(subject, figure), self.value("raw", figure)
        return value * ANCHORS[figure] / raw if figure in ANCHORS and value is not None and raw else None


def as_json(found: Found) -> dict[str, object]:
    """The whole run, goals and ratios included, as one JSON object."""
    goals = [
        {
            "subject": subject,
            "figure": figure,
            "value": value,
            "scaled": found.scaled(subject, figure),
            "target": goal.target,
            "aim": goal.aim,
        }
        for (subject, figure), goal in GOALS.items()
        if (value := found.value(subject, figure)) is not None
    ]
    ratios = {name: _ratio(found.requests, name, "cpu_us") for name in found.requests if name != "direct"}
    return {
        "requests": found.requests,
        "streams": found.streams,
        "starts": found.starts,
        "cpu_to_raw": ratios,
        "goals": goals,
        "live": table.as_json(found.live),
    }


def as_text(found: Found) -> str:
    """The whole run, for people."""
    live = table.as_text(found.live) if found.live else ""
    parts = [_requests(found), _streams(found), _goals(found), live]
    return "\n\n".join(part for part in parts if part)


def _requests(found: Found) -> str:
    if not found.requests:
        return ""
    lines = [
        "Requests (600-byte body). Latencies are added to direct's, in ms; an exact hit's are whole.",
        f"{'':20}{'c=16':>9}{'CPU':>8}{'x raw':>7}{'core':>6}"
        f"{'c=1':>14}{'c=16':>14}{'c=64':>14}{'half load':>14}{'failed':>8}",
        f"{'':20}{'req/s':>9}{'us':>8}{'CPU':>7}{'used':>6}" + f"{'p50    p99':>14}" * 4,
    ]
    for name, figures in found.requests.items():
        row = f"{_NAMES.get(name, name):20}{figures['per_second']:>9,.0f}{figures['cpu_us']:>8.1f}"
        row += f"{_ratio(found.requests, name, 'cpu_us'):>7.2f}" if name != "direct" else f"{'':7}"
        row += f"{figures['core']:>6.0%}"
        for at in ("c1", "c16", "c64", "half"):
            p50, p99 = figures.get(f"added_p50_{at}_ms"), figures.get(f"added_p99_{at}_ms")
            row += f"{p50:>7.2f}{p99:>7.2f}" if p50 is not None else f"{'':14}"
        lines.append(row + f"{figures['failed']:>8.0f}")
    if found.requests["raw"]["core"] < _QUIET:
        lines.append(
            "The bare proxy did not get its core to itself: the machine was busy, and only ratios mean anything."
        )
    return "\n".join(lines)


def _streams(found: Found) -> str:
    if not found.streams:
        return ""
    lines = [
        "Streams (a chunk every 8 ms). TTFT and jitter (p99 of |gap - 8 ms|) are added to direct's, in ms.",
        f"{'':20}{'TTFT c=1':>10}{'TTFT c=16':>11}{'CPU/chunk us':>14}{'x raw':>7}{'jitter p99':>12}{'failed':>8}",
    ]
    for name, figures in found.streams.items():
        row = f"{_NAMES[name]:20}"
        for key, width in (("added_ttft_c1_ms", 10), ("added_ttft_c16_ms", 11)):
            row += f"{figures[key]:>{width}.2f}" if key in figures else f"{'':{width}}"
        row += f"{figures['chunk_us']:>14.1f}"
        row += f"{_ratio(found.streams, name, 'chunk_us'):>7.2f}" if name != "direct" else f"{'':7}"
        row += f"{figures['added_jitter_p99_ms']:>12.2f}" if "added_jitter_p99_ms" in figures else f"{'':12}"
        lines.append(row + f"{figures['failed']:>8.0f}")
    return "\n".join(lines)


def _goals(found: Found) -> str:
    lines = [f"{'Goals':58}{'found':>9}{'scaled':>9}{'target':>9}{'aim':>8}"]
    for (subject, figure), goal in GOALS.items():
        value = found.value(subject, figure)
        if value is None:
            continue
        state = "aim met" if goal.aim is not None and value <= goal.aim else "met" if value <= goal.target else "OVER"
        aim = f"{goal.aim:g}" if goal.aim is not None else ""
        scaled = found.scaled(subject, figure)
        row = f"{_NAMES[subject] + ': ' + _WHAT[figure]:58}{value:>9.2f}"
        row += f"{scaled:>9.2f}" if scaled is not None else f"{'':9}"
        lines.append(f"{row}{goal.target:>9g}{aim:>8}  {state}")
    return "\n".join(lines) if len(lines) > 1 else ""


def _ratio(group: dict[str, Figures], name: str, figure: str) -> float:
    raw = group.get("raw", {}).get(figure)
    return group[name][figure] / raw if raw else float("nan")
