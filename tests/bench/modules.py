"""How large the house is, and how many modules a request passes: `python -m tests.bench.modules [--list] [--lower]`.

Counts the modules of ours that a JSON request with a cache miss passes in the gateway's event loop, over a real store,
and what `tests.bench.ratchets` and `tests.bench.parts` count, beside the number kept and the one to come to; the exit
code is 1 where a number is larger than the one kept.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bench import budgets, parts, ratchets
from tests.bench.command import bench_parser


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and compare with the numbers kept."""
    parser = bench_parser("modules", __doc__)
    parser.add_argument("--list", action="store_true", help="name what was counted")
    parser.add_argument("--lower", action="store_true", help="keep the numbers that have become smaller; raises none")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, budgets.servers(Path(folder)) as (_, ours):
        passed = budgets.modules_of_a_miss(ours)
    with tempfile.TemporaryDirectory() as folder:
        found = {budgets.MODULES: len(passed)} | ratchets.sizes() | parts.sizes() | parts.loaded(Path(folder))
    limits = ratchets.kept()
    print(f"{'':32}{'now':>10}{'kept':>10}{'target':>10}")
    for name, number in found.items():
        target = f"{parts.TARGETS[name]:>10,}" if name in parts.TARGETS else ""
        print(f"{name:32}{number:>10,}{limits.get(name, 0):>10,}{target}")
    if args.list:
        lists = {
            "Every miss passes": passed,
            "Longest chain of imports": ratchets.longest_chain(ratchets.imports()),
            "Private names of libraries": ratchets.private_names(),
            "Ask-like helpers in tests": ratchets.helpers_that_ask(),
            "Rules without a test file": ratchets.rules_without_tests(),
            "Lines of parts": [f"{part or 'core'}: {lines:,}" for part, lines in parts.lines_of_parts().most_common()],
            "Names of parts elsewhere": sorted(f"{user}: {name}" for user, name in parts.names_of_parts()),
            "Functions in two modules": parts.functions_in_two_modules(),
        }
        print("".join(f"\n{title}:\n  " + "\n  ".join(names) for title, names in lists.items()))
    if args.lower:
        ratchets.lower(found)
    lines = ratchets.grown(found, limits)
    for line in lines:
        print(f"grown: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
