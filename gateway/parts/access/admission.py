"""Let a request in by the limits of its owners: its key, that one's team and tenant, its end user and its session.

    at the door    (`Holding.enter`)            a request, one under way, and the tokens that it will probably take
    before step 8  (`Holding.before_routing`)   how much of its budgets is spent, and whether others go first
    at step 9      (`Holding.before_calls`)     the money that it will probably cost: hits cost nothing
    at its end     (`Holding.settle`)           what it took and cost, once

What a worker has leased is spent without waiting (`quotas.leases`). The tightest owner holds, and the reply names it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gateway.errors import ApiError, Forbidden, LimitReached, Overloaded, RateLimited, retry_after
from gateway.parts.access.budget_steering import turn
from gateway.parts.access.expected_costs import Cost, ExpectedCosts
from gateway.parts.access.keys.key_caller import KeyCaller, Limited
from gateway.parts.access.policy import AUTO, SpendingSections
from gateway.parts.access.quotas.accounts import Account, OwnerAccounts, life_ms
from gateway.parts.access.quotas.leases import PATIENCE_S, Demand, Entered, QuotaLeases, Refusal
from gateway.telemetry import names
from policies.quantities import NANO, dollars
from policies.steering import Spent

if TYPE_CHECKING:
    from gateway.caller import Caller
    from gateway.parts.access.budget_steering import MeasuredCaps
    from gateway.parts.access.config import KeysConfig
    from gateway.parts.access.quotas.alerts import BudgetAlerts
    from gateway.parts.access.quotas.kept_charges import ChargeJournal, KeptCharges
    from gateway.parts.access.quotas.terms import OwnerKind
    from gateway.request.context import Header, HeaderStyle, RequestContext
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace
    from policies.model import Policy

Refused = Callable[[str, str, str], None]
"""Called with the kind of the owner, the unit and the reason of each refusal."""
_MOST_OWNERS: Final = 20_000
"""Owners whose accounts a worker remembers, end users and sessions included; about 1 kB each."""
_HEADERS: Final[Mapping[HeaderStyle, Mapping[str, tuple[bytes, bytes, bytes]]]] = {
    "openai": {
        "requests": (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests"),
        "tokens": (b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"),
    },
    "anthropic": {
        "requests": (
            b"anthropic-ratelimit-requests-limit",
            b"anthropic-ratelimit-requests-remaining",
            b"anthropic-ratelimit-requests-reset",
        ),
        "tokens": (
            b"anthropic-ratelimit-tokens-limit",
            b"anthropic-ratelimit-tokens-remaining",
            b"anthropic-ratelimit-tokens-reset",
        ),
    },
}
"""Headers of the limit, of what is left of it, and of when all of it is free again."""
_NO_RETRY: Final = ((b"x-should-retry", b"false"),)


class OutOfBudget(RateLimited):
    """429: a budget of the request's key, team, tenant, end user or session is spent."""

    type = "insufficient_quota"
    code: str = "insufficient_quota"
    refuses = True


