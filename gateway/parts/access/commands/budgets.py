"""Run `tierline budgets show | reset | topup`: how budgets stand, and an operator's changes of what counts as spent."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, get_args

from gateway.cli.flags import Subparsers, add_command, add_json_flag
from gateway.cli.store_flags import add_store_flags, with_store
from gateway.exit_codes import Exit
from gateway.parts.access.author import add_author_flag, author_of
from gateway.parts.access.keys.budgets import BudgetStanding, Owned, OwnerBudgets, owner_named, terms_in
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused, Why
from gateway.parts.access.quotas.terms import Per
from gateway.report import NONE, WIDE, Report, printable, show, table
from policies.quantities import NANO, dollars, percent

if TYPE_CHECKING:
    from cache.store.redis_store import RedisStore
    from gateway.parts.access.keys.records import KeyRecord
    from gateway.parts.access.quotas.terms import Terms


def add_parser(subparsers: Subparsers) -> None:
    """Add `budgets` to the command line."""
    actions = add_command(subparsers, "budgets").add_subparsers(dest="action", metavar="ACTION", required=True)
    shown = add_command(actions, "budgets show")
    shown.add_argument("owner", type=_owner, nargs="?", metavar="OWNER")
    for action in ("reset", "topup"):
        parser = add_command(actions, f"budgets {action}")
        parser.add_argument("owner", type=_owner, metavar="OWNER")
        if action == "reset":
            parser.add_argument("--to", type=_dollars, default=0.0, metavar="USD")
        else:
            parser.add_argument("usd", type=_dollars, metavar="USD")
        parser.add_argument("--per", choices=get_args(Per))
        parser.add_argument("-m", "--message", required=True, metavar="WHY", help="why, for the audit trail")
        add_author_flag(parser)
    for parser in actions.choices.values():
        add_json_flag(parser)
        add_store_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the action. Raises CommandError and ConfigError."""
    configured = {}
    if args.config:
        from gateway.config.loader import load_deployment  # slow to import

        configured = terms_in(load_deployment(args.config, reads=True))
    budgets, keys = with_store(args, lambda store: _done_and_named(store, configured, args), KeysRefused)
    show(_report(budgets, keys), as_json=args.json)
    return Exit.OK


async def _done_and_named(
    store: RedisStore, configured: Mapping[Owned, Terms], args: argparse.Namespace
) -> tuple[Sequence[BudgetStanding], Mapping[str, KeyRecord]]:
    """Do what is asked for; return the budgets, and the keys whose they are by id."""
    budgets = await _done(OwnerBudgets(store, configured), args)
    ids = sorted({budget.account.owner for budget in budgets if budget.account.kind == "key"})
    return budgets, await KeyRegistry(store).of_ids(ids)


async def _done(budgets: OwnerBudgets, args: argparse.Namespace) -> Sequence[BudgetStanding]:
    if args.action == "show":
        return await (budgets.every() if args.owner is None else budgets.of(args.owner))
    why = Why(author_of(args), args.message)
    if args.action == "reset":
        return await budgets.reset(args.owner, args.to, args.per, why)
    return await budgets.top_up(args.owner, args.usd, args.per, why)


def _owner(text: str) -> Owned:
    try:
        return owner_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _dollars(text: str) -> float:
    try:
        usd = float(text.removeprefix("$"))
    except ValueError:
        usd = -1.0
    if not 0 <= usd < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of US dollars, such as 25 or 0.5")
    return usd


def _report(budgets: Sequence[BudgetStanding], keys: Mapping[str, KeyRecord]) -> Report:
    rows = table("owner", "name", "surfaces", "window", "budget", "spent", "share", "reserved", "ends (UTC)", left=4)
    for budget in budgets:
        account = budget.account
        key = keys.get(account.owner) if account.kind == "key" else None
        ends = NONE if account.ends is None else datetime.fromtimestamp(account.ends, UTC).strftime("%Y-%m-%d %H:%M")
        rows.add_row(
            printable(f"{account.kind}:{account.owner}"),
            printable(key.name) if key is not None and key.name else NONE,
            NONE if key is None else printable(", ".join(key.surfaces)) or "all",
            account.window.name if account.window else NONE,
            dollars(account.limit / NANO),
            dollars(budget.spent / NANO),
            percent(budget.spent / account.limit) if account.limit else NONE,
            dollars(budget.reserved / NANO),
            ends,
        )
    lines = (
        [rows] if budgets else ["Nobody has a budget. `tierline keys create --budget 25/month` makes a key with one."]
    )
    shown = [
        budget.shown() | ({"name": key.name, "surfaces": list(key.surfaces)} if key is not None else {})
        for budget in budgets
        for key in (keys.get(budget.account.owner) if budget.account.kind == "key" else None,)
    ]
    return Report({"budgets": shown}, lines, width=WIDE)
