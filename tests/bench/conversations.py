"""Conversations that change tier: `python -m tests.bench.conversations [--runs N] [--seed N] [--json]`.

One gateway over sockets, with seven tiers whose scripted servers refuse what the providers refuse: signed reasoning of
others, or in another place; calls without results and results without calls; ids that are too long, have other
characters or come again; fields of other models (see `tests.support.tier_changes`). Conversations of 2 to 20 turns have
tool calls, alone and several at once, images, reasoning, replies streamed and whole. The tier of each request follows
from a pin (`tier:NAME`), from start rules, from drafts that are not sure, or from tiers that are down. Clients of four
kinds send back exactly what they were given: chat completions, responses with all items, responses with
`previous_response_id`, and messages.

Counted, for each kind of client and each tier that answered: replies of status 400, and whatever else is wrong; pieces
of signed reasoning that came back to their maker; replies before which reasoning was removed, and whether
`x-tierline-dropped` says so exactly then. The exit code is 1 where anything is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from tests.support.gateway import environment, running, write_deployment
from tests.support.store import local_store
from tests.support.strict_messages import StrictMessages
from tests.support.tier_changes import DIALECTS, TIERS, Conversation, Outcome, World

_AT_ONCE = 6
_SHOWN = 10
_PROGRESS_S = 20.0


def upper_bound(hits: int, of: int) -> float:
    """Return the upper end of the exact one-sided 95% interval of a share, for no hits; else Wilson's."""
    if not of:
        return 1.0
    if not hits:
        return float(1 - 0.05 ** (1 / of))
    z, share = 1.959964, hits / of
    middle = share + z * z / (2 * of)
    return (middle + z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))) / (1 + z * z / of)


async def held(world: World, url: str, runs: int, seed: int) -> list[Outcome]:
    """Hold the conversations, some at once, and return what came of each."""
    waiting = iter(range(runs))
    outcomes: list[Outcome] = []
    shown = time.monotonic()

    async def hold(http: httpx2.AsyncClient) -> None:
        nonlocal shown
        for number in waiting:
            outcomes.append(await Conversation(world, http, DIALECTS[number % len(DIALECTS)], seed + number).run())
            if time.monotonic() - shown > _PROGRESS_S:
                shown = time.monotonic()
                print(f"{len(outcomes)} of {runs} conversations", file=sys.stderr, flush=True)

    async with httpx2.AsyncClient(base_url=url, timeout=90) as http, asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(hold(http))
    return outcomes


def summed(outcomes: Sequence[Outcome], member: str) -> Counter[str]:
    """Return the counts by tier under one name, of all outcomes."""
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total.update(getattr(outcome, member))
    return total


def rows_of(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return a row for each kind of client and tier."""
    rows = []
    for dialect in DIALECTS:
        own = [one for one in outcomes if one.dialect == dialect]
        names = ("replies", "own", "own_due", "lost", "removed", "told")
        counts = {name: summed(own, name) for name in names}
        rows += [{"client": dialect, "tier": tier} | {name: counts[name][tier] for name in names} for tier in TIERS]
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Hold the conversations and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.conversations",
        description="Hold conversations that change tier, and count what is refused or lost.",
        epilog="Example: python -m tests.bench.conversations --runs 500 --seed 1",
    )
    parser.add_argument("--runs", type=int, default=500, help="conversations (default: 500)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first; each has its own (default: 1)")
    parser.add_argument("--json", action="store_true", help="print rows and totals as JSON")
    args = parser.parse_args(argv)
    with World() as world, local_store() as store, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_deployment(folder, world.deployment(store.url), world.policies())
        with running(folder, environment(CLAUDE_KEY=StrictMessages.KEY)) as gateway:
            outcomes = asyncio.run(held(world, gateway.origin, args.runs, args.seed))
        refusals = world.refusals()
    rows = rows_of(outcomes)
    wrong = [one for outcome in outcomes for one in outcome.wrong]
    replies = sum(row["replies"] for row in rows)
    refused = sum(outcome.refused for outcome in outcomes)
    totals = {
        "conversations": len(outcomes),
        "turns": sum(outcome.turns for outcome in outcomes),
        "replies": replies,
        "changes_of_tier": sum(outcome.changes for outcome in outcomes),
        "status_400": refused,
        "status_400_upper": upper_bound(refused, replies + refused),
        "refused_by_servers": len(refusals),
        "other_errors": len(wrong) - refused,
        "other_errors_upper": upper_bound(len(wrong) - refused, replies + refused),
        "stayed": sum(sum(outcome.stays) for outcome in outcomes),
        "stayed_of": sum(len(outcome.stays) for outcome in outcomes),
    }
    if args.json:
        print(json.dumps({"rows": rows, **totals, "wrong": wrong[:_SHOWN]}))
    else:
        _print(rows, totals)
        for one in [*wrong[:_SHOWN], *refusals[:_SHOWN]]:
            print(f"WRONG {one}")
    return 1 if wrong or refusals else 0


def _print(rows: Sequence[dict[str, Any]], totals: dict[str, Any]) -> None:
    print(f"{'client':15}{'answered by':13}{'replies':>8}{'own reasoning':>16}{'removed':>9}{'before':>8}{'told':>6}")
    print(f"{'':15}{'':13}{'':>8}{'back / due':>16}{'pieces':>9}{'replies':>8}")
    for row in rows:
        back = f"{row['own']:,} / {row['own_due']:,}"
        print(
            f"{row['client']:15}{row['tier']:13}{row['replies']:>8,}{back:>16}{row['lost']:>9,}"
            f"{row['removed']:>8,}{row['told']:>6,}"
        )
    print(
        f"\n{totals['conversations']:,} conversations, {totals['turns']:,} turns, {totals['replies']:,} replies, "
        f"{totals['changes_of_tier']:,} changes of tier\n"
        f"status 400: {totals['status_400']} (at most {totals['status_400_upper']:.3%} of replies, 95%); "
        f"refused by the servers: {totals['refused_by_servers']}\n"
        f"anything else wrong: {totals['other_errors']} (at most {totals['other_errors_upper']:.3%}, 95%)\n"
        f"requests to a surface with `reasoning_above` that started where they should: {totals['stayed']:,} of "
        f"{totals['stayed_of']:,}"
    )


if __name__ == "__main__":
    sys.exit(main())
