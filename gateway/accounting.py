"""Compute what requests cost: the charge of each call, the budget for hedges, and the final figures of a request.

While a request is under way, each of its calls is charged once, to the ledger and to the call's hop, from the usage
that the backend reported or, marked as estimated, from our own count; the attempts whose text was served are noted.
When the reply is out, `Finalizer` reads the trace's hops and completes the ledger: the account of each call, and wasted
cost.

What of it the request's key pays is in `gateway/payers.toml`.
"""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.chat.usage import Usage
from gateway.telemetry import names
from gateway.telemetry.ledger import SHADOW, CallAccount, Ledger
from policies.quantities import NANO
from routing.load.limits import SpendBudget

if TYPE_CHECKING:
    from gateway.chat.usage import Price
    from gateway.telemetry.trace import Hop, Trace
    from gateway.tiers import Tier
    from policies.model import Policy

log = logging.getLogger("tierline.accounting")

PAYERS: Final[Sequence[Mapping[str, str]]] = tomllib.loads(Path(__file__).with_name("payers.toml").read_text("utf-8"))[
    "call"
]
"""Who pays for what: `what` it is, the `payer` (`key`, `operator` or `nobody`), and the name of its `hop`, if any."""
_PAID: Final = frozenset(row["hop"] for row in PAYERS if row["payer"] == "key")
_STORED_USAGE: Final = re.compile(rb'"(prompt|completion)_tokens":(\d{1,15})')
_USAGE_BYTES: Final = 1024


def cost(price: Price | None, usage: Usage) -> float | None:
    """Return the cost of one call in US dollars: the provider's own figure, or by its price; None if unknown."""
    if usage.cost_usd is not None:
        return usage.cost_usd
    return None if price is None else price.of(usage)


def charge(ledger: Ledger, hop: Hop, price: Price | None, usage: Usage, *, hides_cache: bool = False) -> float:
    """Record one call in the ledger and on its hop; return its cost in US dollars, 0 if it is unknown.

    `hides_cache`: the client is told the cost without what the backend's prompt cache changed in it, and what was read
    from the cache counts against tokens a minute.

    How much of it was wasted is determined when the request is over. Called by `gateway.cascade.call.BackendCall`
    alone.
    """
    usd = cost(price, usage)
    dollars = usd or 0.0
    if usd is None:
        ledger.cost_unknown = True
    if (hides_cache and usd is not None) or usage.tokens_cached or usage.tokens_cache_write:
        _charge_cached(ledger, hop, price, usage, usd, hides_cache=hides_cache)
    ledger.cost_usd += dollars
    if hop.name in _PAID:
        if (entry := ledger.entry) is not None:
            entry.add(round(dollars * NANO))
        ledger.tokens_in += usage.tokens_in
        ledger.tokens_out += usage.tokens_out
    attributes = hop.attributes
    attributes[names.GEN_AI_TOKENS_IN] = usage.tokens_in
    attributes[names.GEN_AI_TOKENS_OUT] = usage.tokens_out
    if usage.tokens_cached:
        attributes[names.GEN_AI_TOKENS_CACHED] = usage.tokens_cached
    if usage.tokens_cache_write:
        attributes.update(_written(usage))
    if usage.tokens_reasoning:
        attributes[names.GEN_AI_TOKENS_REASONING] = usage.tokens_reasoning
    if usd is None:
        attributes[names.COST_UNKNOWN] = True
    else:
        attributes[names.COST] = dollars
    if usage.estimated:
        ledger.usage_estimated = True
        attributes[names.USAGE_ESTIMATED] = True
    return dollars


def _charge_cached(
    ledger: Ledger, hop: Hop, price: Price | None, usage: Usage, usd: float | None, *, hides_cache: bool
) -> None:
    """Record what a prompt cache changed in the cost of a call, `usd` (None: unknown), and in the tokens that count."""
    uncached = Usage(usage.tokens_in, usage.tokens_out, service_tier=usage.service_tier)
    full = None if price is None else price.of(uncached)
    if hides_cache and usd is not None:
        ledger.hide_discount(None if full is None else full - usd)
    if price is not None and full is not None and (usage.tokens_cached or usage.tokens_cache_write):
        saved = hop.attributes[names.PROMPT_CACHE_USD] = full - price.of(usage)
        ledger.prompt_cache_usd = (ledger.prompt_cache_usd or 0.0) + saved
    if not hides_cache and hop.name in _PAID:  # what is left of a limit would tell it, too
        ledger.exempt(usage.tokens_cached)


def _written(usage: Usage) -> dict[str, int]:
    written = {names.GEN_AI_TOKENS_CACHE_WRITE: usage.tokens_cache_write}
    return written | {names.TOKENS_HOUR_WRITE: usage.tokens_hour_write} if usage.tokens_hour_write else written


