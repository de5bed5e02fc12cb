"""Say in words what runs out or does not stay up: budgets, providers' rate limits, processes and tiers that restart."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cache.store.base import Store, StoreUnavailable
from gateway.parts.access.keys.budgets import BudgetStanding, OwnerBudgets
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused
from gateway.parts.console.standing import Need, StandingMark
from gateway.telemetry.child_ends import ends_of
from policies.quantities import NANO, dollars, percent

_NEARLY: Final = 0.9
"""Share of a budget from which it is told, whatever its pace."""
_AT_PACE: Final = 0.5
"""Share from which a budget is told that runs out before its window ends, at the pace until now."""
_SOON_S: Final = 86400.0
_MOST: Final = 5
_FRESH_S: Final = 15.0
_OFTEN: Final = 3
_LATELY_S: Final = 900.0
_FELL: Final = 0.5
_REMEMBERED_S: Final = 86400.0
_UNITS: Final = {"requests": "requests", "tokens_in": "input tokens", "tokens_out": "output tokens"}


class BudgetWatch:
    """Read the budgets in use, each _FRESH_S seconds at most."""

    def __init__(self, store: Store) -> None:
        self._budgets, self._keys = OwnerBudgets(store), KeyRegistry(store)
        self._read_at, self._needs = -_FRESH_S, list[Need]()

    async def needs(self) -> list[Need]:
        """Return what is to be said of budgets; nothing while the store does not answer."""
        if time.monotonic() - self._read_at >= _FRESH_S:
            self._read_at, self._needs = time.monotonic(), []
            with contextlib.suppress(StoreUnavailable, KeysRefused):
                standings = await self._budgets.in_use()
                keys = [standing.account.owner for standing in standings if standing.account.kind == "key"][:200]
                self._needs = list(budget_needs(standings, await self._keys.names(keys), time.time()))
        return self._needs


def budget_needs(budgets: Sequence[BudgetStanding], names: Mapping[str, str], now_s: float) -> Iterator[Need]:
    """Yield the budgets that are spent or run out, the most spent first; `names` are those of keys, by their ids."""
    needs = [need for standing in budgets if (need := _budget_need(standing, names, now_s)) is not None]
    yield from needs[:_MOST]
    if (more := len(needs) - _MOST) > 0:
        todo = "`tierline budgets show` lists them, the most spent first."
        yield Need("warn", f"{more} more budgets are spent or run out.", None, todo, "/usage")


def _budget_need(standing: BudgetStanding, names: Mapping[str, str], now_s: float) -> Need | None:
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
        return Need("bad", what, None, todo, href)
    runs_out = None
    if ends is not None and now_s > account.window.begins and standing.spent:
        runs_out = now_s + (account.limit - standing.spent) / (standing.spent / (now_s - account.window.begins))
    soon = runs_out is not None and ends is not None and share >= _AT_PACE and runs_out < min(ends, now_s + _SOON_S)
    if share < _NEARLY and not soon:
        return None
    at = ""
    if runs_out is not None and ends is not None and runs_out < ends:
        at = f", and is spent by about {datetime.fromtimestamp(runs_out, UTC):%Y-%m-%d %H:%M} UTC at this pace"
    return Need("warn", f"The budget of {whose} runs out: {of} {per} ({percent(share, 0)}){at}.", None, todo, href)


class LimitWatch:
    """Remember the highest rate limit that each backend's provider allowed, and say where it allows much less now."""

    def __init__(self) -> None:
        self._highest: dict[tuple[str, str], tuple[float, float]] = {}
        self._fell: dict[tuple[str, str], float] = {}

    def needs(self, tiers: Mapping[str, Mapping[str, Any]], now_s: float) -> Iterator[Need]:
        """Yield the limits that fell, by `tiers` of `/readyz`."""
        for tier, state in tiers.items():
            for backend, own in state["backends"].items():
                for unit, limit in (own.get("headroom") or {}).items():
                    if not (of := limit.get("of")):
                        continue
                    key = backend, unit
                    highest, at = self._highest.get(key, (0.0, 0.0))
                    if of >= highest or now_s - at > _REMEMBERED_S:
                        self._highest[key] = of, now_s
                    if of > _FELL * self._highest[key][0]:
                        self._fell.pop(key, None)
                        continue
                    since = self._fell.setdefault(key, now_s)
                    what = (
                        f"The provider of backend {backend} of tier {tier} allows {of:,.0f} {_UNITS[unit]} a minute, "
                        f"where it allowed {self._highest[key][0]:,.0f}."
                    )
                    todo = "Look at the account's tier and bills there, or add a backend."
                    yield Need("warn", what, since, todo, "/requests?is=failed")


def child_needs(logs: Path | None, now_s: float) -> Iterator[Need]:
    """Yield the processes of `tierline up` that end again and again, by what their supervisor notes beside its logs."""
    for child, ends in ends_of(logs).items() if logs is not None else ():
        late = [(at, how) for at, how in ends if now_s - at <= _LATELY_S]
        if len(late) < _OFTEN:
            continue
        name = "The local model" if child == "local" else f"The process {child}"
        often = f"{len(late)} times in the last {_LATELY_S / 60:.0f} min"
        what = f"{name} ended {often}: it {late[-1][1]}, and is started again."
        todo = f"See {logs / f'{child}.log' if logs else child}: memory, the model's file, its context and slots."
        yield Need("bad", what, late[0][0], todo, "/requests?is=failed")


def flapping(marks: Sequence[StandingMark], now_s: float, span_s: float) -> Iterator[Need]:
    """Yield the tiers that went down again and again within a span, however short each time was."""
    downs: dict[str, list[StandingMark]] = {}
    for mark in marks:
        if mark.kind == "breaker" and " went down: " in mark.text and now_s - mark.at_s <= span_s:
            downs.setdefault(mark.text.partition(" went down: ")[0], []).append(mark)
    for tier, own in downs.items():
        times = sorted({mark.at_s for mark in own})
        if len(times) < _OFTEN:
            continue
        why = max(own, key=lambda mark: mark.at_s).text.partition(" went down: ")[2]
        what = f"{tier[0].upper()}{tier[1:]} went down {len(times)} times: {why}."
        todo = "It comes back each time. Look at its backends' log and memory."
        yield Need("warn", what, times[0], todo, "/requests?is=failed")
