"""Share accounts out to workers: the store's side of the exchange, which `exchange.lua` does in the same way.

It serves a gateway without a store, and the tests of the machine. A worker says where it stands (`LeaseRequest`), under
a number that rises; one that comes late changes nothing. An account holds

    spent      of money: the sum of all charges, which only records move
    slots      of requests and tokens: what was used in each quarter of a second of the last minute
    leases     by worker: amount, what is held and expected of it, deadline, number, and all that it used so far

and grants so:

    what is kept        stays leased; of a lease that the store no longer knows, only what is under way
    what is needed      as much as fits, if the least that is of use fits: into the limit, of money into the limit and
                        one lease, if by expectation something of the limit is left
                        of money, what workers that have waited for longer need at least is kept for them
    what is welcome     a tenth of what is left at most, and nothing for a second after somebody got nothing
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.parts.access.quotas.accounts import Unit
from gateway.parts.access.quotas.machine import LIFE_S, LeaseReply, LeaseRequest

SLOT_MS: Final = 250
SLOTS: Final = 60_000 // SLOT_MS
PRESSED_MS: Final = 1000
GAP_MS: Final = 2500
"""Longer than workers that use anything are silent: the store was away, or its clock was set forward."""
TURN_MS: Final = 500
"""A worker that has not asked again for so long no longer waits."""
NAMES_AT_MOST: Final = 100_000
"""Most accounts of money of the end users, or sessions, of one key, team or tenant: clients choose their names."""
_BACK: Final = 4
"""Slots by which the clock may go back before the minute is counted anew from now."""
LIFE_MS: Final[dict[Unit, int]] = {unit: round(life_s * 1000) for unit, life_s in LIFE_S.items()}


@dataclass(slots=True)
class WorkerLease:
    """What one worker has of an account; `until` in milliseconds of the store's clock."""

    amount: int
    held: int
    expected: int
    until: int
    number: int
    used: int
    since: int = 0
    """Of money: since when it has waited for `least`; 0 if it does not wait."""
    least: int = 0
    silent: int = 0
    """The authority's `silent_ms` when `until` was set."""


@dataclass(slots=True)
class AccountState:
    """What the store holds of one account: what is spent, and each worker's lease."""

    spent: int = 0
    pressed_until: int = 0
    leases: dict[str, WorkerLease] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)


class Authority:
    """The store's side of leases, in Python: all accounts, and what each worker gets of them."""

    def __init__(self) -> None:
        self.accounts: dict[str, AccountState] = {}
        self.heard_at = self.silent_ms = 0
        """When the latest exchange was, and for how long in all there was none for more than `GAP_MS`."""
        self.may_go: dict[str, int] = {}
        """When accounts of money are no longer needed, in Unix milliseconds; 0 for never."""

    def charge(self, name: str, amount: int) -> None:
        """Add a charge in nanodollars to what is spent, as a record does; negative for a reset or a top-up."""
        self.accounts.setdefault(name, AccountState()).spent += amount

    def exchange(
        self, worker: str, number: int, requests: Sequence[tuple[str, LeaseRequest]], now: int
    ) -> list[LeaseReply]:
        """Return the reply for each account; `now` in milliseconds."""
        if self.heard_at and now - self.heard_at > GAP_MS:
            self.silent_ms += now - self.heard_at
        self.heard_at = now
        return [
            _exchange(self.accounts.setdefault(name, AccountState()), worker, number, request, now, self.silent_ms)
            for name, request in requests
        ]

    def forget(self, now: int, wall_now: int) -> None:
        """Forget accounts that may go, and those of which nothing is spent, used or leased."""
        for name, account in list(self.accounts.items()):
            leased = any(lease.until > now for lease in account.leases.values())
            gone = 0 < self.may_go.get(name, 0) <= wall_now
            if gone or not (leased or account.spent or _used(account, now)):
                del self.accounts[name]
                self.may_go.pop(name, None)
        names = defaultdict[str, list[str]](list)
        for name in self.accounts:
            if name.startswith(("user:", "session:")):
                names[name.partition("/")[0].rpartition(":")[0]].append(name)
        for owners in names.values():
            for name in owners[: max(0, len(owners) - NAMES_AT_MOST)]:
                del self.accounts[name]
                self.may_go.pop(name, None)