def settle(ledger: Ledger, served: int | None) -> None:
    """Record the number of the attempt whose text the client gets, or None. All other calls are wasted.

    Call this once the cascade is over, and again for every attempt that continues another's text.
    """
    before = ledger.served or ()
    ledger.served = before if served is None or served in before else (*before, served)


def replayed(ledger: Ledger, body: bytes) -> None:
    """Record the tokens of a stored answer, a completion as JSON: they price what the hit has saved.

    A call that had begun meanwhile is wasted. Only the end of the body is read, where the usage is: the body may be
    large, and a hit takes a tenth of a millisecond. The bytes searched for cannot occur in a JSON string, whose quotes
    would be escaped.
    """
    settle(ledger, None)
    ledger.steered_from = ""  # whatever a call would have been spared that had begun
    start = body.rfind(b'"usage":{')
    if start < 0:
        return
    counts = {kind: int(count) for kind, count in _STORED_USAGE.findall(body, start, start + _USAGE_BYTES)}
    if len(counts) == 2:
        ledger.answer_tokens_in = counts[b"prompt"]
        ledger.answer_tokens_out = counts[b"completion"]


class HedgeBudgets:
    """Limit the cost of hedging to a share of what each surface's served answers cost.

    Every answer adds to the surface's budget, which is made on first use; every hedge is charged to it: the cost of the
    losing attempt, and the amount by which the winner cost more than the first attempt would have. Each worker has its
    own budgets; as each stays under the share, all of them together do.
    """

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self.by_surface: dict[str, tuple[float, SpendBudget]] = {}
        """The share of each surface that may hedge, and its budget."""

    def may_hedge(self, policy: Policy) -> bool:
        """Return whether the budget of the policy's surface allows one more hedge; False without a hedge section.

        It allows none where a tier's price is unknown: nobody could say what share of the cost a hedge is.
        """
        hedge = policy.escalate.hedge
        if hedge is None or not all(self._tiers[name].priced for name in policy.ladder):
            return False
        return self._of(policy.surface, hedge.max_extra_spend).may_spend()

    def book(self, ledger: Ledger) -> None:
        """Add a finished request's cost to its surface's budget and charge its hedge; `ledger.calls` must be set."""
        budget = self.by_surface[ledger.surface][1]
        budget.earn(ledger.cost_usd - ledger.wasted_usd)
        if ledger.hedged:
            budget.spend(ledger.wasted_usd + self._dearer(ledger.calls or ()))

    def _of(self, surface: str, share: float) -> SpendBudget:
        entry = self.by_surface.get(surface)
        if entry is None or entry[0] != share:
            entry = self.by_surface[surface] = (share, SpendBudget(share))
        return entry[1]

    def _dearer(self, calls: Sequence[CallAccount]) -> float:
        """Return the extra cost in US dollars of the served calls over the same tokens at the first call's tier."""
        if not calls or not calls[0].wasted:
            return 0.0
        price = self._tiers[calls[0].tier].price
        served = [call for call in calls if not call.wasted]
        spent = sum(call.cost_usd for call in served)
        same = sum(cost(price, Usage(call.tokens_in, call.tokens_out)) or 0.0 for call in served)
        return max(0.0, spent - same)


class Finalizer:
    """Complete ledgers: the account of each call, and what of it was wasted and charged."""

    def __init__(
        self,
        hedge_budgets: HedgeBudgets,
        ceiling_usd: float = 0.0,
        complete: Callable[[Trace, Ledger], None] | None = None,
    ) -> None:
        """`ceiling_usd` is what each call of unknown price is charged as. `complete` is called last of all."""
        self._ceiling_usd = ceiling_usd
        self._hedge_budgets = hedge_budgets
        self._complete = complete
        self.hedging: Container[str] = hedge_budgets.by_surface
        """Surfaces that hedge: what their requests cost is due at once."""

    def close(self, trace: Trace, ledger: Ledger) -> None:
        """Fill in the ledger's remaining fields, once; a fault is logged, and leaves the rest of them as they are.

        The trace's root has ended; status, times and costs are final.
        """
        if trace.settled:
            return
        trace.settled = True
        try:
            ledger.calls = calls = _read(trace, ledger, self._ceiling_usd)
            if calls:
                _note_waste(ledger, calls)
                if ledger.surface in self.hedging:
                    self._hedge_budgets.book(ledger)
            if self._complete is not None:
                self._complete(trace, ledger)
        except Exception:
            log.exception("the cost of request %s could not be settled", ledger.request_id)


