"""Run `tierline trace last | list | tail | show REQUEST_ID`: show recorded requests, with times and reasons."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import orjson
from rich.console import Console

from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, whole
from gateway.cli.records import find_record
from gateway.cli.request_list import (
    add_filter_flags,
    add_tail_flags,
    filter_of,
    newest_requests,
    print_requests,
    tail,
)
from gateway.cli.store_flags import add_store_flags, files_of_store, with_store
from gateway.exit_codes import Exit
from gateway.telemetry import reader
from gateway.telemetry.feedback import Feedback, Key, feedback_key
from gateway.telemetry.view import draw

_NOTHING: Final = "no request has been recorded yet; send one and try again"


def add_parser(subparsers: Subparsers) -> None:
    """Add `trace` and its subcommands to the command line."""
    parser = add_command(subparsers, "trace")
    store = argparse.ArgumentParser(add_help=False)
    add_store_flags(store)
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print the records as stored, one JSON object a line")
    where = [store, as_json]
    what = parser.add_subparsers(dest="what", required=True, metavar="last | list | tail | show")
    last = add_command(what, "trace last", parents=where)
    last.add_argument("-n", type=whole(1), default=1, metavar="N")
    several = add_command(what, "trace list", parents=where)
    several.add_argument("-n", type=whole(1), default=20, metavar="N")
    add_filter_flags(several)
    following = add_command(what, "trace tail", parents=[store])
    add_tail_flags(following)
    show = add_command(what, "trace show", parents=where)
    show.add_argument("request_id", metavar="REQUEST_ID")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit code. Raises CommandError and ConfigError."""
    if args.what == "tail":
        return tail(args, follow=True)
    with_store(args, lambda store: _run(store, args))
    return Exit.OK


async def _run(store: RedisStore, args: argparse.Namespace) -> None:
    if args.what == "list":
        await _list(store, args)
        return
    blobs = await _records(store, args)
    if args.json:
        print_requests(blobs, as_json=True)
        return
    _draw(blobs, await reader.feedback_by_request(store))


async def _list(store: RedisStore, args: argparse.Namespace) -> None:
    requests = await newest_requests(store, files_of_store(args), filter_of(args), args.n)
    if not requests.seen and requests.last_id is None:
        raise CommandError(_NOTHING)
    if not requests.blobs:
        sys.stderr.write(f"tierline: none of the {requests.seen} requests that were looked at is one of these\n")
    print_requests(requests.blobs, as_json=args.json)


def _draw(blobs: Sequence[bytes], feedback: Mapping[Key, Feedback]) -> None:
    console = Console(highlight=False)
    for number, record in enumerate(map(orjson.loads, blobs)):
        if number:
            console.print()
        draw(record, console, feedback.get(feedback_key(record["ledger"])))


async def _records(store: RedisStore, args: argparse.Namespace) -> Sequence[bytes]:
    if args.what == "show":
        blob = await find_record(store, files_of_store(args), args.request_id)
        if blob is None:
            raise CommandError(f"no request {args.request_id!r} among those kept; `tierline trace list` shows them")
        return [blob]
    blobs = await reader.latest(store, args.n)
    if not blobs:
        raise CommandError(_NOTHING)
    return blobs