class QuotaAdmission:
    """Hold the requests of one worker's callers to their limits and budgets, by the leases that it has of these."""

    def __init__(
        self,
        leases: QuotaLeases,
        config: KeysConfig,
        refused: Refused,
        caps: MeasuredCaps,
        expected: ExpectedCosts,
        alerts: BudgetAlerts | None = None,
        charges: KeptCharges | None = None,
    ) -> None:
        """Take from `leases`; what a price that nobody states counts as is in `config`.

        `alerts` tell of what is spent, and `charges` are kept on disk until the store has them.
        """
        self.leases = leases
        self.caps = caps
        self.expected = expected
        self.waiting: dict[str, int] = {}
        """Requests that are held back as their budgets are nearly spent, by surface."""
        self._refused = refused
        self._alerts = alerts
        self._charges = charges
        self.journal: ChargeJournal | None = None
        """Where requests with a budget are noted while they are called; None without one, and before the start."""
        unknown = config.unknown_price
        self._ceiling = None if unknown == "refuse" else round(unknown.ceiling * NANO)
        self._owners: dict[tuple[OwnerKind, str], tuple[object, OwnerAccounts]] = {}

    def hold(self, caller: Caller, trace: Trace, ledger: Ledger) -> Holding | None:
        """Return what a request of this caller will hold; None if nothing limits it. `ledger` names user and session.

        Money is that of the windows in which the request began.
        """
        if not caller.is_limited or not isinstance(caller, KeyCaller):
            return None
        owners = [self._accounts(owner.kind, owner.name, owner) for owner in caller.limited]
        if ledger.user:
            owners += [self._accounts("user", _within(owner, ledger.user), owner) for owner in caller.per_user]
        if ledger.session:
            owners += [self._accounts("session", _within(owner, ledger.session), owner) for owner in caller.per_session]
        began = trace.started_unix_ns / 1e9
        if len(owners) == 1:
            return Holding(self, trace, ledger, owners[0].rates, owners[0].money(began))
        return Holding(
            self,
            trace,
            ledger,
            tuple([account for owner in owners for account in owner.rates]),
            tuple([account for owner in owners for account in owner.money(began)]),
        )

    @property
    def worker(self) -> str:
        """See `CallerLimits`."""
        return self.leases.worker

    @property
    def unknown_usd(self) -> float:
        """See `CallerLimits`."""
        return (self._ceiling or 0) / NANO

    def written(self, charges: Iterable[tuple[str, int]]) -> None:
        """See `CallerLimits`."""
        self.leases.written(charges)

    def life_ms(self, account: str) -> int:
        """See `CallerLimits`."""
        return life_ms(account)

    def notes(self) -> Sequence[str]:
        """See `CallerLimits`."""
        return () if self.leases.copies is None else self.leases.copies.notes()

    async def start(self) -> None:
        """Start what runs beside the requests."""
        await self.leases.start()
        self.caps.start()
        if self._alerts is not None:
            self._alerts.start()
        if self._charges is not None:
            self.journal = self._charges.start()

    async def aclose(self) -> None:
        """Stop it again; all records are written."""
        if self._charges is not None:
            await self._charges.aclose()
        if self._alerts is not None:
            await self._alerts.aclose()
        await self.caps.aclose()
        await self.leases.aclose()

    def owed(self, request: RequestContext, tier: str) -> int:
        """Return the completion tokens that a call of this tier is charged if its answer is never known."""
        return self.expected.owed(request, tier)

    def learner(self, request: RequestContext, tiers: Sequence[str]) -> Callable[[Ledger], None]:
        """Return what learns from the ledger of this request, once it has ended, what calls of its tiers use."""
        return self.expected.learner(request, tiers)

    def unknown(self, what: str) -> int:
        """Return the nanodollars that a call of unknown price counts as. Raises Forbidden where it is refused."""
        if self._ceiling is None:
            error = Forbidden(
                f"Nobody states what {what} costs, and this request has a budget. State its price in the config, or "
                "what it counts as: keys.unknown_price.ceiling.",
                code="price_unknown",
                headers=_NO_RETRY,
            )
            error.of_owner = True
            raise error
        return self._ceiling

    def refusal(self, refused: Refusal, trace: Trace) -> ApiError:
        """Return the error of a request that is not let in; it is counted, and in the trace."""
        account = refused.account
        self._refused(account.kind, account.unit, refused.why)
        trace.root.attributes[names.LIMITED_BY] = account.name
        trace.root.attributes[names.LIMIT_REASON] = refused.why
        named: Header = (b"x-tierline-limited-by", account.name.encode())
        if refused.why == "exhausted":
            message = f"{_owner_shown(account)} has spent {_budget_shown(account, refused)}."
            trace.root.attributes[names.LIMIT_SAID] = message
            return OutOfBudget(message, headers=(named, *_NO_RETRY))
        headers = (named, *retry_after(refused.retry_after_s))
        if refused.why == "store":
            message = "The limits of this request cannot be counted now: the store does not answer."
            trace.root.attributes[names.LIMIT_SAID] = message
            return Overloaded(message, code="limits_unavailable", headers=headers)
        if refused.why == "held":
            message = (
                f"What {_owner_shown(account)} has left of {_budget_shown(account, refused)} is held by requests under "
                "way. Send the request again when some of them have ended."
            )
            trace.root.attributes[names.LIMIT_SAID] = message
            return LimitReached(message, code="budget_in_use", headers=headers)
        allowed = {"requests": "requests a minute", "tokens": "tokens a minute", "concurrent": "requests at once"}
        limit = f"{_owner_shown(account)} is at its limit of {account.limit} {allowed[account.unit]}."
        trace.root.attributes[names.LIMIT_SAID] = limit
        again = f"Send the request again in {max(1.0, refused.retry_after_s):.0f} s."
        return LimitReached(f"{limit} {again}", headers=headers)

    def _accounts(self, kind: OwnerKind, name: str, limited: Limited) -> OwnerAccounts:
        owner = self._owners.get((kind, name))
        if owner is None or owner[0] is not limited.terms:
            if len(self._owners) >= _MOST_OWNERS:
                self._owners.clear()
            owner = self._owners[kind, name] = (limited.terms, OwnerAccounts(kind, name, limited.terms))
        return owner[1]


