"""Try the ways to spend more than a budget, over real gateways, and compare what is billed with what is booked.

    python -m tests.bench.overspend            # all ways, and the grid of waits: under five minutes
    python -m tests.bench.overspend --quick    # fewer requests, and the hardest cells of the grid: seconds

`billed` is what the scripted provider would bill, counted there by the marker in each request; `booked` is what the
counter of the budget in the store says afterwards. The ways are in `overspend_ways`, what they are tried at in
`overspend_rig`. The grid is a simulation of the real machine (`overspend_grid`).
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from policies.quantities import NANO
from tests.bench.command import bench_parser
from tests.bench.overspend_clients import try_request
from tests.bench.overspend_grid import cells, run_cell
from tests.bench.overspend_rig import OverspendRig, overspend_rig
from tests.bench.overspend_ways import BUDGET_USD, QUICK, WAYS, Way


@dataclass(frozen=True, slots=True)
class WayFigures:
    """What a way came to, in US dollars."""

    way: Way
    billed: float
    booked: float
    dearest: float
    requests: int

    @property
    def bound(self) -> float:
        """The most that may be billed, as a share of the budget."""
        return 1.0 + max(0.2, self.dearest / self.way.budget)

    @property
    def holds(self) -> bool:
        """Whether the budget held, and what was billed was booked."""
        if self.way.refused:
            return not self.billed
        if self.way.must_be:
            return self.billed > 0
        return 0 < self.billed <= self.bound * self.way.budget + 1e-9 and self.booked >= 0.95 * self.billed


_OVER: Final = ("insufficient_quota", "billing_error", "session_limit_reached")


def try_way(rig: OverspendRig, way: Way, most_s: float) -> WayFigures:
    """Send requests until the budget is spent, or for so long; ten times as long while a busy gateway lets none in."""
    keys = itertools.cycle(rig.keys(way))
    provider = rig.provider

    def send(*, leaves: bool) -> str:
        return try_request(rig.gateway.origin, provider, way, next(keys), leaves=leaves)

    def round_of() -> list[str]:
        return list(pool.map(lambda _: send(leaves=way.leaves), range(way.at_once)))

    for _ in range(way.answered):
        send(leaves=False)
    began, requests = time.monotonic(), way.answered
    troubles = {"": 0, "workers": 1}.get(way.trouble, 2)
    with ThreadPoolExecutor(way.at_once) as pool:
        while time.monotonic() < began + most_s * (1 if way.refused or provider.billed[way.name] else 10):
            billed, codes = provider.billed[way.name], round_of()
            requests += len(codes)
            if troubles:
                troubles -= 1
                with rig.troubled(way.trouble):
                    requests += len(round_of()) if way.trouble != "flush" else 0
                if way.trouble == "workers":
                    began = time.monotonic()
                continue
            if way.refused or any(code in _OVER for code in codes):
                break
            if way.judged and 0 < provider.billed[way.name] == billed:
                break
            if way.path == "/v1/responses" and way.more and "background" in way.more:
                time.sleep(0.5)
    booked, before = 0, -1
    for _ in range(150 if way.trouble else 20):  # a store that was full is tried again after up to 30 s
        booked = rig.booked(way)
        if booked == before and booked >= 0.95 * provider.billed[way.name]:
            break
        before = booked
        time.sleep(0.3)
    spent, dearest = provider.billed[way.name] / NANO, provider.dearest[way.name] / NANO
    return WayFigures(way, spent, booked / NANO, dearest, requests)


def try_ways(
    *, quick: bool, names: Sequence[str] = (), on_row: Callable[[WayFigures], None] = lambda _: None
) -> list[WayFigures]:
    """Try all ways, or those with a name in `names`, each with a tenant of its own, at a gateway of two workers.

    With `quick` a few ways, at one worker. Three ways run at a time, and those with trouble alone, after them; those in
    which workers are killed at a gateway of four.
    """
    ways = tuple(way for way in WAYS if way.name in (names or QUICK) or not (quick or names))
    rows: list[WayFigures] = []
    killed = tuple(way for way in ways if way.trouble == "workers")

    def add(row: WayFigures) -> None:
        rows.append(row)
        on_row(row)

    def tried(way: Way) -> WayFigures:
        return try_way(rig, way, 1.5 if quick else 8.0)

    for workers, of_them in ((1 if quick else 2, tuple(way for way in ways if way not in killed)), (4, killed)):
        if not of_them:
            continue
        with overspend_rig(of_them, workers) as rig, ThreadPoolExecutor(3) as pool:
            for row in pool.map(tried, [way for way in of_them if not way.trouble]):
                add(row)
            for way in of_them:
                if way.trouble:
                    add(tried(way))
    return rows


def _print_row(row: WayFigures) -> None:
    share = row.booked / row.billed if row.billed else 1.0
    said = f"see {row.way.must_be}" if row.way.must_be else "refused" if row.way.refused else "holds"
    of_budget = row.billed / (BUDGET_USD if row.way.must_be else row.way.budget)
    print(
        f"{row.way.name:38}{row.requests:>6}{of_budget:>9.2f}{row.bound:>9.2f}{share:>9.2f}{0.95:>9.2f}"
        f"  {said if row.holds else 'OVER'}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 where a row is above what it must be."""
    parser = bench_parser("overspend", __doc__)
    parser.add_argument("--quick", action="store_true", help="fewer ways, and the hardest cells of the grid")
    parser.add_argument("--grid", action="store_true", help="the grid alone")
    parser.add_argument("--way", action="append", default=[], metavar="NAME", help="this way alone; may be repeated")
    options = parser.parse_args(arguments)
    held = True
    if not options.grid:
        print(f"{'way':38}{'sent':>6}{'billed/':>9}{'must':>9}{'booked/':>9}{'must':>9}")
        print(f"{'':44}{'budget':>9}{'be <=':>9}{'billed':>9}{'be >=':>9}")
        held = all(row.holds for row in try_ways(quick=options.quick, names=options.way, on_row=_print_row))
    if options.way:
        return 0 if held else 1
    cells_run = [run_cell(cell, 150 if options.quick else 300) for cell in cells(quick=options.quick)]
    early, waited = sum(one.early for one in cells_run), sum(one.held for one in cells_run)
    over = [one for one in cells_run if one.billed > one.bound + 1e-9]
    print(f"\n{len(cells_run)} cells, {sum(one.sent for one in cells_run):,} requests on virtual time")
    print(f"held while less than 80% was spent    {waited:>6} of {early:,}, must be 0")
    print(f"refused while less than 80% was spent {sum(one.refused_early for one in cells_run):>6}, at once")
    print(f"overtaken                             {sum(one.overtaken for one in cells_run):>6}, must be 0")
    print(f"cells above their bound               {len(over):>6}, must be 0")
    print(f"dearest cell, billed / budget         {max(one.billed / one.cell.budget for one in cells_run):>6.2f}")
    good = held and not waited and not over and not any(one.overtaken for one in cells_run)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
