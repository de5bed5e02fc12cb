"""Run `tierline policy status`: show what is in force, what is being tried, and which workers and files differ."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final, NoReturn

from gateway.cli.commands import CommandError
from gateway.cli.store_flags import add_registry_flags
from gateway.exit_codes import Exit
from gateway.parts.rollout.commands._registry import when, with_registry, wrapped
from gateway.parts.rollout.registry.view import status_of
from gateway.report import print_json
from policies.quantities import period, write_share

_CLEAR: Final = "\x1b[H\x1b[J"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy status`."""
    parser.add_argument("surface", nargs="?", metavar="SURFACE", help="one surface (default: all)")
    parser.add_argument("--watch", action="store_true")
    add_registry_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the status and return the exit code; with --watch, print it every second until Ctrl-C."""
    if args.watch:
        _watch(args)
    status = _status(args)
    if args.json:
        print_json(status)
    else:
        sys.stdout.write(_text(status, time.time()))
    differs = (
        status["drift"]
        or any(surface["replicas"]["lagging"] for surface in status["surfaces"])
        or any(replica["still_has"] for replica in status["replicas"])
    )
    return Exit.FINDINGS if differs else Exit.OK


def _status(args: argparse.Namespace) -> dict[str, Any]:
    return with_registry(args, lambda registry: status_of(registry, args.surface))


def _watch(args: argparse.Namespace) -> NoReturn:
    """Print the status every second; a store that answered once may fall silent for a while."""
    known: dict[str, Any] | None = None
    while True:
        trouble = ""
        try:
            known = _status(args)
        except CommandError as error:
            if known is None:
                raise
            trouble = f"{error}; trying on. This is what was known last:\n\n"
        if args.json:
            print_json(known | {"trouble": trouble.strip()} if trouble else known)
        else:
            clear = _CLEAR if sys.stdout.isatty() else ""
            head = f"tierline policy status   {time.strftime('%H:%M:%S')}   every second, Ctrl-C ends\n\n"
            sys.stdout.write(clear + head + trouble + _text(known, time.time()))
        sys.stdout.flush()
        time.sleep(1)


def _text(status: dict[str, Any], now: float) -> str:
    lines: list[str] = []
    workers = len(status["replicas"])
    for one in status["surfaces"]:
        frozen = "   frozen" if one["frozen"] else ""
        who = f"since {when(one['since'])}, {one['author']}: {one['message']}" if "at" in one else ""
        have = f"{one['replicas']['in_force']} of {workers} workers" if workers else "no workers"
        lines.append(f"{one['policy']:<22} in force on {have}{frozen}   {who}".rstrip())
        if (last := one["last"]) and last["action"] != "seed" and not (last["action"] == "apply" and one["candidate"]):
            lines += [f"  {line}" for line in _last(last, now)]
        if one["candidate"]:
            lines += [f"  {line}" for line in _candidate(one["surface"], one["candidate"], now)]
    if not status["surfaces"]:
        lines.append("the registry is empty: a gateway with `policies: {source: store}` fills it from its files")
    if status["surfaces"] and not workers:
        lines.append("no gateway follows this registry at present: is `policies: {source: store}` in its config?")
    lines += [f"drift: {drift}" for drift in status["drift"]]
    for replica in status["replicas"]:
        lagging = [state["policy"] for state in status["surfaces"] if replica["name"] in state["replicas"]["lagging"]]
        if lagging:
            lines.append(f"worker {replica['name']} does not have {', '.join(lagging)}: {replica['problem'] or 'yet'}")
        if replica["still_has"]:
            gone = ", ".join(replica["still_has"])
            lines.append(f"worker {replica['name']} still has {gone}, removed: {replica['problem'] or 'for now'}")
    return "\n".join(lines) + "\n"


def _last(change: dict[str, Any], now: float) -> list[str]:
    """Return the latest change, so that who looks after a verdict sees what it was."""
    about = f"{change['surface']}@{(change['before'] if change['action'] == 'rollback' else change['version'])[:7]}"
    ago = f"{period(max(0.0, now - change['at']))} ago"
    return wrapped("last change: ", f"{change['action']} of {about} by {change['by']}, {ago}: {change['message']}")


def _candidate(surface: str, candidate: dict[str, Any], now: float) -> list[str]:
    steps = candidate.get("steps") or []
    at_step = f", step {candidate['step'] + 1} of {len(steps)}" if candidate["mode"] == "canary" and steps else ""
    since = period(max(0.0, now - candidate["since"]))
    what = f"{candidate['policy']}: {candidate['mode']} {write_share(candidate['share'])}{at_step}, for {since}"
    lines = wrapped("trying ", f"{what}, {candidate.get('author', '')}: {candidate.get('message', '')}")
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
