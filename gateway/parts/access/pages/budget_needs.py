"""Say in words which budgets are spent, or run out before their windows end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cache.store.base import Store, StoreUnavailable
from gateway.parts.access.keys.budgets import BudgetStanding, OwnerBudgets
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused
from policies.quantities import NANO, dollars, percent

_NEARLY: Final = 0.9
"""Share of a budget from which it is told, whatever its pace."""
_AT_PACE: Final = 0.5
"""Share from which a budget is told that runs out before its window ends, at the pace until now."""
_SOON_S: Final = 86400.0
_MOST: Final = 5
_FRESH_S: Final = 15.0


class BudgetNeed(NamedTuple):
    """What is to be said of a budget: bad or warn, what it is, what to do about it, and the page that has more."""

    level: str
    what: str
    todo: str
    href: str


class BudgetWatch:
    """Read the budgets in use for the console's list of what needs attention, at most once in _FRESH_S seconds."""

    def __init__(self, store: Store) -> None:
        self._budgets, self._keys = OwnerBudgets(store), KeyRegistry(store)
        self._read_at, self._needs = -_FRESH_S, list[BudgetNeed]()

    async def needs(self) -> list[BudgetNeed]:
        """Return what is to be said of budgets; nothing while the store does not answer."""
        if time.monotonic() - self._read_at >= _FRESH_S:
            self._read_at, self._needs = time.monotonic(), []
            with contextlib.suppress(StoreUnavailable, KeysRefused):
                standings = await self._budgets.in_use()
                keys = [standing.account.owner for standing in standings if standing.account.kind == "key"][:200]
                self._needs = list(budget_needs(standings, await self._keys.names(keys), time.time()))
        return self._needs


def budget_needs(budgets: Sequence[BudgetStanding], names: Mapping[str, str], now_s: float) -> Iterator[BudgetNeed]:
    """Yield the budgets that are spent or run out, the most spent first; `names` are those of keys, by their ids."""
    needs = [need for standing in budgets if (need := _budget_need(standing, names, now_s)) is not None]
    yield from needs[:_MOST]
    if (more := len(needs) - _MOST) > 0:
        todo = "`tierline budgets show` lists them, the most spent first."
        yield BudgetNeed("warn", f"{more} more budgets are spent or run out.", todo, "/usage")


def _budget_need(standing: BudgetStanding, names: Mapping[str, str], now_s: float) -> BudgetNeed | None:
    account = standing.account
    if not account.limit or account.window is None:
        return None
    share, ends = standing.spent / account.limit, account.ends
    whose = f"{account.kind} {account.owner}"
    if account.kind == "key" and account.owner in names:
        whose = f"key {names[account.owner]} ({account.owner})"
    of = f"{dollars(standing.spent / NANO)} of {dollars(account.limit / NANO)}"
    per = "in all" if account.budget is None or account.budget.per == "total" else f"a {account.budget.per}"
    until = "" if ends is None else f" until {datetime.fromtimestamp(ends, UTC):%Y-%m-%d %H:%M} UTC"
    todo = "Raise it, or top it up: `tierline budgets topup`. See what it was spent on."
    href = f"/usage?{account.kind}={account.owner}"
    if share >= 1:
        what = f"The budget of {whose} is spent: {of} {per}; its requests are refused{until}."
        return BudgetNeed("bad", what, todo, href)
    runs_out = None
    if ends is not None and now_s > account.window.begins and standing.spent:
        runs_out = now_s + (account.limit - standing.spent) / (standing.spent / (now_s - account.window.begins))
    soon = runs_out is not None and ends is not None and share >= _AT_PACE and runs_out < min(ends, now_s + _SOON_S)
    if share < _NEARLY and not soon:
        return None
    at = ""
    if runs_out is not None and ends is not None and runs_out < ends:
        at = f", and is spent by about {datetime.fromtimestamp(runs_out, UTC):%Y-%m-%d %H:%M} UTC at this pace"
    return BudgetNeed("warn", f"The budget of {whose} runs out: {of} {per} ({percent(share, 0)}){at}.", todo, href)
