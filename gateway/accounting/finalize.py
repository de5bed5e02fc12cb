"""Complete the ledger of one request after its reply: the account of each call, wasted cost, and objectives met.

The trace's hops hold the cost and duration of every call; they are read here once, in the order they began. Objectives
come from the surface's policy (`slo`): the limit of a quantile is checked for each request, and over many requests the
share that meets it should reach the quantile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.accounting.charges import cost
from gateway.accounting.hedge_budget import HedgeBudgets
from gateway.chat.completions import Usage
from gateway.config.policy_reload import PolicyReloader
from gateway.config.schema import Price
from gateway.telemetry import names
from gateway.telemetry.ledger import CallAccount, Ledger
from gateway.telemetry.trace import Hop, Trace
from gateway.tiers import Tier
from policies.model import Policy, Slo

_OK: Final = 200
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_MOST_POLICIES: Final = 256


@dataclass(frozen=True, slots=True)
class _Terms:
    """Price and objectives of one policy version."""

    strongest: Price | None
    """Price of its strongest tier's first configured backend."""
    ttft_ms: Sequence[tuple[str, float]]
    """Names and limits in milliseconds of the objectives for the first token; they apply to streams."""
    total_ms: Sequence[tuple[str, float]]
    """Names and limits in milliseconds of the objectives for the whole answer."""


class Finalizer:
    """Complete ledgers, with the prices and objectives of the policies in force."""

    def __init__(self, policies: PolicyReloader, tiers: Mapping[str, Tier], hedge_budgets: HedgeBudgets) -> None:
        self._policies = policies
        self._hedge_budgets = hedge_budgets
        self._tiers = tiers
        self._terms: dict[str, _Terms] = {}

    def close(self, trace: Trace, ledger: Ledger) -> None:
        """Fill in the ledger's remaining fields. The trace's root has ended; status, times and costs are final."""
        ledger.calls = calls = _read(trace, ledger)
        if calls:
            _settle(ledger, calls)
            self._hedge_budgets.book(ledger)
        terms = self._terms.get(ledger.policy) or self._terms_of(ledger)
        if terms is None:
            return
        tokens_in, tokens_out = ledger.answer_tokens_in, ledger.answer_tokens_out
        if terms.strongest is not None and tokens_in is not None and tokens_out is not None:
            ledger.counterfactual_usd = cost(terms.strongest, Usage(tokens_in, tokens_out))
        ledger.slo = _held_against(terms, ledger)

    def _terms_of(self, ledger: Ledger) -> _Terms | None:
        """Return the terms of the request's policy version; None if it was replaced before any request needed them."""
        policy = self._policies.current.by_surface.get(ledger.surface)
        if policy is None or policy.label != ledger.policy:
            return None
        if len(self._terms) >= _MOST_POLICIES:
            self._terms.clear()
        ttft, total = _objectives(policy.slo)
        terms = self._terms[ledger.policy] = _Terms(self._strongest(policy), ttft, total)
        return terms

    def _strongest(self, policy: Policy) -> Price | None:
        configs = (endpoint.config for name in policy.ladder[-1:] for endpoint in self._tiers[name].endpoints)
        return next((config.price for config in configs if config.configured), None)


def _read(trace: Trace, ledger: Ledger) -> list[CallAccount]:
    """Return the calls of a trace, and copy model versions, queue times and routing choices into the ledger."""
    calls: list[CallAccount] = []
    for hop in trace.hops:
        attributes = hop.attributes
        if hop.name == names.ATTEMPT:
            call = _account(hop, ledger.served, trace.root.end_ns)
            calls.append(call)
            beside = bool(attributes.get(names.HEDGE) or attributes.get(names.SPECULATIVE))
            ledger.hedged = ledger.hedged or bool(attributes.get(names.HEDGE))
            ledger.speculated = ledger.speculated or bool(attributes.get(names.SPECULATIVE))
            if not beside:
                ledger.queue_ms += call.queue_ms
            if not call.wasted:
                ledger.head = attributes.get(names.CONFIDENCE_HEAD) or ""
        elif hop.name == names.SAMPLE:
            sample = _account(hop, ledger.served, trace.root.end_ns)
            sample.tier = next((call.tier for call in calls if call.backend == sample.backend), "")
            calls.append(sample)
        elif hop.name == names.ROUTE:
            ledger.classifier = attributes.get(names.CLASSIFIER) or ""
            ledger.holdout = attributes.get(names.HOLDOUT)
        elif hop.name == names.EMBED:
            ledger.embedder = attributes.get(names.GEN_AI_REQUEST_MODEL) or ""
        elif hop.name == names.HOP_SHED:
            ledger.queue_ms += attributes.get(names.QUEUE) or 0.0
    return calls


def _account(hop: Hop, served: Sequence[int] | None, end_ns: int) -> CallAccount:
    attributes = hop.attributes
    number = attributes.get(names.ATTEMPT_NUMBER, 0) if hop.name == names.ATTEMPT else 0
    return CallAccount(
        number,
        attributes.get(names.TIER, ""),
        attributes.get(names.BACKEND, ""),
        attributes.get(names.GEN_AI_REQUEST_MODEL, ""),
        attributes.get(names.OUTCOME) or hop.error or hop.name,
        attributes.get(names.GEN_AI_TOKENS_IN, 0),
        attributes.get(names.GEN_AI_TOKENS_OUT, 0),
        names.USAGE_ESTIMATED in attributes,
        attributes.get(names.COST, 0.0),
        served is not None and number not in served,
        attributes.get(names.QUEUE, 0.0),
        attributes.get(names.TTFT),
        ((hop.end_ns or end_ns) - hop.start_ns) / 1e6,
    )


def _settle(ledger: Ledger, calls: Sequence[CallAccount]) -> None:
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


def _objectives(slo: Slo) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Return the objectives for the first token and for the whole answer: names and limits in milliseconds."""
    objectives: dict[str, list[tuple[str, float]]] = {"ttft": [], "total": []}
    for what, quantiles in (("ttft", slo.ttft), ("total", slo.total)):
        for name in ("p50", "p95", "p99"):
            limit = getattr(quantiles, name)
            if limit is not None:
                objectives[what].append((f"{what}_{name}", limit * 1000))
    objectives["total"].append(("deadline", slo.deadline * 1000))
    return objectives["ttft"], objectives["total"]


def _held_against(terms: _Terms, ledger: Ledger) -> Mapping[str, bool] | None:
    """Return whether each objective was met; None for a client error (4xx but 429) or a client that disconnected.

    Objectives for the first token apply to streams only. A failed request meets none.
    """
    status = ledger.status
    if status not in (_OK, _TOO_MANY) and status < _SERVER_ERROR:
        return None
    well = status == _OK and ledger.error is None
    total, ttft = ledger.total_ms, ledger.ttft_ms
    met = {name: well and total <= limit for name, limit in terms.total_ms}
    if ledger.stream:
        met |= {name: well and ttft is not None and ttft <= limit for name, limit in terms.ttft_ms}
    return met
