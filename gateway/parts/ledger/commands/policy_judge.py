"""Run `tierline policy judge`: judge the candidates that are being tried, until stopped."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.cli.store_flags import add_store_flags, with_store
from gateway.exit_codes import Exit
from gateway.parts.ledger.folder import ArchiveError
from gateway.parts.ledger.query import ask, connect
from gateway.parts.rollout.canary_judge import CanaryJudge

_COLUMNS: Final = (
    "surface, policy, arm, unit, tenant, request_id, status, error, ttft_ms, total_ms, cost_usd, cost_unknown, "
    "slo, path, calls"
)
_EARLIER: Final = (
    f"SELECT entry_ms, entry_seq, started_s, {_COLUMNS} "
    "FROM (SELECT * FROM requests UNION ALL BY NAME SELECT * FROM shadows) "
    "WHERE started_s >= $since AND arm <> '' ORDER BY entry_ms, entry_seq"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy judge`."""
    parser.add_argument("--dir", type=Path, metavar="DIR")
    add_store_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Judge until a signal and return the exit code. Raises CommandError."""
    folder = args.dir or Path(args.state) / "ledger"
    try:
        with_store(args, lambda store: CanaryJudge(store, _say, earlier=partial(earlier, folder)).run())
    except KeyboardInterrupt:
        _say("stopped")
    return Exit.OK


def earlier(folder: Path, since: float) -> Iterable[tuple[str, Mapping[str, Any], float]]:
    """Yield what canaries and shadows did since a time, from the ledger's files if any: entry id, ledger, start."""
    names = _COLUMNS.split(", ")
    try:
        with connect(folder) as database:
            result = ask(database, _EARLIER, {"since": since})
            while rows := result.fetchmany(1000):
                for ms, sequence, started, *values in rows:
                    yield f"{ms}-{sequence}", dict(zip(names, values, strict=True)), started
    except ArchiveError:
        return


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stdout.flush()