def _exchange(
    account: AccountState, worker: str, number: int, request: LeaseRequest, now: int, silent: int
) -> LeaseReply:
    last = now + LIFE_MS[request.unit]
    _end_leases(account, now, LIFE_MS[request.unit], silent)
    mine = account.leases.get(worker)
    late = mine is not None and number <= mine.number
    spent, reset_ms = account.spent, 0
    if request.unit in ("requests", "tokens"):
        added = 0 if late else request.used - (request.reported if mine is None else mine.used)
        spent = _used(account, now, max(added, 0))
        reset_ms = (max(account.slots) + SLOTS + 1) * SLOT_MS - now if account.slots else 0
    mine_held, mine_expected = request.held, request.expected
    since = mine.since if mine is not None else 0
    others = held = expected = before = 0
    for name, lease in account.leases.items():
        if name != worker:
            others, held, expected = others + lease.amount, held + lease.held, expected + lease.expected
            if 0 < lease.since < (since or now + 1) and lease.until > last - TURN_MS:
                before += lease.least
    pressed = now < account.pressed_until <= now + PRESSED_MS
    if mine is not None and late:
        return LeaseReply(mine.amount, spent, others, held, expected, int(pressed), 0, 0, reset_ms)
    amount = request.held if mine is None else max(request.kept, request.held)
    money, limit = request.unit == "usd", request.limit
    one_lease = limit // 10 if money else 0
    free = limit - spent - others - amount
    denied = retry_ms = 0
    if request.need <= 0:
        since = 0
    else:
        fits = not money or (
            spent < limit and (held + request.held == 0 or spent + expected + request.expected < limit)
        )
        most = free + max(one_lease, request.least) - before if money else free
        extra = min(request.need, most) if fits else 0
        if extra < max(request.least, 1):
            denied, pressed, account.pressed_until = 1, True, now + PRESSED_MS
            since = (since or now) if money else 0
            retry_ms = 0 if money else _until_free(account, request.least - free, now)
        else:
            amount, free = amount + extra, free - extra
            since = 0
            mine_held += extra
            mine_expected += request.need_expected if extra == request.need else request.least_expected
    if request.comfort > 0 and not pressed and free > 0:
        amount += min(request.comfort, free // 10)
    account.leases[worker] = WorkerLease(
        amount, mine_held, mine_expected, last, number, request.used, since, request.least if since else 0, silent
    )
    return LeaseReply(amount, spent, others, held, expected, int(pressed), denied, retry_ms, reset_ms)


def _end_leases(account: AccountState, now: int, life: int, silent: int) -> None:
    """End leases that are over. While no worker could exchange anything, none ran out, and none outlasts its life."""
    for name, lease in list(account.leases.items()):
        lease.until = min(lease.until + silent - lease.silent, now + life)  # the clock may have been set back
        lease.silent = silent
        if lease.until <= now:
            del account.leases[name]


def _used(account: AccountState, now: int, added: int = 0) -> int:
    """Return what was used in the last minute, `added` included, which counts from now on."""
    slots, slot = account.slots, now // SLOT_MS
    if slots and max(slots) > slot + _BACK:  # the clock was set back: count all of it from now
        total = sum(slots.values())
        slots.clear()
        slots[slot] = total
    for passed in [index for index in slots if index < slot - SLOTS]:
        del slots[passed]
    if added:
        slot = max(slot, *slots) if slots else slot
        slots[slot] = slots.get(slot, 0) + added
    return sum(slots.values())


def _until_free(account: AccountState, missing: int, now: int) -> int:
    """Return the milliseconds until so much of the minute's use has passed; 0 if it is not enough."""
    for index in sorted(account.slots):
        missing -= account.slots[index]
        if missing <= 0:
            return (index + SLOTS + 1) * SLOT_MS - now
    return 0
