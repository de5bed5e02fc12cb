"""Compute what a finished request says of its surface: the objectives it met, and what it saved.

The objectives come from the surface's policy (`slo`): the limit of a quantile is checked for each request, and over
many requests the share that meets it should reach the quantile. What is saved is measured against the same answer from
the strongest tier alone, and a hit against its list price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.chat.usage import Usage
from gateway.parts.measures.endings import is_beside, no_answer
from gateway.telemetry import names
from gateway.telemetry.ledger import PLAYGROUND, CallAccount, Ledger
from policies.quantities import OF_STAGES

if TYPE_CHECKING:
    from gateway.chat.usage import Price
    from gateway.config.policy_reload import Policies
    from gateway.telemetry.trace import Trace
    from gateway.tiers import Tier
    from policies.model import Policy, Slo

_STAGE_OF_HOP: Final = {
    names.CACHE_EXACT: "cache", names.CACHE_SEMANTIC: "cache", names.EMBED: "embed", names.ROUTE: "route",
}  # fmt: skip
_MOST_POLICIES: Final = 4_096
_OK: Final = 200


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


class RequestFigures:
    """Complete ledgers, with the prices and objectives of the policies in force."""

    def __init__(self, policies: Policies, tiers: Mapping[str, Tier]) -> None:
        self._prices = {server.config.name: server.config.price for tier in tiers.values() for server in tier.endpoints}
        self._policies = policies
        self._tiers = tiers
        self._terms: dict[str, _Terms] = {}

    def complete(self, trace: Trace, ledger: Ledger) -> None:  # noqa: PLR0912  # one story, and one call per request
        """Fill in the objectives, the stages and the savings of a request whose calls have their accounts.

        Objectives for the first token, the pace and the gaps apply to streams only, the latter two to those that have
        them: a stored answer has no pace, and one chunk no gap. A request that failed is held against the times that
        had passed by then: it missed those, and says nothing of the others; one that was refused, or whose client left,
        against none. A stage's objective is for requests that had the stage, failed or not.
        """
        tokens_in, tokens_out, calls = ledger.answer_tokens_in, ledger.answer_tokens_out, ledger.calls or ()
        if ledger.served == () and tokens_in is not None:  # stored, or shared: nothing of it was called
            price = self._prices.get(ledger.backend)
            ledger.list_usd = 0.0 if price is None else price.of(Usage(tokens_in, tokens_out or 0))
        if ledger.arm == PLAYGROUND or is_beside(ledger.surface):
            return  # no goodput and no saving: its sender chose the tier or the policy, or it is no chat
        key = ledger.policy if not ledger.arm else f"{ledger.policy} {ledger.arm}"
        terms = self._terms.get(key) or self._terms_of(ledger, key)
        if terms is None:
            return
        if terms.strongest is not None and tokens_in is not None and tokens_out is not None:
            alone = _alone(calls, tokens_in, tokens_out) if calls else Usage(tokens_in, tokens_out)
            ledger.counterfactual_usd = terms.strongest.of(alone)
        if ledger.steered_from and tokens_in is not None and tokens_out is not None:
            self._note_steered(trace, ledger, _alone(calls, tokens_in, tokens_out))
        if terms.stages:
            ledger.stages = stages_of(trace, ledger)
        whole = ledger.status == _OK and ledger.error is None and not ledger.refused
        ending = "" if whole else no_answer(ledger.status, ledger.error, refused=ledger.refused)
        if ending in ("refused", "left"):
            return
        total, met = ledger.total_ms, dict[str, bool]()
        for name, limit in terms.total_ms:
            if not ending or total > limit:
                met[name] = total <= limit
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
        ledger.slo = met

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
