"""What a run found, beside what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.live import table
from tests.bench.measure import Figures


@dataclass(frozen=True, slots=True)
class Goal:
    """What one figure of one subject may be at most: `target`; `aim` is what we would be proud of."""

    what: str
    subject: str
    figure: str
    target: float
    aim: float | None = None


GOALS = (
    Goal("bare: CPU", "bare", "x_raw_cpu_us", 2.0, 1.2),
    Goal("exact hit: CPU", "exact", "x_raw_cpu_us", 1.25, 1.0),
    Goal("semantic hit: CPU", "semantic", "x_raw_cpu_us", 3.5, 2.5),
    Goal("full path: CPU", "full", "x_raw_cpu_us", 5.5, 4.0),
    Goal("stream chunk, committed: CPU", "bare", "x_raw_chunk_us", 1.3, 1.0),
    Goal("stream chunk, judged: CPU", "judged", "x_raw_chunk_us", 1.6, 1.3),
    Goal("added TTFT, c = 16", "bare", "x_raw_added_ttft_c16_ms", 1.5, 1.2),
    Goal("p99 added at c = 1, bare, ms", "bare", "added_p99_c1_ms", 1.45, 0.73),
    Goal("p99 added at c = 1, full path, ms", "full", "added_p99_c1_ms", 3.2, 1.6),
    Goal("start to the first reply, s", "static", "start_s", 1.0),
    Goal("start to the first reply, s of CPU", "static", "cpu_s", 1.0),
    Goal("idle memory of the gateway, RSS, MB", "static", "rss_mb", 120),
)
"""Figures named `x_raw_` are ratios to the raw proxy in the same round. Those in ms were set on one slow machine."""

_ELSEWHERE = (
    ("python -m tests.bench.many", "idle CPU with 1,000 surfaces, the cost of 1,000 tenants"),
    ("python -m tests.bench.bodies", "how long one large body holds the loop"),
    ("python -m tests.bench.modules", "modules that a request passes, the longest import chain, serving lines"),
    ("make budgets", "Python calls, tasks, timers and store round trips of every path"),
    ("make bench-peers", "LiteLLM, Portkey and TensorZero in the same rounds"),
)

_QUIET = 0.85
"""The share of its core that a saturated proxy gets on a machine that does nothing else."""

NAMES = {
    "direct": "direct",
    "nginx": "nginx",
    "raw": "raw ASGI + aiohttp",
    "bare": "ours, bare",
    "exact": "ours, exact hit",
    "semantic": "ours, semantic hit",
    "full": "ours, full path",
    "judged": "ours, judged",
    "static": "static embedding",
    "fast": "no cross-encoder",
    "minilm": "MiniLM",
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

    def all_met(self) -> bool:
        """Return whether every goal that was measured is met."""
        values = [(self.value(goal.subject, goal.figure), goal.target) for goal in GOALS]
        return all(value is None or value <= target for value, target in values)


def as_json(found: Found) -> dict[str, object]:
    """The whole run, goals and ratios included, as one JSON object."""
    goals = [
        {
            "what": goal.what,
            "subject": goal.subject,
            "figure": goal.figure,
            "value": value,
            "nginx": found.value("nginx", goal.figure),
            "raw": found.value("raw", goal.figure),
            "target": goal.target,
            "aim": goal.aim,
            "met": value <= goal.target,
        }
        for goal in GOALS
        if (value := found.value(goal.subject, goal.figure)) is not None
    ]
    ratios = {
        name: figures["x_raw_cpu_us"]
        for name, figures in found.requests.items()
        if name != "direct" and "x_raw_cpu_us" in figures
    }
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
    parts = [_requests(found), _streams(found), _starts(found), _goals(found), live]
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
        row = f"{NAMES.get(name, name):20}{figures['per_second']:>9,.0f}{figures['cpu_us']:>8.1f}"
        row += _ratio(figures, "x_raw_cpu_us") if name != "direct" else f"{'':7}"
        row += f"{figures['core']:>6.0%}"
        for at in ("c1", "c16", "c64", "half"):
            p50, p99 = figures.get(f"added_p50_{at}_ms"), figures.get(f"added_p99_{at}_ms")
            row += f"{p50:>7.2f}{p99:>7.2f}" if p50 is not None else f"{'':14}"
        lines.append(row + f"{figures['failed']:>8.0f}")
    if strayed := found.requests.get("semantic", {}).get("strayed"):
        lines.append(
            f"In a round {strayed:.0f} requests for a semantic hit got none: a busy machine's lookups end early."
        )
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
        row = f"{NAMES[name]:20}"
        for key, width in (("added_ttft_c1_ms", 10), ("added_ttft_c16_ms", 11)):
            row += f"{figures[key]:>{width}.2f}" if key in figures else f"{'':{width}}"
        row += f"{figures['chunk_us']:>14.1f}"
        row += _ratio(figures, "x_raw_chunk_us") if name != "direct" else f"{'':7}"
        row += f"{figures['added_jitter_p99_ms']:>12.2f}" if "added_jitter_p99_ms" in figures else f"{'':12}"
        lines.append(row + f"{figures['failed']:>8.0f}")
    return "\n".join(lines)


def _starts(found: Found) -> str:
    if not found.starts:
        return ""
    lines = [
        "Starts: from `tierline serve` to the first 200, median and least; then the idle gateway's memory.",
        f"{'':20}{'clock s':>9}{'least':>7}{'CPU s':>8}{'least':>7}{'RSS MB':>9}{'PSS MB':>8}{'USS MB':>8}",
    ]
    for name, figures in found.starts.items():
        row = f"{NAMES[name]:20}{figures['start_s']:>9.2f}{figures['least_start_s']:>7.2f}{figures['cpu_s']:>8.2f}"
        row += f"{figures['least_cpu_s']:>7.2f}{figures['rss_mb']:>9.0f}{figures['pss_mb']:>8.0f}"
        lines.append(row + f"{figures['uss_mb']:>8.0f}")
    return "\n".join(lines)


def _goals(found: Found) -> str:
    head = "The path's cost: CPU and TTFT as x raw ASGI + aiohttp in the same round, median of the rounds"
    lines = [head, f"{'':36}{'ours':>9}{'nginx':>9}{'raw':>9}{'target':>9}{'aim':>8}"]
    for goal in GOALS:
        value = found.value(goal.subject, goal.figure)
        if value is None:
            continue
        state = "aim met" if goal.aim is not None and value <= goal.aim else "met" if value <= goal.target else "OVER"
        cells = (value, found.value("nginx", goal.figure), found.value("raw", goal.figure))
        row = f"{goal.what:36}" + "".join(f"{'':9}" if cell is None else f"{cell:>9.2f}" for cell in cells)
        aim = f"{goal.aim:g}" if goal.aim is not None else ""
        lines.append(f"{row}{goal.target:>9g}{aim:>8}  {state}")
    if len(lines) == 2:
        return ""
    return "\n".join([*lines, "Measured elsewhere:", *(f"  {command:32}{what}" for command, what in _ELSEWHERE)])


def _ratio(figures: Figures, figure: str) -> str:
    return f"{figures[figure]:>7.2f}" if figure in figures else f"{'':7}"
