"""Run `tierline trace last | list | show REQUEST_ID`: show the hops of recorded requests, with times and reasons."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping

import orjson
from rich.console import Console

from cache.store.base import StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import Subparsers, add_command, whole
from gateway.cli.commands._store import add_store_flags, store_url
from gateway.exit_codes import Exit
from gateway.telemetry import reader
from gateway.telemetry.feedback import Feedback, Key, key_of
from gateway.telemetry.view import draw, draw_list

_EXAMPLES = """examples:
  tierline trace last                     draw the latest request
  tierline trace list -n 50               list the latest 50, one line each
  tierline trace show 0198a1b2c3d4        draw the request with that x-request-id
  tierline trace show 0198a1b2c3d4 --json | jq .ledger
                                          print its cost, tier and times as JSON
"""

_LAST = """examples:
  tierline trace last                     draw the latest request
  tierline trace last -n 3                draw the latest three
  tierline trace last --json | jq .ledger.cost_usd"""

_LIST = """examples:
  tierline trace list                     list the latest 20 requests: when, which surface and tier, how long, its id
  tierline trace list -n 10000 --json > ledger.jsonl
                                          write all that the store keeps by default to a file"""

_SHOW = """examples:
  tierline trace show 0198a1b2c3d4        draw the request with that x-request-id
  tierline trace show 0198a1b2c3d4 --json | jq .ledger.calls
                                          print what each backend call took and cost as JSON"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `trace` and its subcommands to the command line."""
    parser = add_command(
        subparsers,
        "trace",
        "show the steps of recorded requests, with times and reasons",
        "Show recorded requests: every hop (cache lookup, routing, attempt ...), how long it took, and why "
        "it ended as it did.",
        _EXAMPLES,
    )
    where = argparse.ArgumentParser(add_help=False)
    add_store_flags(where)
    where.add_argument("--json", action="store_true", help="print the records as stored, one JSON object a line")
    what = parser.add_subparsers(dest="what", required=True, metavar="last | list | show")
    last = add_command(what, "last", "draw the latest request", "Draw the latest requests.", _LAST, parents=[where])
    last.add_argument("-n", type=whole(1), default=1, metavar="N", help="number of requests (default: 1)")
    several = add_command(what, "list", "list the latest requests, one line each", examples=_LIST, parents=[where])
    several.add_argument("-n", type=whole(1), default=20, metavar="N", help="number of requests (default: 20)")
    show = add_command(what, "show", "draw one request", examples=_SHOW, parents=[where])
    show.add_argument("request_id", metavar="REQUEST_ID", help="the x-request-id of its reply")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit code. Raises CommandError and ConfigError."""
    try:
        blobs, feedback = asyncio.run(_read(store_url(args), args))
    except StoreUnavailable as down:
        raise CommandError(f"the store does not answer ({down}); is it running?") from None
    except ValueError as bad:
        raise CommandError(str(bad)) from None
    _print(blobs, feedback, args)
    return Exit.OK


def _print(blobs: list[bytes], feedback: Mapping[Key, Feedback], args: argparse.Namespace) -> None:
    if args.json:
        for blob in blobs:
            sys.stdout.write(blob.decode() + "\n")
        return
    console = Console(highlight=False)
    records = [orjson.loads(blob) for blob in blobs]
    if args.what == "list":
        draw_list(records, console)
        return
    for number, record in enumerate(records):
        if number:
            console.print()
        draw(record, console, feedback.get(key_of(record["ledger"])))


async def _read(url: str, args: argparse.Namespace) -> tuple[list[bytes], Mapping[Key, Feedback]]:
    """Return the requested records, and the feedback on them if they will be drawn."""
    store = RedisStore.from_url(url)
    try:
        blobs = await _records(store, args)
        drawn = not args.json and args.what != "list"
        return blobs, await reader.feedback_by_request(store) if drawn else {}
    finally:
        await store.aclose()


async def _records(store: RedisStore, args: argparse.Namespace) -> list[bytes]:
    if args.what == "show":
        blob = await reader.find(store, args.request_id)
        if blob is None:
            raise CommandError(f"no request {args.request_id!r} among those kept; `tierline trace list` shows them")
        return [blob]
    blobs = await reader.latest(store, args.n)
    if not blobs:
        raise CommandError("no request has been recorded yet; send one and try again")
    return blobs
