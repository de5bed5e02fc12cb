"""Hold one worker's requests to their accounts: by what it has leased of each, with one exchange for all of them.

In the store, in the slot of the stream of records:

    {tierline:traces}:quota:<account>          hash: `spent`, nanodollars, of accounts of money; a field for the lease
                                               of each worker; of the others' slots of a minute a hash beside it
    {tierline:traces}:quotas                   sorted set: accounts of money, by when they may go

`spent` is moved by the script that appends records to the stream, `HINCRBY <key> spent <nanodollars>` in the same step
as the record, and by nothing else; a reset and a top-up are records too, with a negative charge. All other fields are
moved by `exchange.lua` and by nothing else. What a worker has settled stays in its lease until the record is written
(`written`), so a charge is counted as leased, as spent, or for a moment as both, and never as neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from cache.store.base import Store
from gateway.quotas.accounts import Account

ACCOUNT_PREFIX: Final = "{tierline:traces}:quota:"
"""Prefix of the key of an account in the store, in the slot of the stream of records."""
WhenDown = Literal["open", "closed"]


class Demand(NamedTuple):
    """What one request is to be let in for: 1 of each account of requests, and so much of the others."""

    tokens: int = 0
    """Tokens of the prompt and those expected of the answer."""
    expected: int = 0
    """Nanodollars that the request will probably cost: what must fit into a budget."""
    worst: int = 0
    """Nanodollars that it costs at most: what its lease must cover. At least `expected`."""


class Standing(NamedTuple):
    """How an account stands, as far as this worker knows: in nanodollars, tokens or requests."""

    limit: int
    used: int
    """What is spent, and what requests under way hold."""
    left: int
    reset_s: float
    """Seconds until all of it is free again: the window's end, a minute, 0 if nothing is used."""


class Refusal(NamedTuple):
    """Why a request is not let in, by the account that is tightest."""

    account: Account
    why: Literal["exhausted", "limit", "held", "store"]
    """`exhausted`: its money is spent. `limit`: too many requests or tokens. `held`: others hold what is left of the
    money. `store`: the store does not answer, and the lease does not suffice."""
    retry_after_s: float
    standing: Standing


@dataclass(slots=True)
class Entered:
    """What one request holds of its accounts. Settle it exactly once, whatever becomes of the request."""

    accounts: tuple[Account, ...]
    demand: Demand
    open: bool = True


class QuotaLeases:
    """The leases of one worker. Close it after use."""

    def __init__(
        self, store: Store, *, when_down: WhenDown = "open", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Exchange with `store`; without one (`NoStore`) this process counts alone, and all is known at once.

        While the store does not answer, requests and tokens go on beyond their leases if `when_down` is `open`; money
        never does.
        """

    def enter(self, accounts: Sequence[Account], demand: Demand) -> Entered | None:
        """Let a request in if what is leased suffices for all of its accounts, without waiting; else return None."""
        raise NotImplementedError

    async def wait(self, accounts: Sequence[Account], demand: Demand, patience_s: float = 10.0) -> Entered | Refusal:
        """Let a request in after as many exchanges as it takes, at most `patience_s` where others hold the money."""
        raise NotImplementedError

    def settle(self, entered: Entered, tokens: int = 0, charged: int = 0) -> None:
        """Replace what a request held by what it used; a second call does nothing.

        `charged` nanodollars stay in the lease until `written` or `dropped` says what became of the record.
        """
        raise NotImplementedError

    def written(self, charges: Iterable[tuple[str, int]]) -> None:
        """Say that the store has added these nanodollars to the accounts of these names, with their records."""
        raise NotImplementedError

    def dropped(self, charges: Iterable[tuple[str, int]]) -> None:
        """Say that these charges of this worker will never be written."""
        raise NotImplementedError

    def standing(self, account: Account) -> Standing:
        """Return how an account stands."""
        raise NotImplementedError

    def share_spent(self, accounts: Sequence[Account]) -> float:
        """Return the share spent of the tightest of these budgets, 1.0 for all of it; 0.0 without a budget."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Return all leases."""