class Holding:
    """What one request holds of its owners' limits. Settle it once, whatever becomes of the request."""

    __slots__ = (
        "_admission", "_entered", "_ledger", "_rates", "_renew", "_reserved", "_trace", "_unknown", "learn", "money",
    )  # fmt: skip

    def __init__(
        self,
        admission: QuotaAdmission,
        trace: Trace,
        ledger: Ledger,
        rates: tuple[Account, ...],
        money: tuple[Account, ...],
    ) -> None:
        self._admission = admission
        self._trace = trace
        self._ledger = ledger
        self._rates = rates
        self.money = money
        """Accounts of its budgets, in the windows in which it began; empty without a budget."""
        self.learn: Callable[[Ledger], None] | None = None
        """Called with the ledger of the finished request, so that what is expected of later ones follows."""
        self._renew: Callable[[], Awaitable[Caller]] | None = None
        self._unknown = 0
        self._entered: Entered | None = None
        self._reserved: Entered | None = None

    @property
    def has_budget(self) -> bool:
        """Whether any of its owners has a budget."""
        return bool(self.money)

    def enter_chat(
        self, request: RequestContext, renew: Callable[[], Awaitable[Caller]], *, counted: bool
    ) -> Awaitable[None]:
        """See `enter`, with the tokens that a chat will probably take."""
        return self.enter(self._admission.expected.tokens(request), renew, counted=counted)

    async def enter(
        self, tokens: int, renew: Callable[[], Awaitable[Caller]] | None = None, *, counted: bool = False
    ) -> None:
        """Count the request and the tokens that it will probably take. Raises ApiError if it is not let in.

        `renew` finds its caller again while it waits for money, as terms may change meanwhile, or the key be revoked.
        `counted`: the request itself was counted before, with the handshake of its connection.
        """
        self._renew = renew
        if counted:
            self._rates = tuple([account for account in self._rates if account.unit != "requests"])
        if self._rates:
            demand = Demand(tokens)
            self._entered = self._admission.leases.enter(self._rates, demand) or await self._waited(self._rates, demand)

    def spent(self, policy: Policy) -> Spent | None:
        """Return how much of its tightest budget is spent or held, and the measured cap where it counts."""
        if not self.money or not isinstance(policy, SpendingSections):  # sooner than policy.of
            return None
        share, rules = self._admission.leases.tightest(self.money)[0], policy.spending
        measured = share >= rules.steer_from and rules.cap == AUTO
        return Spent(share, self._admission.caps.cap_of(policy) if measured else "")

    def whose(self) -> str:
        """Return, in words, whose budget is the tightest. Call it only where there is one."""
        shown = _owner_shown(self._admission.leases.tightest(self.money)[1])
        return shown[0].lower() + shown[1:]

    async def look(self, *, anew: bool = False) -> None:
        """Ask the store how the request's budgets stand, unless this worker knows; see `QuotaLeases.look`."""
        await self._admission.leases.look(self.money, anew=anew)

    async def before_routing(self, request: RequestContext) -> None:
        """Wait until its budgets are known, and while its policy holds it back as they are nearly spent."""
        if self.money:
            await turn(request, self, self._admission.waiting)

    def is_tight(self, policy: Policy) -> bool:
        """Return whether the tightest budget is spent, as far as this worker knows, to where the policy steers."""
        return bool(self.money) and self._admission.leases.tightest(self.money)[0] >= policy.steer_from

    def reserve_now(self, request: RequestContext, tiers: Sequence[str]) -> bool:
        """Reserve money for a chat if that needs no waiting; return whether it is reserved."""
        cost = self._admission.expected.of(request, self, tiers)
        if self._reserved is None and self.money:
            self._reserved = self._admission.leases.enter(self.money, Demand(0, *cost))
            if self._reserved is not None:
                self._note(cost)
        return self._reserved is not None or not self.money

    async def before_calls(self, request: RequestContext, tiers: Sequence[str], *, races: bool) -> None:
        """Reserve money for a chat that is to be answered by these tiers. Raises ApiError if it is too little."""
        expected = self._admission.expected
        if self.money:
            await self._reserve(expected.of(request, self, tiers), request.budget_s())
        elif any(account.unit == "tokens" for account in self._rates):
            self.learn = expected.learner(request, tiers)
        elif races:
            request.trace.then(expected.learner(request, tiers))

    async def reserve(self, usd: float | None, what: str) -> None:
        """Reserve money for a call of this cost in US dollars, None for a price nobody states. Raises ApiError."""
        if self.money:
            cost = self.unknown(what) if usd is None else round(usd * NANO)
            await self._reserve(Cost(cost, cost, cost))

    async def _reserve(self, cost: Cost, patience_s: float = PATIENCE_S) -> None:
        """Reserve money, once, before the first call; wait so long for others. Raises ApiError if it is too little."""
        if self._reserved is None and self.money:
            demand = Demand(0, *cost)
            self._reserved = self._admission.leases.enter(self.money, demand) or await self._waited(
                self.money, demand, min(patience_s, PATIENCE_S)
            )
            self._note(cost)

    def _note(self, cost: Cost) -> None:
        if (journal := self._admission.journal) is not None:
            self._ledger.entry = journal.begin(self._ledger, [account.name for account in self.money], cost.reserved)

    async def _waited(self, accounts: tuple[Account, ...], demand: Demand, patience_s: float = PATIENCE_S) -> Entered:
        renewed = self._renewed if accounts is self.money else None
        hop = self._trace.begin(names.QUOTA_WAIT)
        taken = None
        try:
            taken = await self._admission.leases.wait(accounts, demand, patience_s, renewed)
        finally:
            hop.attributes[names.OUTCOME] = "let_in" if isinstance(taken, Entered) else "refused" if taken else "gone"
            if taken is not None:
                tightest = taken.account if isinstance(taken, Refusal) else accounts[0]
                hop.attributes[names.LIMITED_BY] = tightest.name
            hop.end()
        if isinstance(taken, Refusal):
            error = self._admission.refusal(taken, self._trace)
            error.of_owner = True
            raise error
        return taken

    async def _renewed(self) -> tuple[Account, ...]:
        if self._renew is not None:
            now = self._admission.hold(await self._renew(), self._trace, self._ledger)
            self.money = () if now is None else now.money
        return self.money

    def unknown(self, what: str) -> int:
        """Return what a call of unknown price counts as; see `QuotaAdmission.unknown`. 0 without a budget."""
        return self._admission.unknown(what) if self.money else 0

    def with_tool(self, what: str) -> int:
        """Return what a tool of unknown price counts as, which the request is charged once if anything is called."""
        self._unknown = self.unknown(what)
        return self._unknown

    def settle(self, ledger: Ledger) -> None:
        """Replace what is held by what the finished request took and cost, and note the accounts that it is charged to.

        Does nothing the second time.
        """
        if self.learn is not None and ledger.attempts:
            self.learn(ledger)
        if self._unknown and ledger.attempts:
            ledger.charged_usd, ledger.cost_unknown = round(ledger.charged_usd + self._unknown / NANO, 9), True
        charged = round(ledger.charged_usd * NANO)
        if charged and self.money:
            ledger.accounts = tuple([account.name for account in self.money])
        if ledger.entry is not None:
            ledger.entry.settle(charged)
        self.end(ledger.tokens_in + ledger.tokens_out - ledger.tokens_exempt, charged)

    def end(self, tokens: int = 0, charged: int = 0) -> None:
        """Give back all that is held; `tokens` and nanodollars (`charged`) count as used."""
        leases = self._admission.leases
        if (entered := self._entered) is not None:
            leases.settle(entered, tokens=tokens)
        if (reserved := self._reserved) is not None:
            leases.settle(reserved, charged=charged)
        self._entered = self._reserved = None

    def headers(self, style: HeaderStyle) -> list[Header]:
        """Return the headers that say how the tightest limits of requests and tokens stand, in the client's words."""
        headers: list[Header] = []
        leases, held = self._admission.leases, () if self._entered is None else self._entered.held
        for unit, (limit, remaining, reset) in _HEADERS[style].items():
            tightest = None
            for place, account in enumerate(self._rates):
                if account.unit == unit:
                    standing = leases.standing(account, held[place][0] if held else None)
                    if tightest is None or standing.left * tightest.limit < tightest.left * standing.limit:
                        tightest = standing
            if tightest is not None:
                free = _duration(tightest.reset_s) if style == "openai" else _time_in(tightest.reset_s)
                headers += [(limit, b"%d" % tightest.limit), (remaining, b"%d" % max(0, tightest.left)), (reset, free)]
        return headers


