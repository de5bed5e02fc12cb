"""Compute what requests cost: the charge of each call, the budget for hedges, and the final figures of a request.

While a request is under way, each of its calls is charged once, to the ledger and to the call's hop, from the usage
that the backend reported or, marked as estimated, from our own count; the attempts whose text was served are noted.
When the reply is out, `Finalizer` reads the trace's hops and completes the ledger: the account of each call, wasted
cost, and the objectives met. These come from the surface's policy (`slo`): the limit of a quantile is checked for each
request, and over many requests the share that meets it should reach the quantile.

What of it the request's key pays is in `gateway/payers.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.chat.usage import Usage
from gateway.telemetry import names
from gateway.telemetry.ledger import PLAYGROUND, SHADOW, CallAccount, Ledger, is_beside, no_answer
from policies.quantities import NANO, OF_STAGES
from routing.load.limits import SpendBudget

if TYPE_CHECKING:
    from gateway.config.policy_reload import Policies
    from gateway.config.prices import Price
    from gateway.telemetry.trace import Hop, Trace
    from gateway.tiers import Tier
    from policies.model import Policy, Slo

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
        self._budgets: dict[str, tuple[float, SpendBudget]] = {}

    def may_hedge(self, policy: Policy) -> bool:
        """Return whether the budget of the policy's surface allows one more hedge; False without a hedge section.

        It allows none where a tier's price is unknown: nobody could say what share of the cost a hedge is.
        """
        hedge = policy.escalate.hedge
        if hedge is None or not all(self._tiers[name].priced for name in policy.ladder):
            return False
        return self._of(policy.surface, hedge.max_extra_spend).may_spend()

    def book(self, ledger: Ledger) -> None:
        """Add a finished request's cost to its surface's budget and charge its hedge; `ledger.calls` must be set.

        Requests of surfaces that do not hedge change nothing.
        """
        entry = self._budgets.get(ledger.surface)
        if entry is None:
            return
        budget = entry[1]
        budget.earn(ledger.cost_usd - ledger.wasted_usd)
        if ledger.hedged:
            budget.spend(ledger.wasted_usd + self._dearer(ledger.calls or ()))

    def _of(self, surface: str, share: float) -> SpendBudget:
        entry = self._budgets.get(surface)
        if entry is None or entry[0] != share:
            entry = self._budgets[surface] = (share, SpendBudget(share))
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


_STAGE_OF_HOP: Final = {
    names.CACHE_EXACT: "cache", names.CACHE_SEMANTIC: "cache", names.EMBED: "embed", names.ROUTE: "route",
}  # fmt: skip
_MOST_POLICIES: Final = 256


@dataclass(frozen=True, slots=True)
class _Terms:
    """Price and objectives of one policy version."""

    strongest: Price | None
    """Price of its strongest tier's first configured backend."""
    of_streams: Sequence[tuple[str, str, float]]
    """Name, field of the ledger and limit in milliseconds of each objective that applies to streams."""
    total_ms: Sequence[tuple[str, float]]
    """Names and limits in milliseconds of the objectives for the whole answer."""
    stages: Sequence[tuple[str, str, float]]
    """Name, stage and limit in milliseconds of each objective that a stage has."""


class Finalizer:
    """Complete ledgers, with the prices and objectives of the policies in force."""

    def __init__(
        self,
        policies: Policies,
        tiers: Mapping[str, Tier],
        hedge_budgets: HedgeBudgets,
        ceiling_usd: float = 0.0,
    ) -> None:
        """`ceiling_usd` is what each call of unknown price is charged as."""
        self._ceiling_usd = ceiling_usd
        self._prices = {server.config.name: server.config.price for tier in tiers.values() for server in tier.endpoints}
        self._policies = policies
        self._hedge_budgets = hedge_budgets
        self._tiers = tiers
        self._terms: dict[str, _Terms] = {}

    def close(self, trace: Trace, ledger: Ledger) -> None:
        """Fill in the ledger's remaining fields. The trace's root has ended; status, times and costs are final."""
        ledger.calls = calls = _read(trace, ledger, self._ceiling_usd)
        if ledger.served == () and ledger.answer_tokens_in is not None:  # stored, or shared: nothing of it was called
            used, price = (
                Usage(ledger.answer_tokens_in, ledger.answer_tokens_out or 0),
                self._prices.get(ledger.backend),
            )
            ledger.list_usd = 0.0 if price is None else price.of(used)
        if calls:
            _note_waste(ledger, calls)
            self._hedge_budgets.book(ledger)
        if ledger.arm == PLAYGROUND or is_beside(ledger.surface):
            return  # no goodput and no saving: its sender chose the tier or the policy, or it is no chat
        key = ledger.policy if not ledger.arm else f"{ledger.policy} {ledger.arm}"
        terms = self._terms.get(key) or self._terms_of(ledger, key)
        if terms is None:
            return
        tokens_in, tokens_out = ledger.answer_tokens_in, ledger.answer_tokens_out
        if terms.strongest is not None and tokens_in is not None and tokens_out is not None:
            ledger.counterfactual_usd = terms.strongest.of(_alone(calls, tokens_in, tokens_out))
        if ledger.steered_from and tokens_in is not None and tokens_out is not None:
            self._note_steered(trace, ledger, _alone(calls, tokens_in, tokens_out))
        if terms.stages:
            ledger.stages = stages_of(trace, ledger)
        ledger.slo = _held_against(terms, ledger)

    def _terms_of(self, ledger: Ledger, key: str) -> _Terms | None:
        """Return the terms of the request's policy version; None if it was replaced before any request needed them.

        A canary's requests are held against the objectives of the policy in force: else a candidate with easier
        objectives would seem the better one.
        """
        policies = self._policies.current
        live = policy = policies.by_surface.get(ledger.surface)
        if ledger.arm and (rolling := policies.rolling.get(ledger.surface)) and rolling.policy.label == ledger.policy:
            policy = rolling.policy
        if live is None or policy is None or policy.label != ledger.policy:
            return None
        if len(self._terms) >= _MOST_POLICIES:
            self._terms.clear()
        terms = self._terms[key] = _Terms(self._strongest(policy), *_objectives(live.slo))
        return terms

    def _note_steered(self, trace: Trace, ledger: Ledger, alone: Usage) -> None:
        """Note what the answer would have cost at the tier from which a budget kept the request."""
        made, price = trace.decision, self._tiers[ledger.steered_from].price
        if made is not None and made.decision is not None and made.decision.tiers[0] != ledger.steered_from:
            ledger.steered_usd = None if price is None else price.of(alone)

    def _strongest(self, policy: Policy) -> Price | None:
        configs = (endpoint.config for name in policy.ladder[-1:] for endpoint in self._tiers[name].endpoints)
        return next((config.price for config in configs if config.configured), None)


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


