"""Run `tierline ledger`: summarise cost, latency and quality of the requests recorded in the store."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, duration, whole
from gateway.cli.store_flags import add_store_flags, files_of_store, with_store
from gateway.exit_codes import Exit
from gateway.parts.ledger.commands import _ledger_files
from gateway.parts.ledger.commands._ledger_view import show
from gateway.parts.ledger.figures import usage_figures
from gateway.parts.measures.feedback import Feedback, feedback_by_request
from gateway.parts.measures.label import stored_labels
from gateway.parts.trace.records import newest_records, say_coverage
from gateway.report import OnProgress, progress
from gateway.telemetry.ledger import UNCOUNTED

_REPORT_EVERY = 200
_LATEST = 10_000
"""Requests that are summarised where nothing says how many."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `ledger` to the command line."""
    parser = add_command(subparsers, "ledger")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=whole(1), metavar="N")
    which.add_argument("--since", type=duration, metavar="TIME")
    parser.add_argument("--surface", metavar="NAME", help="only requests of this surface")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--export", type=Path, metavar="FILE")
    add_store_flags(parser)
    _ledger_files.add_actions(parser)


def run(args: argparse.Namespace) -> int:
    """Read the records, print their summary, and export them if requested. Raises CommandError."""
    if args.action is not None:
        return _ledger_files.run(args)
    with progress(quiet=args.json or not sys.stderr.isatty()) as on_progress:
        rows, labels = _rows(args, on_progress)
        if not rows:
            raise CommandError("no such request is recorded; `tierline trace list` shows those that are")
        if args.export is not None:
            _write(args.export, rows, on_progress)
    summary = usage_figures(rows, labels)
    if args.json:
        sys.stdout.write(orjson.dumps(summary).decode() + "\n")
        return Exit.OK
    show(summary, args.surface)
    if args.export is not None:
        sys.stdout.write(f"\n{len(rows)} records written to {args.export}\n")
    return Exit.OK


def _rows(args: argparse.Namespace, on_progress: OnProgress) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the selected requests, newest first, each with the feedback on it; and all labels of a judge."""
    records, feedback, labels = with_store(args, lambda store: _read(store, args, on_progress))
    return [
        _row(record, feedback.get((record["ledger"]["tenant"], record["ledger"]["request_id"]))) for record in records
    ], labels


async def _read(
    store: RedisStore, args: argparse.Namespace, on_progress: OnProgress
) -> tuple[list[dict[str, Any]], Mapping[tuple[str, str], Feedback], list[dict[str, Any]]]:
    now, folder = time.time(), files_of_store(args)
    oldest = now - args.since if args.since else None
    began = now
    last = args.last or (None if args.since else _LATEST)
    records: list[dict[str, Any]] = []
    read = 0
    async for _, blob in newest_records(store, folder):
        record = orjson.loads(blob)
        read += 1
        began = min(began, record["started"] + record["ledger"]["total_ms"] / 1000)
        if read % _REPORT_EVERY == 0:
            on_progress("reading", read, max(read, last or 0))
        # Records are ordered by their end, so compare that, not the start.
        if oldest is not None and record["started"] + record["ledger"]["total_ms"] / 1000 < oldest:
            break
        if args.surface in (None, record["ledger"]["surface"]) and record["ledger"].get("arm") not in UNCOUNTED:
            records.append(record)
        if len(records) == last:
            break
    if args.since and len(records) != last:
        say_coverage(folder, now - began, args.since)
    return records, await feedback_by_request(store), await stored_labels(store)


def _row(record: Mapping[str, Any], feedback: Feedback | None) -> dict[str, Any]:
    return {
        "started": record["started"],
        "trace_id": record["trace_id"],
        **record["ledger"],
        "score": feedback.score if feedback else None,
        "comment": feedback.comment if feedback else None,
    }


def _write(file: Path, rows: list[dict[str, Any]], on_progress: OnProgress) -> None:
    try:
        with file.open("wb") as stream:
            for number, row in enumerate(rows, start=1):
                stream.write(orjson.dumps(row) + b"\n")
                if number % _REPORT_EVERY == 0:
                    on_progress("writing", number, len(rows))
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from None
