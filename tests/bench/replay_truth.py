"""Hold replay against the truth: a scripted world in which the other policy is run live as well.

    python -m tests.bench.replay_truth [--runs 200] [--requests 20000] [--seed 0]

Each run draws a world, serves all of its requests by one policy, writes the ledger's files, and replays them by
another policy: with another threshold, another share of easy requests, or other rules of the cache, in turn. The
truth is that policy served live with the same requests and the same models. Printed, for each figure: the mean and
the 95th percentile of the error (shares in points, costs relative to the truth), and the share of runs whose 95%
interval holds the truth, with the interval of that share. Of quality it is the change, from clients' ratings of every
tenth answer, and the runs in which replay says that it is not known are counted. Ctrl-C ends the runs and prints
those that are done.
"""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.parts.lab.replay.figures import FigureChange
from gateway.parts.lab.replay.run import Replayed, replay
from gateway.parts.ledger.columns import Row
from gateway.parts.ledger.query import connect
from gateway.parts.measures.intervals import wilson
from tests.bench.command import bench_parser
from tests.support.ledger_files import write_ledger
from tests.support.scripted_world import World, policy

CANDIDATES: Final[Sequence[Mapping[str, Any]]] = (
    {"confidence": 0.75},
    {"confidence": 0.5},
    {"easiest": 30},
    {"easiest": 25, "confidence": 0.7},
    {"semantic": False},
    {"ttl": "5m", "semantic": False, "confidence": 0.7},
)
FIGURES: Final = ("escalated", "hits", "cost", "goodput", "quality")


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what was replayed, and the truth of each figure."""

    replayed: Replayed
    truth: Mapping[str, float]

    def change(self, name: str) -> FigureChange | None:
        """Return what replay says of a figure; None if it is not known, as quality may be."""
        if name != "quality":
            return self.replayed.figures[name]
        said = self.replayed.quality
        return None if said["difference"] is None else FigureChange(0.0, said["difference"], *said["interval_95"])

    def error(self, name: str) -> float:
        """Return the error of a figure: in points for shares, relative for the cost."""
        change = self.change(name)
        error = math.nan if change is None else change.after - self.truth[name]
        return error / self.truth[name] if name == "cost" else error

    def covered(self, name: str) -> bool:
        """Return whether the interval holds the truth."""
        change = self.change(name)
        if change is None:
            return False
        rounding = 1e-6 * max(abs(self.truth[name]), 1e-9)
        return change.low - rounding <= self.truth[name] - change.before <= change.high + rounding


def run(number: int, requests: int, seed: int = 0) -> Run:
    """Make one run."""
    world = World(requests, seed * 1_000_003 + number)
    base, candidate = policy(), policy(**CANDIDATES[number % len(CANDIDATES)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        served = list(world.live(base))
        write_ledger(folder, served, [world.basis(base)], world.ratings(served))
        with connect(folder, threads=1) as database:
            replayed = replay(database, candidate, verify=100, seed=number)
    rows = list(world.live(candidate))
    truth = truth_of(rows, candidate.slo.ttft.p99 or 0.0)
    return Run(replayed, truth | {"quality": quality_of(world, rows) - quality_of(world, served)})


def quality_of(world: World, rows: Sequence[Row]) -> float:
    """Return the share of the answers that are right, as is to be expected."""
    return float(np.nanmean([world.p_right_of(row, at) for at, row in enumerate(rows)]))


def truth_of(rows: Sequence[Row], ttft_s: float) -> dict[str, float]:
    """Return the figures of rows that were really served."""
    n = len(rows)
    return {
        "escalated": sum(row["path"] == "escalated" for row in rows) / n,
        "hits": sum(row["path"].startswith("cache-") for row in rows) / n,
        "cost": sum(row["cost_usd"] for row in rows) / n * 1000,
        "goodput": sum(
            row["status"] == 200
            and row["path"] != "degraded"
            and row["total_ms"] <= 20_000
            and (not row["stream"] or row["ttft_ms"] <= ttft_s * 1000)
            for row in rows
        )
        / n,
    }


def main() -> int:
    """Make all runs and print the errors; 1 if a mean error reaches 1%."""
    parser = bench_parser("replay_truth", __doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    runs: list[Run] = []
    with contextlib.suppress(KeyboardInterrupt):
        for number in range(args.runs):
            runs.append(run(number, args.requests, args.seed))
            print(f"\r{number + 1} of {args.runs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{len(runs)} runs of {args.requests} requests, {len(CANDIDATES)} candidates")
    bad = False
    for name in FIGURES:
        errors = np.array([error for one in runs if not math.isnan(error := one.error(name))])
        if not len(errors):
            continue
        estimated = [one for one in runs if (change := one.change(name)) is not None and change.low < change.high]
        covered = sum(one.covered(name) for one in estimated)
        text = f"{name:10} mean error {errors.mean():+.3%}, 95% of errors within {np.quantile(abs(errors), 0.95):.3%}"
        text += f", largest {abs(errors).max():.3%}"
        if estimated:
            low, high = wilson(covered / len(estimated), len(estimated))
            text += f"; intervals hold the truth in {covered} of {len(estimated)} runs"
            text += f" ({covered / len(estimated):.1%}; {low:.1%} to {high:.1%})"
        if len(errors) < len(runs):
            text += f"; not known in {len(runs) - len(errors)} runs"
        print(text)
        bad = bad or bool(abs(errors.mean()) >= 0.01)
    for number, changes in enumerate(CANDIDATES):
        own = [one for at, one in enumerate(runs) if at % len(CANDIDATES) == number]
        if own:
            shown = [
                f"{name} {np.mean([one.error(name) for one in known]):+.3%} / "
                f"{np.mean([one.covered(name) for one in known]):.0%}"
                for name in FIGURES
                if (known := [one for one in own if one.change(name) is not None])
            ]
            evidence = np.mean([one.replayed.no_evidence / one.replayed.requests for one in own])
            print(f"  {dict(changes)}: error / held: {', '.join(shown)}; no evidence {evidence:.2%}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
