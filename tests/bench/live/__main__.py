"""Play the cascade against scripted models on real sockets: `python -m tests.bench.live [NAME ...] [--quick] [--json]`.

All scenarios take a quarter of an hour, quick ones a minute, on two cores; the machine should do nothing else. Their
figures are held against a yardstick, the first row: what client and model server cost without a gateway between them.
The exit code is 2 where there is one core alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial

from tests.bench.command import bench_parser
from tests.bench.live import table
from tests.bench.live.run import SCENARIOS, play
from tests.bench.rig import MissingTools, choose_cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and print; see the module's docstring."""
    parser = bench_parser("live", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCENARIOS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="short ones")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in SCENARIOS]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    try:
        cores = choose_cores()
    except MissingTools as missing:
        print(missing, file=sys.stderr)
        return 2
    rows = play(options.names or list(SCENARIOS), cores, options.quick, partial(print, file=sys.stderr, flush=True))
    print(json.dumps({"live": table.as_json(rows)}, indent=2) if options.json else table.as_text(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