def _alone(calls: Sequence[CallAccount], tokens_in: int, tokens_out: int) -> Usage:
    """Return the usage of the same answer by the strongest tier alone.

    It would have read from its prompt cache what any attempt read from its own: a conversation that stays with one
    model is read there turn by turn. What the served call wrote to a cache, it would have written. Samples and judges
    do not count: they read what their draft has just written.
    """
    read, served = 0.0, None
    for call in calls:
        if call.attempt and call.tokens_in:
            read = max(read, call.tokens_cached / call.tokens_in)
        if served is None and not call.wasted:
            served = call
    cached = round(tokens_in * min(1.0, read))
    if served is None:
        return Usage(tokens_in, tokens_out, tokens_cached=cached)
    written = min(served.tokens_cache_write, tokens_in - cached)
    for_an_hour = min(served.tokens_hour_write, written)
    return Usage(tokens_in, tokens_out, tokens_cached=cached, tokens_cache_write=written, tokens_hour_write=for_an_hour)


def stages_of(trace: Trace, ledger: Ledger) -> dict[str, float]:
    """Return the milliseconds of each stage that a finished request had; see `policies.model.STAGES`."""
    stages: dict[str, float] = {}
    for hop in trace.hops:
        if (stage := _STAGE_OF_HOP.get(hop.name)) is not None:
            took_ms = ((hop.end_ns or trace.root.end_ns) - hop.start_ns) / 1e6
            stages[stage] = stages.get(stage, 0.0) + took_ms
    calls = [call for call in ledger.calls if call.attempt]
    served = next((call for call in calls if not call.wasted), None)
    if served is None:
        return stages
    first_ms = max(0.0, served.total_ms - served.queue_ms) if served.ttft_ms is None else served.ttft_ms
    due_ms = ledger.total_ms if ledger.ttft_ms is None else ledger.ttft_ms
    called_ms = served.start_ms + served.queue_ms + first_ms
    stages |= {"queue": served.queue_ms, "drafts": served.start_ms - calls[0].start_ms, "prefill": first_ms}
    return stages | {"verdict": max(0.0, due_ms - called_ms), "decode": max(0.0, ledger.total_ms - due_ms)}


def _objectives(
    slo: Slo,
) -> tuple[list[tuple[str, str, float]], list[tuple[str, float]], list[tuple[str, str, float]]]:
    """Return the objectives of streams, those of the whole answer and those of stages; see `_Terms`."""
    of_streams: list[tuple[str, str, float]] = []
    total: list[tuple[str, float]] = []
    stages: list[tuple[str, str, float]] = []
    for name, limit_s in slo.limits().items():
        what = name.partition("_")[0]
        if name.startswith(OF_STAGES):
            stages.append((name, name.split("_")[1], limit_s * 1000))
        elif what in ("total", "deadline"):
            total.append((name, limit_s * 1000))
        else:
            of_streams.append((name, f"{what}_ms", limit_s * 1000))
    return of_streams, total, stages


def _held_against(terms: _Terms, ledger: Ledger) -> Mapping[str, bool] | None:
    """Return whether each objective was met; None for a request that was refused, or whose client left.

    Objectives for the first token, the pace and the gaps apply to streams only, the latter two to those that have
    them: a stored answer has no pace, and one chunk no gap. A request that failed is held against the times that had
    passed by then: it missed those, and says nothing of the others. A stage's objective is for requests that had the
    stage, failed or not.
    """
    ending = no_answer(ledger.status, ledger.error, refused=ledger.refused)
    if ending in ("refused", "left"):
        return None
    total = ledger.total_ms
    met = {name: total <= limit for name, limit in terms.total_ms if not ending or total > limit}
    if ledger.stream:
        for name, field, limit in terms.of_streams:
            took: float | None = getattr(ledger, field)
            if took is not None and (not ending or took > limit):
                met[name] = took <= limit
            elif took is None and field == "ttft_ms" and (not ending or total > limit):
                met[name] = False
    for name, stage, limit in terms.stages:
        if ledger.stages is not None and (took := ledger.stages.get(stage)) is not None:
            met[name] = took <= limit
    return met
