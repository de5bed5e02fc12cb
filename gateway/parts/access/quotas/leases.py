"""Hold one worker's requests to their accounts: by what it has leased of each, with one exchange for all of them.

In the store, in the slot of the stream of records:

    {tierline:traces}:quota:<account>          hash: `spent`, `limit`: nanodollars; `pressed`; `w:<worker>`, leases
    {tierline:traces}:quota:<account>:slots    hash, of requests and tokens: what was used, by quarter of a second
    {tierline:traces}:quotas:clock             when the latest exchange was, and for how long there was none
    {tierline:traces}:quotas                   sorted set: accounts of money, by when they may go (+inf: never)

`spent` is moved by the script that appends records to the stream, `HINCRBY <key> spent <nanodollars>` in the same step
as the record, and by nothing else; a reset and a top-up are records too, with a negative charge. All other fields are
moved by `exchange.lua` and by nothing else. What a worker has settled stays in its lease until the record is written
(`written`), so a charge is counted as leased, as spent, or for a moment as both, and never as neither.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cache.store.base import Command, NoStore, Store, StoreUnavailable
from gateway.parts.access.quotas.accounts import CLIENTS_KEPT_MS, ENDLESS, Account
from gateway.parts.access.quotas.authority import LIFE_MS, Authority
from gateway.parts.access.quotas.machine import (
    DRY,
    EXHAUSTED,
    FULL,
    GRANTED,
    HELD,
    MINUTE_S,
    RETRY_S,
    AccountLease,
    LeaseReply,
    LeaseRequest,
    OwnCount,
    WaitingRequest,
)
from gateway.parts.access.quotas.spent_copies import SpentCopies
from gateway.telemetry.ledger import ACCOUNT_PREFIX

EXCHANGE_S: Final = 0.2
"""Time between two exchanges of what changed, where no request waits for one."""
PATIENCE_S: Final = 10.0
"""Longest wait for the last of a budget, of which other requests hold what they can cost at most."""
_ENDS: Final = b"{tierline:traces}:quotas"
_CLOCK: Final = b"{tierline:traces}:quotas:clock"
SCRIPT: Final = Path(__file__).with_name("exchange.lua").read_bytes()
_LIMIT_S: Final = 0.25
_ALONE_AFTER_S: Final = 2 * _LIMIT_S
"""How long the store does not answer before this worker lets requests in by its own count."""
_MOST: Final = 64
"""Accounts in one script call: it keeps the store from others for 2 ms at most."""
_MINUTE_MS: Final = 120_000
_KEPT_MS: Final = 7 * 86_400_000
"""How long a counter of money stays after its window: records of requests that began in it may be late."""
_UNSEEN_MS: Final = 90 * 86_400_000
"""How long the counter of an end user or a session without a window stays after its latest exchange."""
_FORGET_S: Final = 60.0
_SOON_S: Final = 0.5
"""Longest wait for money that requests hold which have just ended, before others know that."""
_OTHERS_PATIENCE_S: Final = 1.5
"""Longest wait for what other workers have leased and do not use; of money it is the caller's."""
WhenDown = Literal["open", "closed"]


class Demand(NamedTuple):
    """What one request is to be let in for: 1 of each account of requests, and so much of the others."""

    tokens: int = 0
    """Tokens of the prompt and those expected of the answer."""
    expected: int = 0
    """Nanodollars that the request costs on average: what must fit into a budget."""
    reserved: int = 0
    """Nanodollars that nine of ten such requests do not exceed: what its lease must cover. At least `expected`."""
    worst: int = 0
    """Nanodollars that it costs at most: what its lease must cover where a budget is nearly spent."""


class Standing(NamedTuple):
    """How an account stands, as far as this worker knows: in nanodollars, tokens or requests."""

    limit: int
    used: int
    """What is spent, and what requests under way hold."""
    left: int
    reset_s: float
    """Seconds until all of it is free again: the window's end, a minute after the latest use, 0 if nothing is used."""


class Refusal(NamedTuple):
    """Why a request is refused or has to wait, with the account that has the least room for it."""

    account: Account
    why: Literal["exhausted", "limit", "held", "store"]
    """`exhausted`: its money is spent. `limit`: too many requests or tokens. `held`: others hold what is left of the
    money. `store`: the store does not answer, and the lease does not suffice."""
    retry_after_s: float
    standing: Standing


Renewed = Callable[[], Awaitable[Sequence[Account]]]
_Held = tuple[AccountLease, int, int]
"""The lease of an account, what a request probably uses of it, and what its lease must cover."""


