"""Measure replay: seconds of CPU for a large ledger, and how faithful its decisions are.

    python -m tests.bench.replay [--records 1000000] [--ledger DIR] [--check 20000]

Writes the ledger of a scripted world into a temporary folder (a minute for each 300,000 records), or reads the one
given. Then it replays it twice on one core: by the policy that served it, which must make every decision again, and by
another one. Printed: CPU seconds of each, the share of decisions that are the same, how many of them were also decided
one by one and compared byte for byte, and the memory at its highest. Exit code 1 where a decision differs.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from gateway.parts.lab.replay.run import Replayed, replay
from gateway.parts.ledger.query import connect
from policies.model import Policy
from tests.bench.command import bench_parser
from tests.support.ledger_files import write_ledger
from tests.support.scripted_world import World, policy


def timed(folder: Path, candidate: Policy, check: int | None) -> tuple[Replayed, float]:
    """Replay a ledger on one core; return the result and the CPU seconds, this process's threads together."""
    began = time.process_time()
    with connect(folder, threads=1) as database:
        replayed = replay(database, candidate, verify=check)
    return replayed, time.process_time() - began


def main() -> int:
    """Write, replay and print."""
    parser = bench_parser("replay", __doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--ledger", type=Path, help="read this ledger, which this bench has written before")
    parser.add_argument("--write", type=Path, help="write the ledger into this folder, and keep it")
    parser.add_argument("--check", type=int, default=20_000, help="decide so many records one by one, outside the time")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = args.ledger or args.write or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.ledger is None:
            world = World(args.records)
            write_ledger(folder, world.live(policy()), [world.basis(policy())])
        own, own_s = timed(folder, policy(), 0)
        other, other_s = timed(folder, policy(confidence=0.75, easiest=35), 0)
        checked, _ = timed(folder, policy(), args.check)
    fidelity = checked.fidelity
    print(f"{own.requests:,} records, {own.fidelity.decided:,} of them decisions, in {own.cells:,} cells")
    print(
        f"same policy:    {own_s:.1f} s of CPU; {own.fidelity.same / own.fidelity.decided:.2%} decided again the same"
    )
    print(
        f"another policy: {other_s:.1f} s of CPU; {other.changed:,} requests take another course, "
        f"{other.estimated:,} estimated"
    )
    print(f"byte for byte:  {fidelity.identical:,} of {fidelity.checked:,} decided one by one are identical")
    print(f"memory:         {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB at its highest")
    return 0 if fidelity.whole and own.changed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