def _read(trace: Trace, ledger: Ledger, ceiling_usd: float) -> list[CallAccount]:
    """Return the calls of a trace, and copy model versions, queue times and routing choices into the ledger.

    The charge of the key, too; a call of unknown price counts as `ceiling_usd`.
    """
    calls: list[CallAccount] = []
    charged_usd = 0.0
    for hop in trace.hops:
        attributes = hop.attributes
        if hop.name in _PAID:
            charged_usd += ceiling_usd if names.COST_UNKNOWN in attributes else attributes.get(names.COST, 0.0)
        if hop.name == names.ATTEMPT:
            call = _account(hop, ledger.served, trace.root)
            calls.append(call)
            beside = bool(attributes.get(names.HEDGE) or attributes.get(names.SPECULATIVE))
            ledger.hedged = ledger.hedged or bool(attributes.get(names.HEDGE))
            ledger.speculated = ledger.speculated or bool(attributes.get(names.SPECULATIVE))
            if not beside:
                ledger.queue_ms += call.queue_ms
            if not call.wasted:
                ledger.head = attributes.get(names.CONFIDENCE_HEAD) or ""
        elif hop.name in (names.SAMPLE, names.JUDGE):
            beside_it = _account(hop, ledger.served, trace.root)
            beside_it.verifier = "judge" if hop.name == names.JUDGE else "agreement"
            if hop.name == names.SAMPLE:
                beside_it.tier = next((call.tier for call in calls if call.backend == beside_it.backend), "")
            calls.append(beside_it)
        elif hop.name == names.ROUTE:
            ledger.holdout = attributes.get(names.HOLDOUT)
        elif hop.name == names.EMBED:
            ledger.embedder = attributes.get(names.EMBEDDER) or ""
        elif hop.name == names.HOP_SHED:
            ledger.queue_ms += attributes.get(names.QUEUE) or 0.0
    ledger.charged_usd = 0.0 if ledger.arm == SHADOW else round(charged_usd, 9)
    return calls


def _account(hop: Hop, served: Sequence[int] | None, root: Hop) -> CallAccount:
    attributes = hop.attributes
    number = attributes.get(names.ATTEMPT_NUMBER, 0) if hop.name == names.ATTEMPT else 0
    outcome = attributes.get(names.OUTCOME) or hop.error or hop.name
    basis, reason = attributes.get(names.CONFIDENCE_BASIS, ""), attributes.get(names.REASON, "")
    finish = attributes.get(names.GEN_AI_FINISH)
    said = hop.judged.evidence.verified if hop.judged is not None else {}
    return CallAccount(
        number,
        attributes.get(names.TIER, ""),
        attributes.get(names.BACKEND, ""),
        attributes.get(names.GEN_AI_REQUEST_MODEL, ""),
        outcome,
        attributes.get(names.GEN_AI_TOKENS_IN, 0),
        attributes.get(names.GEN_AI_TOKENS_OUT, 0),
        names.USAGE_ESTIMATED in attributes,
        attributes.get(names.COST, 0.0),
        served is not None and number not in served,
        attributes.get(names.QUEUE, 0.0),
        attributes.get(names.TTFT),
        ((hop.end_ns or root.end_ns) - hop.start_ns) / 1e6,
        (hop.start_ns - root.start_ns) / 1e6,
        attributes.get(names.CONFIDENCE),
        basis,
        reason if outcome == "unfit" else attributes.get(names.FAULT, ""),
        finish[0] if finish else "",
        attributes.get(names.GEN_AI_TOKENS_CACHED, 0),
        attributes.get(names.GEN_AI_TOKENS_CACHE_WRITE, 0),
        attributes.get(names.TOKENS_HOUR_WRITE, 0),
        *next(iter(said.items()), ("", None)),
    )


def _note_waste(ledger: Ledger, calls: Sequence[CallAccount]) -> None:
    """Set the ledger's wasted cost and tokens, the answer's tokens, and its time per token."""
    if ledger.served is None:
        return
    wasted_usd, wasted_tokens, tokens = 0.0, 0, 0
    first: CallAccount | None = None
    for call in calls:
        if call.wasted:
            wasted_usd += call.cost_usd
            wasted_tokens += call.tokens_in + call.tokens_out
        else:
            first = first or call
            tokens += call.tokens_out
            ledger.answer_estimated = ledger.answer_estimated or call.estimated
    ledger.wasted_usd, ledger.wasted_tokens = wasted_usd, wasted_tokens
    if first is None:
        return
    # An attempt that continues another's text reads that text as input; only the first attempt's prompt counts.
    ledger.answer_tokens_in, ledger.answer_tokens_out = first.tokens_in, tokens
    if ledger.stream and ledger.ttft_ms is not None and tokens > 1:
        ledger.tpot_ms = max(0.0, ledger.total_ms - ledger.ttft_ms) / (tokens - 1)
