"""Run `tierline policy status`: show what is in force, what is being tried, and which workers and files differ."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from gateway.cli.commands.policy._registry import add_registry_flags, percent, when, with_registry
from gateway.exit_codes import Exit
from gateway.registry.view import status_of
from offline.report import print_json

DESCRIPTION = """Show, for each surface, the policy in force, the candidate with its step and the guards' figures, and
which workers or policy files say something else."""
EXAMPLES = """examples:
  tierline policy status                 all surfaces
  tierline policy status chat --watch    one, again every second until Ctrl-C
  tierline policy status --json | jq '.surfaces[] | select(.candidate)'

exit code 1: a worker or a policy file differs from what is in force."""

_CLEAR: Final = "\x1b[H\x1b[J"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy status`."""
    parser.add_argument("surface", nargs="?", metavar="SURFACE", help="one surface (default: all)")
    parser.add_argument("--watch", action="store_true", help="show it again every second, until Ctrl-C")
    add_registry_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the status, once or every second, and return the exit code."""
    while True:
        status = with_registry(args, lambda registry: status_of(registry, args.surface))
        if args.json:
            print_json(status)
        else:
            clear = _CLEAR if args.watch and sys.stdout.isatty() else ""
            sys.stdout.write(clear + _text(status, time.time()))
            sys.stdout.flush()
        if not args.watch:
            differs = status["drift"] or any(one["replicas"]["lagging"] for one in status["surfaces"])
            differs = differs or any(replica["still_has"] for replica in status["replicas"])
            return Exit.FINDINGS if differs else Exit.OK
        time.sleep(1)


def _text(status: dict[str, Any], now: float) -> str:
    lines: list[str] = []
    workers = len(status["replicas"])
    for one in status["surfaces"]:
        frozen = "   frozen" if one["frozen"] else ""
        who = f"since {when(one['since'])}, {one['author']}: {one['message']}" if "at" in one else ""
        have = f"{one['replicas']['in_force']} of {workers} workers" if workers else "no workers"
        lines.append(f"{one['policy']:<22} in force on {have}{frozen}   {who}".rstrip())
        if one["candidate"]:
            lines += [f"  {line}" for line in _candidate(one["surface"], one["candidate"], now)]
    if not status["surfaces"]:
        lines.append("the registry is empty: a gateway with `policies: {source: store}` fills it from its files")
    if status["surfaces"] and not workers:
        lines.append("no gateway follows this registry at present: is `policies: {source: store}` in its config?")
    lines += [f"drift: {drift}" for drift in status["drift"]]
    for replica in status["replicas"]:
        lagging = [one["policy"] for one in status["surfaces"] if replica["name"] in one["replicas"]["lagging"]]
        if lagging:
            lines.append(f"worker {replica['name']} does not have {', '.join(lagging)}: {replica['problem'] or 'yet'}")
        if replica["still_has"]:
            gone = ", ".join(replica["still_has"])
            lines.append(f"worker {replica['name']} still has {gone}, removed: {replica['problem'] or 'for now'}")
    return "\n".join(lines) + "\n"


def _candidate(surface: str, candidate: dict[str, Any], now: float) -> list[str]:
    steps = candidate.get("steps") or []
    at_step = f", step {candidate['step'] + 1} of {len(steps)}" if candidate["mode"] == "canary" and steps else ""
    lines = [
        f"trying {candidate['policy']}: {candidate['mode']} {percent(candidate['share'])}{at_step}, for "
        f"{_lasting(now - candidate['since'])}, {candidate.get('author', '')}: {candidate.get('message', '')}"
    ]
    if candidate["paused"]:
        lines.append(f"paused: {candidate['paused']}; `tierline policy resume {surface} -m WHY` goes on")
    report = candidate.get("report")
    if report:
        lines += [f"  {line}" for line in report.get("lines", [])]
    elif candidate["mode"] == "canary":
        lines.append("  no report yet: is `tierline policy judge` running? Without it a canary serves nobody")
    else:
        lines.append("  no report yet: is `tierline policy judge` running? It sums up what the candidate does")
    return lines


def _lasting(seconds: float) -> str:
    """Return a duration such as 45s, 12m, 3.5h or 2.0d."""
    for size, unit in ((86400.0, "d"), (3600.0, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds / 60:.0f}m" if seconds >= 60 else f"{max(0.0, seconds):.0f}s"
