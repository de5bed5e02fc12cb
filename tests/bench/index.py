"""Measures the semantic cache beyond the embedding: what a lookup costs, what a write costs, when others find it.

    python -m tests.bench.index [--entries 100000] [--scopes 1000] [--kind K] [--layout one|spread] [--quick] [--json]

Each index on its server (the replica's on the embedded Valkey, vector sets on a Redis 8), with the entries spread over
many scopes and all in one. A lookup is `Cache.semantic`, as the gateway awaits it: the nearest five, the verifier's
reading of their texts and its decision, and on a hit the GET of the entry. A search is its first part alone. Times are
the client's; the CPU of both sides is told beside them, for that says what a machine with other work cannot hide.

`found` is the share of lookups whose true nearest entry, by a search row by row, is among the five; `found >= .7` of
those where it is as near as that, which is where answers come from. `with model` are the lookups that asked the
cross-encoder (`--cross-encoder`), `asked` their share. `to another` is how long after a write has ended a
second worker serves the entry; `gap` how long one that lost the stream takes to have what it missed.

Questions are real where `--questions` names files of pairs (the folder of the public ones by default, where it is).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cache import shipped_cross_encoder
from cache.index import Choice
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.vector_sets import part
from tests.bench.command import bench_parser
from tests.bench.index_run import Figures, Plan, Times, measure
from tests.bench.questions import PUBLIC, questions
from tests.support.redis8 import Unavailable, redis8
from tests.support.store import LocalStore

_QUICK = (2_000, 100, 200)


def _servers() -> Iterator[tuple[Choice, LocalStore]]:
    yield "replica", LocalStore()
    try:
        yield "vector_sets", LocalStore(command=redis8())
    except Unavailable as why:
        print(f"vector_sets: not measured: {why}", file=sys.stderr)


def _tables(rows: list[Figures], title: str) -> Iterator[Table]:
    times = Table(title=title, caption="ms as p50 / p95 / p99; CPU of a lookup, here and (the mean) in the server")
    for name in (
        "index",
        "entries",
        "scopes",
        "lookup",
        "CPU here",
        "there",
        "with model",
        "asked",
        "search",
        "found",
        "found >= .7",
        "hits",
        "failed",
    ):
        times.add_column(name, justify="right")
    for row in rows:
        cost = [_of(row.cpu_here), f"{row.cpu_there:.2f}"]
        cost += ["-" if row.checked is None else _of(row.checked), f"{row.checked_share:.3f}"]
        shares = [f"{row.found:.3f}", f"{row.found_near:.3f}", f"{row.hits:.3f}", str(row.failed)]
        layout = [row.kind, f"{row.entries:,}", f"{row.scopes:,}"]
        times.add_row(*layout, _of(row.lookup), *cost, _of(row.search), *shares)
    yield times
    rest = Table(caption="fill, warm and gap in s; bytes for each entry: the server's, and of a worker that is warm")
    for name in ("index", "scopes", "fill", "write", "to another", "at once", "warm", "gap", "server B", "worker B"):
        rest.add_column(name, justify="right")
    for row in rows:
        gap = "-" if row.gap_s is None else f"{row.gap_s:.2f} ({row.missed:,})"
        sizes = [f"{row.server_bytes:,.0f}", f"{row.worker_bytes:,.0f}"]
        came = [_of(row.write), _of(row.to_another), f"{row.at_once:.2f}", f"{row.warm_s:.1f}"]
        rest.add_row(row.kind, f"{row.scopes:,}", f"{row.fill_s:.0f}", *came, gap, *sizes)
    yield rest


def _of(times: Times) -> str:
    return " / ".join(f"{ms:.2f}" for ms in times)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = bench_parser("index", __doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--scopes", type=int, default=1_000, help="of the layout that is spread")
    parser.add_argument("--lookups", type=int, default=2_000)
    parser.add_argument("--kind", choices=["replica", "vector_sets"], help="one alone")
    parser.add_argument("--layout", choices=["spread", "one"], help="one alone")
    parser.add_argument("--noquant", action="store_true", help="vector sets that keep vectors as they are, to compare")
    parser.add_argument("--questions", type=Path, nargs="*", metavar="FILE", help="pairs, as measure_cache reads")
    parser.add_argument(
        "--cross-encoder", metavar="PATH", help="the folder of one, or 'default' for the one that ships (default: none)"
    )
    parser.add_argument("--quick", action="store_true", help="2,000 entries: does it run, not what is it worth")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """The command; see the module's docstring."""
    options = _options(arguments)
    console = Console(stderr=True)
    if options.noquant:
        part._QUANTISATION = b"NOQUANT"  # type: ignore[misc]
    entries, scopes, lookups = _QUICK if options.quick else (options.entries, options.scopes, options.lookups)
    files = PUBLIC if options.questions is None else options.questions
    with console.status("reading and embedding the questions"):
        asked = questions(files, entries, lookups)
    model, named = None, options.cross_encoder
    if named is not None:
        model = CrossEncoder.load(shipped_cross_encoder() if named == "default" else Path(named))
    rows: list[Figures] = []
    for choice, server in _servers():
        for layout, count in (("spread", scopes), ("one", 1)):
            if options.kind in (None, choice) and options.layout in (None, layout):
                server.start()
                try:
                    rows.append(asyncio.run(measure(Plan(server, choice, asked, count, model), console)))
                finally:
                    server.stop()
        server.close()
    if options.json:
        print(json.dumps({"questions": asked.what, "rows": [asdict(row) for row in rows]}))
    else:
        for table in _tables(rows, f"The semantic cache beyond the embedding; {asked.what}"):
            Console(width=180).print(table)


if __name__ == "__main__":
    main()
