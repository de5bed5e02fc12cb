"""Closing the books of one request, when its reply is out: the account of each call, and what follows from it.

The hops of a trace say what every call cost and how long it took, so on the request path nothing is kept twice: here
they are read once, in the order they began. An objective is one of its surface's policy (`slo`): a quantile's limit is
held against each request, and over many of them the share that met it should reach the quantile.
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
    """What a policy version holds its requests against."""

    strongest: Price | None
    """Of its strongest tier's first configured backend."""
    ttft_ms: Sequence[tuple[str, float]]
    """Objectives and their limits, of streams."""
    total_ms: Sequence[tuple[str, float]]


class Finalizer:
    """Knows the prices and the objectives that requests are held against."""

    def __init__(self, policies: PolicyReloader, tiers: Mapping[str, Tier], hedge_budgets: HedgeBudgets) -> None:
        self._policies = policies
        self._hedge_budgets = hedge_budgets
        self._tiers = tiers
        self._terms: dict[str, _Terms] = {}

    def close(self, trace: Trace, ledger: Ledger) -> None:
        """Fills in what the ledger lacks. The trace's root has ended, and so have status, times and costs."""
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
        """Of the policy version that the request had; None when another one is in force and this one was never met."""
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
    """The calls of a trace; the versions and the choices that other hops tell go into the ledger on the way."""
    calls: list[CallAccount] = []
    for hop in trace.hops:
        said = hop.attributes
        if hop.name == names.ATTEMPT:
            call = _account(hop, ledger.served, trace.root.end_ns)
            calls.append(call)
            beside = bool(said.get(names.HEDGE) or said.get(names.SPECULATIVE))
            ledger.hedged = ledger.hedged or bool(said.get(names.HEDGE))
            ledger.speculated = ledger.speculated or bool(said.get(names.SPECULATIVE))
            if not beside:
                ledger.queue_ms += call.queue_ms
            if not call.wasted:
                ledger.head = said.get(names.CONFIDENCE_HEAD) or ""
        elif hop.name == names.SAMPLE:
            sample = _account(hop, ledger.served, trace.root.end_ns)
            sample.tier = next((call.tier for call in calls if call.backend == sample.backend), "")
            calls.append(sample)
        elif hop.name == names.ROUTE:
            ledger.classifier = said.get(names.CLASSIFIER) or ""
            ledger.holdout = said.get(names.HOLDOUT)
        elif hop.name == names.EMBED:
            ledger.embedder = said.get(names.GEN_AI_REQUEST_MODEL) or ""
        elif hop.name == names.HOP_SHED:
            ledger.queue_ms += said.get(names.QUEUE) or 0.0
    return calls


def _account(hop: Hop, served: Sequence[int] | None, end_ns: int) -> CallAccount:
    said = hop.attributes
    number = said.get(names.ATTEMPT_NUMBER, 0) if hop.name == names.ATTEMPT else 0
    return CallAccount(
        number,
        said.get(names.TIER, ""),
        said.get(names.BACKEND, ""),
        said.get(names.GEN_AI_REQUEST_MODEL, ""),
        said.get(names.OUTCOME) or hop.error or hop.name,
        said.get(names.GEN_AI_TOKENS_IN, 0),
        said.get(names.GEN_AI_TOKENS_OUT, 0),
        names.USAGE_ESTIMATED in said,
        said.get(names.COST, 0.0),
        served is not None and number not in served,
        said.get(names.QUEUE, 0.0),
        said.get(names.TTFT),
        ((hop.end_ns or end_ns) - hop.start_ns) / 1e6,
    )


def _settle(ledger: Ledger, calls: Sequence[CallAccount]) -> None:
    """What the client got, and what nobody did."""
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
    # An attempt that goes on with another's text reads that text again, which is not the answer's to pay for.
    ledger.answer_tokens_in, ledger.answer_tokens_out = first.tokens_in, tokens
    if ledger.stream and ledger.ttft_ms is not None and tokens > 1:
        ledger.tpot_ms = max(0.0, ledger.total_ms - ledger.ttft_ms) / (tokens - 1)


def _objectives(slo: Slo) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Of a first token, and of a whole answer: names and limits in milliseconds."""
    found: dict[str, list[tuple[str, float]]] = {"ttft": [], "total": []}
    for what, quantiles in (("ttft", slo.ttft), ("total", slo.total)):
        for name in ("p50", "p95", "p99"):
            limit = getattr(quantiles, name)
            if limit is not None:
                found[what].append((f"{what}_{name}", limit * 1000))
    found["total"].append(("deadline", slo.deadline * 1000))
    return found["ttft"], found["total"]


def _held_against(terms: _Terms, ledger: Ledger) -> Mapping[str, bool] | None:
    """Each objective and whether it was met; None for a request that its caller has spoilt or given up.

    Only streams have a first token to wait for. What failed met nothing, however fast.
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
