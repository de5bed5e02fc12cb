"""Say how many refusals of real servers end right: `python -m tests.bench.refusals [--list]`.

Sends the request of each row of `tests.support.refusals` to a server that refuses it so, over a real socket. `--list`
names the open rows that end wrong; rows that were set apart are counted only.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from tests.bench.command import bench_parser
from tests.support.refusals import HELD_OUT, LATER, OPEN, judged_all, rows, shares


def main(arguments: list[str] | None = None) -> int:
    """Judge every row, and print the shares."""
    parser = bench_parser("refusals", __doc__)
    parser.add_argument("--list", action="store_true", help="name the open rows that are blamed wrongly")
    args = parser.parse_args(arguments)
    for name, path in (("rules were written by", OPEN), ("held out", HELD_OUT), ("found later", LATER)):
        verdicts = asyncio.run(judged_all(path))
        right, blamed = shares(verdicts)
        servers = len({one.server for one in verdicts})
        print(f"{len(verdicts)} refusals of {servers} servers, {name}: {right:.1%} end right, {blamed:.1%} blamed so")
        counts = Counter(one.fault for one in verdicts)
        exact = Counter(one.fault for one in verdicts if one.blamed)
        for fault, count in counts.most_common():
            print(f"  {fault:10}{exact[fault]:5} of {count}")
        if args.list and path == OPEN:
            for row, one in zip(rows(path), verdicts, strict=True):
                if not one.blamed:
                    print(f"    {one.fault}, taken for {one.taken_for}: {row['server']} {row['body'][:120]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
