"""`python -m tests.bench [--quick] [--json] [--rounds N] [--only NAME ...] [--live NAME ...]`, behind `make bench`.

Needs two cores, and for the parts `requests` and `streams` wrk and nginx. A full run takes about seven minutes and a
quarter of an hour for `live`, a quick one about forty seconds and a minute; the machine should do nothing else
meanwhile. Read the ratios: they come from interleaved rounds, so noise falls on all alike. The figures of `live` are
held against a yardstick instead, its first row: what client and model server cost without a gateway between them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench import measure, starts
from tests.bench.live.run import SCENARIOS, play
from tests.bench.load import subjects
from tests.bench.measure import Plan
from tests.bench.report import Found, as_json, as_text
from tests.bench.rig import MissingTools, choose_cores, require_tools, rig

PARTS = ("requests", "streams", "starts", "live")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench; 2 when a tool is missing, 1 when a subject is not what it is measured for."""
    asked = _parse(arguments)
    plan = measure.QUICK if asked.quick else measure.FULL
    if asked.rounds:
        plan = dataclasses.replace(plan, rounds=asked.rounds)
    parts = asked.only or (["live"] if asked.live else PARTS)
    try:
        found = Found({}, {}, {})
        if {"requests", "streams"} & set(parts):
            found = _costs(plan, parts, not asked.yardsticks)
        if "starts" in parts and not asked.yardsticks:
            found = dataclasses.replace(found, starts=_starts(plan))
        if "live" in parts and not asked.yardsticks:
            rows = play(asked.live or list(SCENARIOS), choose_cores(), asked.quick, _progress("live: "))
            found = dataclasses.replace(found, live=rows)
    except MissingTools as missing:
        print(missing, file=sys.stderr)
        return 2
    except measure.NotAsMeant as wrong:
        print(f"not measured: {wrong}", file=sys.stderr)
        return 1
    print(json.dumps(as_json(found), indent=2) if asked.json else as_text(found))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="What the gateway costs.")
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, metavar="N", help="how many times round")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts only")
    parser.add_argument("--live", nargs="+", metavar="NAME", choices=SCENARIOS, help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--yardsticks", action="store_true", help="all but the gateway: what this machine can do")
    return parser.parse_args(arguments)


def _costs(plan: Plan, parts: Sequence[str], ours: bool) -> Found:
    require_tools()
    cores = choose_cores()
    with tempfile.TemporaryDirectory(prefix="tierline-bench-") as temporary:
        folder = Path(temporary)
        with rig(folder, cores, ours) as steps:
            asked, streamed = subjects(steps), measure.stream_subjects(steps)
            measure.check([*asked, *streamed], folder, 0)
            requests, streams = [], []
            for number in range(plan.rounds):
                say = _progress(f"round {number + 1} of {plan.rounds}: ")
                if "requests" in parts:
                    requests.append(measure.request_round(asked, folder, plan, number, say))
                if "streams" in parts:
                    streams.append(measure.stream_round(streamed, plan, say))
            measure.check(asked, folder, 1)
    return Found(measure.medians(requests) if requests else {}, measure.medians(streams) if streams else {}, {})


def _starts(plan: Plan) -> dict[str, measure.Figures]:
    with tempfile.TemporaryDirectory(prefix="tierline-starts-") as folder:
        return starts.starts(Path(folder), plan.rounds, starts.kinds(), _progress(""))


def _progress(prefix: str) -> measure.Say:
    return lambda line: print(f"{prefix}{line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