@dataclass(slots=True)
class Entered:
    """What one request holds of its accounts. Settle it exactly once, whatever becomes of the request."""

    accounts: tuple[Account, ...]
    held: tuple[_Held, ...]
    open: bool = True


def freed(worker: str, accounts: Iterable[str]) -> list[Command]:
    """Return the commands that delete a dead worker's leases of these accounts, once its charges are settled."""
    return [Command((b"HDEL", (ACCOUNT_PREFIX + name).encode(), f"w:{worker}".encode())) for name in accounts]


class QuotaLeases:
    """The leases of one worker. Close it after use."""

    def __init__(
        self,
        store: Store,
        *,
        when_down: WhenDown = "open",
        copies: SpentCopies | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Exchange with `store`; without one (`NoStore`) this process counts alone, and all is known at once.

        While the store does not answer, requests and tokens go on beyond their leases if `when_down` is `open`, by this
        worker's own count (`OwnCount`), and money up to what is leased, beyond the lease's deadline too; if it is
        `closed`, all ends with the leases.
        """
        self.down = ""
        """Why the store did not answer the last exchange; '' if it did."""
        self.on_spent: Callable[[Account, int], None] = lambda account, spent: None
        """Called with what is spent of a budget, whenever the store has said so."""
        self._down_since = 0.0
        self._own_counts: dict[str, OwnCount] = {}
        """What is counted here alone, by account, until the store answers again."""
        self._used_lately: dict[str, AccountLease] = {}
        """Of accounts that nothing is leased of any more: what the store said last, for a minute."""
        self._store = store
        self.copies = copies
        """What is given back to a store that has lost its data; None where nothing is."""
        self._alone = Authority() if isinstance(store, NoStore) else None
        self._open = when_down == "open"
        self._clock = clock
        self._wall_clock = wall_clock
        self.worker = secrets.token_hex(8)
        """Name under which this worker has leases, and notes in its journal what it has not written (`freed`)."""
        self._number = 0
        self._leases: dict[str, AccountLease] = {}
        self._accounts: dict[str, Account] = {}
        self._wakes: dict[asyncio.Future[None], None] = {}
        self._turns = itertools.count(1)
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._forget_at = 0.0

    def enter(self, accounts: Sequence[Account], demand: Demand) -> Entered | None:
        """Let a request in if what is leased suffices for all of its accounts, without waiting; else return None."""
        now = self._clock()
        entries = [self._entry(account, demand) for account in accounts]
        short = False
        for lease, expected, needed in entries:
            if lease.money and lease.waiting:
                return None  # those that wait come first
            short = short or lease.check(expected, needed, now) != GRANTED
        if short and (self._alone is None or not self._let_in_alone(self._alone, accounts, entries, now)):
            return None
        return self._take(accounts, entries, now)

    async def wait(
        self,
        accounts: Sequence[Account],
        demand: Demand,
        patience_s: float = PATIENCE_S,
        renewed: Renewed | None = None,
    ) -> Entered | Refusal:
        """Let a request in after as many exchanges as it takes, at most `patience_s` where others hold the money.

        Requests that wait for money are let in in the order in which they came. `renewed` returns the accounts by the
        limits of now, and may raise: a limit may change while a request waits.
        """
        began, turn = self._clock(), next(self._turns)
        joined: list[tuple[AccountLease, WaitingRequest]] = []
        try:
            while True:
                now = self._clock()
                entries = [self._entry(account, demand) for account in accounts]
                if self._alone is not None and not any(_is_behind(lease, turn) for lease, _, _ in entries):
                    self._let_in_alone(self._alone, accounts, entries, now)
                obstacles = self._obstacles(accounts, entries, turn, began, patience_s)
                if isinstance(obstacles, Refusal):
                    return obstacles
                waiting, pause_s = obstacles
                if not waiting:
                    return self._take(accounts, entries, now)
                _leave(joined)
                joined = _join(waiting)
                until = began + (_SOON_S if now < began + _SOON_S else patience_s)
                await self._changed(min(pause_s, max(until - now, 0.001)))
                if renewed is not None:
                    accounts = await renewed()
        finally:
            _leave(joined)
            if joined:
                for lease, _ in joined:
                    lease.dirty = True  # the store is to know that nobody waits
                self._urgent.set()
                self._wake()

    def _obstacles(
        self, accounts: Sequence[Account], entries: Sequence[_Held], turn: int, began: float, patience_s: float
    ) -> Refusal | tuple[list[tuple[AccountLease, WaitingRequest]], float]:
        """Return where a request that came at `began` has to wait, and for how long; or why it is not let in."""
        now, pause_s = self._clock(), EXCHANGE_S
        waiting: list[tuple[AccountLease, WaitingRequest]] = []
        for account, (lease, expected, needed) in zip(accounts, entries, strict=True):
            verdict = lease.check(expected, needed, now)
            if verdict == GRANTED and not (lease.waiting and _is_behind(lease, turn)):
                continue
            request = WaitingRequest(expected, needed, turn)
            if verdict == GRANTED:
                waiting.append((lease, request))
                continue
            if verdict == DRY and not lease.money and self._counts_alone(now):
                if self._own_count(account.name, lease).fits(lease, needed, now):
                    continue
                verdict = FULL
            is_old = verdict == HELD and lease.heard_at < began and not self.down  # what it says is of before
            if not is_old and (refusal := self._refusal(account, lease, request, verdict, now - began, patience_s)):
                return refusal
            if (verdict == DRY and not self.down) or is_old:
                self._urgent.set()
            else:
                pause_s = RETRY_S
            waiting.append((lease, request))
        return waiting, pause_s

    def settle(self, entered: Entered, tokens: int = 0, charged: int = 0) -> None:
        """Replace what a request held by what it used; a second call does nothing.

        `charged` nanodollars stay in the lease until `written` says that their record is.
        """
        if not entered.open:
            return
        entered.open = False
        for account, (lease, expected, worst) in zip(entered.accounts, entered.held, strict=True):
            if lease.unit == "requests":
                continue
            lease.settle(expected, worst, charged if lease.money else tokens)
            if lease.money and self._alone is not None:
                self._alone.charge(account.name, charged)
                lease.written(charged)
            if lease.pressed or (lease.money and lease.is_tight):
                self._urgent.set()
            if lease.waiting:
                self._wake()
        self._tend()

    def written(self, charges: Iterable[tuple[str, int]]) -> None:
        """Say that the store has added these nanodollars to the accounts of these names, with their records."""
        for name, amount in charges if self._alone is None else ():
            if (lease := self._leases.get(name)) is not None:
                lease.written(amount)
        self._tend()

    def adjusted(self, account: str, amount: int) -> None:
        """Add nanodollars to an account, of a gateway without a store: negative for a reset or a top-up."""
        if self._alone is not None:
            self._alone.charge(account, amount)

    def standing(self, account: Account, lease: AccountLease | None = None) -> Standing:
        """Return how an account stands; by `lease`, which the request has entered, where it is known no more."""
        lease = self._leases.get(account.name, lease)
        used = 0 if lease is None else max(lease.used, 0)
        if account.window is not None:
            reset_s = max(account.window.ends - self._wall_clock(), 0.0)
        else:
            reset_s = max(lease.free_at - self._clock(), 0.0) if used and lease is not None else 0.0
        return Standing(account.limit, used, max(account.limit - used, 0), reset_s)

    def tightest(self, accounts: Sequence[Account]) -> tuple[float, Account]:
        """Return the largest share of these budgets, at least one, that is spent or held by requests under way, and
        whose it is. 1 is all of it; of one that this worker has not heard of it is 0 (see `look`)."""
        shares = []
        for account in accounts:
            lease = self._leases.get(account.name)
            used = 0 if lease is None else lease.used
            shares.append(used / account.limit if account.limit else 1.0)
        most = max(shares)
        return most, accounts[shares.index(most)]

    async def look(self, accounts: Sequence[Account], *, anew: bool = False) -> None:
        """Ask how these budgets stand, unless this worker knows; or have it asked `anew` with the next exchange."""
        if anew or not all(account.name in self._leases for account in accounts):
            taken = await self.wait(accounts, Demand(), 0.0)
            if isinstance(taken, Entered):
                self.settle(taken)

    async def start(self) -> None:
        """Start to keep copies of what is spent."""
        if self.copies is not None and self._alone is None:
            await self.copies.start()

    async def aclose(self) -> None:
        """Give all leases back to the store, and stop."""
        if self.copies is not None:
            await self.copies.aclose()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for lease in self._leases.values():
            lease.give_back()
        await self._exchange_all(list(self._leases.items()))

    def _entry(self, account: Account, demand: Demand) -> _Held:
        lease = self._leases.get(account.name)
        if lease is None:
            lease = self._leases[account.name] = AccountLease(account.unit, account.limit)
            if (before := self._used_lately.pop(account.name, None)) is not None:
                lease.recall(before)
            self._accounts[account.name] = account
        elif lease.limit != account.limit:
            lease.change_limit(account.limit)
        if lease.money:
            return lease, demand.expected, demand.worst if lease.is_nearly_spent else demand.reserved
        if account.unit == "tokens":  # a request of more than a minute's tokens gets in when the minute is free
            tokens = min(demand.tokens, account.limit)
            return lease, tokens, tokens
        return lease, 1, 1

    def _take(self, accounts: Sequence[Account], held: list[_Held], now: float) -> Entered:
        for lease, expected, worst in held:
            lease.take(expected, worst, now)
            if lease.unit == "requests":  # it counts from its beginning, however long it takes
                lease.settle(1, 1, 1)
        self._tend()
        return Entered(tuple(accounts), tuple(held))

    def _refusal(
        self,
        account: Account,
        lease: AccountLease,
        request: WaitingRequest,
        verdict: int,
        waited_s: float,
        patience_s: float,
    ) -> Refusal | None:
        """Return why a request that is not let in need not wait any longer; None if it should."""
        standing = self.standing(account)
        if verdict == EXHAUSTED:
            return Refusal(account, "exhausted", standing.reset_s, standing._replace(used=lease.known))
        if verdict == FULL:
            return Refusal(account, "limit", max(lease.retry_at - self._clock(), RETRY_S), standing)
        if verdict == HELD and lease.money:
            ahead = [other for other in lease.waiting if other.turn < request.turn]
            if lease.known >= lease.limit and waited_s >= min(patience_s, _OTHERS_PATIENCE_S):
                return Refusal(account, "exhausted", standing.reset_s, standing._replace(used=lease.known))
            is_over = waited_s >= _SOON_S and not lease.is_worth_waiting(request.needed, ahead)
            if is_over or waited_s >= patience_s:
                return Refusal(account, "held", 1.0, standing)
        elif verdict == HELD and waited_s >= min(patience_s, _OTHERS_PATIENCE_S):
            return Refusal(account, "limit", 1.0, standing)
        # A store that was slow for once is asked again, before this worker counts alone too.
        least_s = 2 * _LIMIT_S if lease.money or not self._open else 2 * _ALONE_AFTER_S
        if verdict == DRY and waited_s >= (min(patience_s, least_s) if self.down else max(patience_s, least_s)):
            return Refusal(account, "held" if lease.money and not self.down else "store", 1.0, standing)
        return None

    def _counts_alone(self, now: float) -> bool:
        """Return whether requests are let in by this worker's own count: not because one exchange was slow."""
        return bool(self.down) and self._open and now >= self._down_since + _ALONE_AFTER_S

    def _own_count(self, name: str, lease: AccountLease) -> OwnCount:
        if (count := self._own_counts.get(name)) is None:
            count = self._own_counts[name] = OwnCount(lease)
        return count

    async def _changed(self, pause_s: float) -> None:
        """Wait until an exchange or a settlement may have made room, `pause_s` at most."""
        wake = asyncio.get_running_loop().create_future()
        self._wakes[wake] = None
        self._tend()
        try:
            await asyncio.wait((wake,), timeout=pause_s)
        finally:
            del self._wakes[wake]

    def _wake(self) -> None:
        for wake in self._wakes:
            if not wake.done():
                wake.set_result(None)

    def _tend(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._exchange_while_used(), name="tierline.quotas")

    async def _exchange_while_used(self) -> None:
        try:
            while self._leases:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EXCHANGE_S):
                        await self._urgent.wait()
                self._urgent.clear()
                now = self._clock()
                due = [(name, lease) for name, lease in self._leases.items() if lease.waiting or lease.is_due(now)]
                await self._exchange_all(due)
                for name in [name for name, lease in self._leases.items() if lease.is_done]:
                    if (lease := self._leases.pop(name)).spent and not lease.money:
                        self._used_lately[name] = lease
                    del self._accounts[name]
                while (name := next(iter(self._used_lately), "")) and self._used_lately[name].heard_at < now - MINUTE_S:
                    del self._used_lately[name]
                if self._alone is not None and now >= self._forget_at:
                    self._alone.forget(self._now_ms(), int(self._wall_clock() * 1000))
                    self._forget_at = now + _FORGET_S
        finally:
            self._task = None

    def _let_in_alone(self, alone: Authority, accounts: Sequence[Account], held: Sequence[_Held], now: float) -> bool:
        """Exchange with this process's own authority for what is not let in; return whether all is, then."""
        for account, (lease, expected, needed) in zip(accounts, held, strict=True):
            if lease.check(expected, needed, now) == DRY:
                joined = _join([(lease, WaitingRequest(expected, needed, 0))])
                self._exchange_alone(alone, [(account.name, lease)])
                _leave(joined)
        return all(lease.check(expected, worst, now) == GRANTED for lease, expected, worst in held)

    async def _exchange_all(self, due: Sequence[tuple[str, AccountLease]]) -> None:
        for first in range(0, len(due), _MOST):
            await self._exchange(due[first : first + _MOST])

    async def _exchange(self, due: Sequence[tuple[str, AccountLease]]) -> None:
        """Tell the store of these accounts in one script call. Raises nothing."""
        if self._alone is not None:
            self._exchange_alone(self._alone, due)
        elif due:
            now, self._number = self._clock(), self._number + 1
            requests = [(name, lease.send(now)) for name, lease in due]
            try:
                replies = await self._asked(self.worker, self._number, requests, self._accounts)
            except StoreUnavailable as error:
                if not self.down:
                    self._down_since = self._clock()
                self.down = error.reason
                for _, lease in due:
                    lease.failed(lasting=self._open)
            else:
                self.down = ""
                self._own_counts.clear()
                back = await self._given_back(due, replies)
                for (name, lease), reply in zip(due, replies, strict=True):
                    lease.heard(reply._replace(spent=back[name]) if name in back else reply, self._clock())
                    if lease.money:
                        self.on_spent(self._accounts[name], lease.spent)
        self._wake()

    async def _given_back(
        self, due: Sequence[tuple[str, AccountLease]], replies: Sequence[LeaseReply]
    ) -> dict[str, int]:
        """Return what is spent of accounts of which the store had lost that."""
        if self.copies is None:
            return {}
        said = {
            name: (reply.spent, lease.spent + lease.written_since, self._may_go_ms(self._accounts[name]))
            for (name, lease), reply in zip(due, replies, strict=True)
            if lease.money
        }
        return await self.copies.compared(said) if said else {}

    async def _asked(
        self, worker: str, number: int, requests: Sequence[tuple[str, LeaseRequest]], accounts: Mapping[str, Account]
    ) -> list[LeaseReply]:
        keys, words = [_ENDS, _CLOCK], [worker.encode(), b"%d" % number, b""]
        for name, request in requests:
            key = f"{ACCOUNT_PREFIX}{name}".encode()
            keys += (key, key + b":slots")
            words.append(request.unit.encode())
            words += [b"%d" % figure for figure in request[1:]]
            words += (b"%d" % LIFE_MS[request.unit], b"%d" % _MINUTE_MS, b"%d" % self._may_go_ms(accounts[name]))
        [flat] = await self._store.ask([Command((b"EVAL", SCRIPT, b"%d" % len(keys), *keys, *words))], _LIMIT_S)
        width = len(LeaseReply._fields)
        return [LeaseReply(*flat[first : first + width]) for first in range(0, len(flat), width)]

    def _exchange_alone(self, alone: Authority, due: Sequence[tuple[str, AccountLease]]) -> None:
        now, self._number = self._clock(), self._number + 1
        requests = [(name, lease.send(now)) for name, lease in due]
        replies = alone.exchange(self.worker, self._number, requests, self._now_ms())
        for (name, lease), reply in zip(due, replies, strict=True):
            lease.heard(reply, now)
            if lease.money:
                self.on_spent(self._accounts[name], lease.spent)
                alone.may_go[name] = self._may_go_ms(self._accounts[name])

    def _may_go_ms(self, account: Account) -> int:
        """Return when the counter of an account may go, in Unix milliseconds; 0 for never."""
        if account.window is not None and account.window.ends != ENDLESS:
            named_by_client = account.kind in ("user", "session")
            return int(account.window.ends * 1000) + (CLIENTS_KEPT_MS if named_by_client else _KEPT_MS)
        return int(self._wall_clock() * 1000) + _UNSEEN_MS if account.kind in ("user", "session") else 0

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


_BY_TURN: Final = attrgetter("turn")


def _join(waiting: Sequence[tuple[AccountLease, WaitingRequest]]) -> list[tuple[AccountLease, WaitingRequest]]:
    """Have a request wait for these leases, each in its turn."""
    for lease, request in waiting:
        bisect.insort(lease.waiting, request, key=_BY_TURN)
    return list(waiting)


def _leave(joined: Sequence[tuple[AccountLease, WaitingRequest]]) -> None:
    for lease, request in joined:
        lease.waiting.remove(request)


def _is_behind(lease: AccountLease, turn: int) -> bool:
    """Return whether a request that came before the one of this turn waits for the money of this lease."""
    return lease.money and bool(lease.waiting) and lease.waiting[0].turn < turn
