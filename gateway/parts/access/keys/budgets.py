"""Say how the budgets of owners stand, and change what counts as spent: an operator's reset or top-up.

A reset makes the counter of a budget what the operator says, and a top-up takes an amount off it, in the window that
runs now. Both are one script: the record in the stream of the ledger (arm `adjustment`), its charge, which may be
negative, on the counter, and the entry in the audit trail. So the counter stays the sum of its records.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, get_args
from urllib.parse import unquote

from cache.store.base import Command, Store, fields_in
from gateway.parts.access.audit.entries import APPEND, BUDGETS, TrailEntry
from gateway.parts.access.config import AccessSections
from gateway.parts.access.keys.known_keys import configured_owners
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused, Why
from gateway.parts.access.quotas.accounts import MARK, Account, OwnerAccounts, window_of
from gateway.parts.access.quotas.terms import NO_TERMS, Budget, OwnerKind, Per, Terms
from gateway.parts.access.settled_change import settled_change
from gateway.telemetry.ledger import ACCOUNT_PREFIX, ADJUSTMENT, TRACES, Ledger, ledger_blob
from gateway.telemetry.trace import Trace
from policies.quantities import NANO

if TYPE_CHECKING:
    from gateway.config.schema import Deployment

_ADJUST: Final = APPEND + Path(__file__).with_name("adjust.lua").read_bytes()
_IN_USE: Final = b"{tierline:traces}:quotas"
_LIMIT_S: Final = 1.0
_PAGE: Final = 500
_KEPT_S: Final = 7 * 86400
"""How long a counter that was adjusted outlives its window at least."""
_NAME: Final = re.compile(
    r"(key|team|tenant|user|session):([^/]+)/usd/(?:(total)|(\d{4}-\d\d-\d\d|\d{4}-W\d\d|\d{4}-\d\d)@(.+))"
)
Owned = tuple[OwnerKind, str]
"""Kind and name of an owner."""


class BudgetStanding(NamedTuple):
    """A budget in the window that runs now. Money is in nanodollars."""

    account: Account
    spent: int
    reserved: int
    """What requests under way will probably cost, as workers have told with their leases."""

    def shown(self) -> dict[str, Any]:
        """Return the budget as JSON values, in US dollars."""
        limit = self.account.limit
        return {
            "account": self.account.name,
            "owner": {"kind": self.account.kind, "name": self.account.owner},
            "window": self.account.window.name if self.account.window else "",
            "ends": self.account.ends,
            "limit_usd": limit / NANO,
            "spent_usd": self.spent / NANO,
            "reserved_usd": self.reserved / NANO,
            "share": self.spent / limit if limit else None,
        }


class OwnerBudgets:
    """Operations on budgets. Each raises StoreUnavailable; those on one owner's KeysRefused too."""

    def __init__(
        self,
        store: Store,
        configured: Mapping[Owned, Terms] = MappingProxyType({}),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`configured` are the terms that the config gives teams and tenants (see `terms_in`)."""
        self._store = store
        self._registry = KeyRegistry(store)
        self._configured = configured
        self._clock = clock

    async def of(self, owner: Owned, per: Per | None = None) -> list[BudgetStanding]:
        """Return an owner's budgets, or the one of one kind of window.

        A key may be named as people call it. Of who has no terms here, such as an end user or an identity of a company,
        they are those that are in use.
        """
        owner, terms = await self._known(owner)
        kind, name = owner
        [found] = await self.of_terms([(owner, terms)])
        if not found:
            found = [budget for budget in await self.in_use() if (budget.account.kind, budget.account.owner) == owner]
        if chosen := [budget for budget in found if per in (None, budget.account.budget and budget.account.budget.per)]:
            return chosen
        what = f"budget per {per}" if per else "budget"
        raise KeysRefused(f"{kind} {name} has no {what}; `tierline budgets show` lists those in use")

    async def of_terms(self, owners: Sequence[tuple[Owned, Terms]]) -> list[list[BudgetStanding]]:
        """Return the budgets of each of several owners with these terms."""
        now = self._clock()
        accounts = [OwnerAccounts(*owner, terms).money(now) for owner, terms in owners]
        fields = iter(await self._fields([account for some in accounts for account in some]))
        return [[_standing(account, next(fields), now) for account in some] for some in accounts]

    async def in_use(self) -> list[BudgetStanding]:
        """Return the budgets that requests were counted against in windows that run now, the most spent first."""
        now = self._clock()
        [names] = await self._store.ask([Command((b"ZRANGE", _IN_USE, b"0", b"-1"))], _LIMIT_S)
        account_names = (name.decode().removeprefix(ACCOUNT_PREFIX) for name in names)
        accounts = [spent for name in account_names if (spent := account_named(name, now)) is not None]
        found = [
            _standing(replace(account, limit=int(fields[b"limit"])), fields, now)
            for account, fields in zip(accounts, await self._fields(accounts), strict=True)
            if b"limit" in fields
        ]
        return sorted(found, key=lambda budget: -(budget.spent / budget.account.limit if budget.account.limit else 1.0))

    async def every(self) -> list[BudgetStanding]:
        """Return the budgets in use, and after them those of keys, teams and tenants that nobody spent from yet."""
        used = await self.in_use()
        names = {standing.account.name for standing in used}
        owners = {(owner.kind, owner.name): owner.terms for owner in await self._registry.owners()}
        terms: dict[Owned, Terms] = {**self._configured, **cast(dict[Owned, Terms], owners)}
        terms |= {("key", key.id): key.terms async for key in self._registry.keys() if key.terms.budgets}  # noqa: SIM118
        unused = [standing for some in await self.of_terms(list(terms.items())) for standing in some]
        return used + [standing for standing in unused if standing.account.name not in names]

    async def counters(self) -> dict[str, int]:
        """Return what is spent of every account of money that the store has, in nanodollars, past windows' too."""
        [keys] = await self._store.ask([Command((b"ZRANGE", _IN_USE, b"0", b"-1"))], _LIMIT_S)
        found: dict[str, int] = {}
        for start in range(0, len(keys), _PAGE):
            some = keys[start : start + _PAGE]
            values = await self._store.ask([Command((b"HGET", key, b"spent")) for key in some], _LIMIT_S)
            names = (key.decode().removeprefix(ACCOUNT_PREFIX) for key in some)
            found |= {name: int(value or 0) for name, value in zip(names, values, strict=True)}
        return found

    async def reset(self, owner: Owned, usd: float, per: Per | None, why: Why) -> list[BudgetStanding]:
        """Have `usd` count as spent of an owner's budgets, or of that with the window `per` alone."""
        return [await self._adjust(standing, "reset", usd, why) for standing in await self.of(owner, per)]

    async def top_up(self, owner: Owned, usd: float, per: Per | None, why: Why) -> list[BudgetStanding]:
        """Take an amount off what counts as spent, so that as much more may be spent in this window."""
        chosen = await self.of(owner, per)
        if len(chosen) > 1:
            windows = ", ".join(standing.account.budget.per for standing in chosen if standing.account.budget)
            raise KeysRefused(f"there are budgets per {windows}; say by --per which of them gets more")
        return [await self._adjust(standing, "topup", usd, why) for standing in chosen]

    async def _adjust(self, standing: BudgetStanding, what: str, usd: float, why: Why) -> BudgetStanding:
        account, token = standing.account, secrets.token_hex(8)
        spent = {"spent_usd": f"{token}b"}, {"spent_usd": f"{token}a"}  # the script writes what they were
        entry = TrailEntry(self._clock(), why.by, "budget", account.name, what, why.message, *spent)
        forget_ms = "inf" if standing.account.ends is None else f"{(standing.account.ends + _KEPT_S) * 1000:.0f}"
        words = (
            what.encode(), b"%d" % round(usd * NANO), _record(account, what, f"{token}c", why), entry.change(),
            why.how.encode(), forget_ms.encode(), token.encode(),
        )  # fmt: skip
        keys = (TRACES, f"{ACCOUNT_PREFIX}{account.name}", f"{MARK}{account.name}", BUDGETS)
        after, _ = await settled_change(self._store, _ADJUST, (*map(str.encode, keys), _IN_USE), words)
        return standing._replace(spent=int(after))

    async def _known(self, owner: Owned) -> tuple[Owned, Terms]:
        """Return an owner as accounts name it, a key by its id, and its terms."""
        kind, name = owner
        if kind == "key":
            with contextlib.suppress(KeysRefused):
                key = await self._registry.find(name)
                return (kind, key.id), key.terms
        if kind in ("team", "tenant"):
            for named in (name, name.rpartition("/")[2]):  # what holds in every tenant holds in this one for itself
                if (record := await self._registry.owner(cast(Any, kind), named)) is not None:
                    return owner, record.terms
            return owner, self._configured.get((kind, name.rpartition("/")[2]), NO_TERMS)
        return owner, NO_TERMS

    async def _fields(self, accounts: Sequence[Account]) -> list[Mapping[bytes, bytes]]:
        """Return what the store has of accounts, in their order."""
        found: list[Mapping[bytes, bytes]] = []
        for start in range(0, len(accounts), _PAGE):
            some = accounts[start : start + _PAGE]
            replies = await self._store.ask(
                [Command((b"HGETALL", f"{ACCOUNT_PREFIX}{account.name}".encode())) for account in some], _LIMIT_S
            )
            found += map(fields_in, replies)
        return found


def owner_named(text: str) -> Owned:
    """Return the owner of a text such as `team:web`; without a kind it is a key. Raises ValueError."""
    kind, _, name = text.partition(":") if ":" in text else ("key", "", text)
    if kind not in get_args(OwnerKind) or not name:
        raise ValueError(f"{text!r} is no owner; write the id of a key, team:NAME or tenant:NAME")
    return cast(OwnerKind, kind), name


def account_named(name: str, now: float) -> Account | None:
    """Return the account of money of this name, without its limit; None if its window does not run now."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind, owner, total, day, zone = match.groups()
    per: Per = "total" if total else "week" if "W" in day else "month" if len(day) == 7 else "day"
    try:
        budget = Budget(usd=0, per=per, zone=zone or "UTC")
    except ValueError:  # no time zone
        return None
    account = Account(cast(OwnerKind, kind), unquote(owner), "usd", 0, window_of(budget, now), budget)
    return account if account.name == name else None


def terms_in(deployment: Deployment) -> dict[Owned, Terms]:
    """Return the terms that a config gives its teams and tenants."""
    config = deployment.of(AccessSections)
    owners = configured_owners(config.teams, config.tenants)
    return {(owner.kind, owner.name): owner.terms for owner in owners.values()}


def _standing(account: Account, fields: Mapping[bytes, bytes], now: float) -> BudgetStanding:
    leases = [value.split() for name, value in fields.items() if name.startswith(b"w:")]
    reserved = sum(int(expected) for _, _, expected, until_ms, *_ in leases if int(until_ms) > now * 1000)
    return BudgetStanding(account, int(fields.get(b"spent", 0)), reserved)


def _record(account: Account, what: str, charge: str, why: Why) -> bytes:
    """Return the record of an adjustment, with the text `charge` in place of the amount."""
    trace = Trace(ADJUSTMENT)
    trace.root.attributes.update({"author": why.by, "reason": why.message})
    trace.root.end()
    owner: dict[str, Any] = {account.kind: account.owner.rpartition(":")[2]}  # a user's begins with whose it is
    accounts = (account.name,)
    ledger = Ledger(f"adj_{secrets.token_hex(12)}", **owner, path=what, arm=ADJUSTMENT, status=200, accounts=accounts)
    return ledger_blob(trace, ledger).replace(b'"charged_usd":0.0', b'"charged_usd":"%s"' % charge.encode(), 1)
