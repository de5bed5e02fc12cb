"""Run `tierline policy replay`: what recorded requests would have got by another policy."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.commands import CommandError
from gateway.cli.flags import add_json_flag, duration, whole
from gateway.cli.store_flags import ledger_folder, take_running
from gateway.exit_codes import Exit
from gateway.parts.lab.commands._replay_view import WIDTH, replay_lines
from gateway.report import Report, progress, show
from policies.errors import ConfigError
from policies.loader import read_policy

if TYPE_CHECKING:
    from gateway.parts.lab.replay.run import Replayed
    from policies.model import Policy


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy replay`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the policy file to try")
    add_ledger_flags(parser)
    parser.add_argument("--verify", type=_verified, default=20_000, metavar="N")
    add_json_flag(parser, "text")


def add_ledger_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which records are replayed, and which differences are too much."""
    parser.add_argument(
        "--since", type=duration, metavar="TIME", help="only requests of the last TIME, such as 12h or 7d"
    )
    parser.add_argument(
        "--ledger", type=Path, metavar="DIR", help="the ledger's files (default: the config's, else STATE/ledger)"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the config file (default: that of `tierline up`, else the shipped)"
    )
    parser.add_argument("--last", type=whole(1), metavar="N", help="only the N requests of the surface that ended last")
    parser.add_argument(
        "--state", metavar="DIR", default=".state", help="the state folder of `tierline up` (default: .state)"
    )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="LIMIT",
        help="exit with 1 if this difference occurs, such as 'goodput < -1%%'; may be given several times",
    )


def run(args: argparse.Namespace) -> int:
    """Replay, print what changes, and return the exit code. Raises CommandError."""
    from gateway.parts.lab.replay.gates import failed_gates

    gates = gates_of(args)
    take_running(args)
    candidate = candidate_of(args.file)
    began = time.perf_counter()
    replayed = replay_of(args, candidate, args.verify)
    seconds = time.perf_counter() - began
    failed = failed_gates(gates, replayed)
    values = {**replayed.as_json(), "seconds": seconds, "failed_gates": [gate.source for gate in failed]}
    lines = [*replay_lines(replayed, seconds), *gate_lines(args.fail_if, failed)]
    show(Report(values, lines, width=WIDTH), as_json=args.json)
    return Exit.FINDINGS if failed else Exit.OK


def gates_of(args: argparse.Namespace) -> list[Any]:
    """Return the limits of --fail-if. Raises CommandError."""
    from gateway.parts.lab.replay.gates import Gate, GateError

    try:
        return [Gate.parse(source) for source in args.fail_if]
    except GateError as error:
        raise CommandError(str(error)) from None


def gate_lines(sources: list[str], failed: list[Any]) -> list[str]:
    """Return a line for each limit, whether it is kept."""
    wrong = {gate.source for gate in failed}
    return [f"{'FAIL' if source.strip() in wrong else 'ok  '}  {source.strip()}" for source in sources]


def candidate_of(file: Path) -> Policy:
    """Return the policy in a file. Raises CommandError with its problems."""
    try:
        return read_policy(file)[0]
    except ConfigError as error:
        problems = "".join(f"\n  {problem}" for problem in error.problems)
        raise CommandError(f"{file} cannot be replayed:{problems}") from None


def replay_of(args: argparse.Namespace, candidate: Policy, verify: int | None) -> Replayed:
    """Replay the records that the options choose. Raises CommandError."""
    from gateway.parts.lab.replay.recording import NothingRecordedError
    from gateway.parts.lab.replay.run import replay
    from gateway.parts.ledger.query import connect
    from gateway.parts.recorder.decision_record import BasisError

    folder = ledger_folder(args)
    since = time.time() - args.since if args.since else None
    try:
        with (
            connect(folder, threads=1) as database,
            progress(quiet=args.json or not sys.stderr.isatty()) as on_progress,
        ):
            return replay(database, candidate, since=since, last=args.last, verify=verify, on_progress=on_progress)
    except (BasisError, NothingRecordedError) as error:
        hint = "; `tierline ledger query` shows what is there" if isinstance(error, NothingRecordedError) else ""
        raise CommandError(f"{error}{hint}") from None


def _verified(text: str) -> int | None:
    return None if text == "all" else whole(0)(text)