def _duration(seconds: float) -> bytes:
    """Return a time as OpenAI writes it: `20ms`, `1s`, `6m0s`."""
    whole = math.ceil(seconds)
    if seconds < 1:
        return b"%dms" % (seconds * 1000)
    return b"%dm%ds" % divmod(whole, 60) if whole >= 60 else b"%ds" % whole


def _time_in(seconds: float) -> bytes:
    """Return the time after so many seconds, as RFC 3339 writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds)).encode()


def _within(limited: Limited, name: str) -> str:
    """Return the owner's name of an end user or session, by whose terms limit it."""
    return f"{limited.kind}:{limited.name}:{name}"


def _owner_shown(account: Account) -> str:
    if account.kind in ("user", "session"):
        kind, name, _ = account.owner.rsplit(":", 2) if account.owner.count(":") > 1 else ("", account.owner, "")
        return f"This {'end user' if account.kind == 'user' else 'session'} of {kind} {name}"
    return f"{account.kind.capitalize()} {account.owner}"


def _budget_shown(account: Account, refused: Refusal) -> str:
    window = "" if account.window is None else f" ({account.window.name})"
    per = "" if account.budget is None or account.budget.per == "total" else f" a {account.budget.per}"
    return f"{dollars(refused.standing.used / NANO)} of its budget of {dollars(account.limit / NANO)}{per}{window}"
