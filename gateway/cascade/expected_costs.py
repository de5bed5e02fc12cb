"""Estimate what a request will cost before its first call: what is reserved of its owners' budgets.

The expected cost is the sum over the tiers of its decision of the calls that a request of the surface makes there, on
average, times their price: with the tokens that its answers have there, and the share of a prompt that is read from or
written to the provider's prompt cache. All of these are learnt per surface and tier, as exponential averages, in each
worker; before that they are those of `expected_costs.json`. `max_tokens` bounds them and is never what is expected.
The worst case is one call of each tier, with a hedge and samples where the policy has them, to the last token allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.chat.usage import Usage
from gateway.quotas.terms import NANO
from gateway.request.admission import Cost
from routing.features import PROVIDERS_TOOLS

if TYPE_CHECKING:
    from gateway.request.admission import Holding
    from gateway.request.context import RequestContext
    from gateway.telemetry.ledger import CallAccount, Ledger
    from gateway.tiers import Tier
    from policies.model import Policy

_PRIOR: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
_MOST_TOKENS: Final[int] = _PRIOR["most_completion_tokens"]
"""Completion tokens of the worst case where neither the request nor the config limits them."""
_NEWEST: Final[float] = _PRIOR["newest"]
"""Weight of the newest request once many have ended; that of the n-th before is 1/(n + 1), with the prior as one."""
_TOOLS: Final = PROVIDERS_TOOLS | {"web_search"}
"""Needs of a request that its provider charges by the use, beside the tokens."""
_MOST: Final = 2048
"""Pairs of surface and tier that are remembered."""


@dataclass(slots=True)
class _Learnt:
    """Averages of a surface's calls at one tier."""

    tokens_out: float = _PRIOR["completion_tokens"]
    """Completion tokens of a call."""
    first: float = _PRIOR["calls_of_first_tier"]
    """Calls of a request that begins at the tier: more than 1 with retries, hedges, samples and continued answers."""
    later: float = _PRIOR["calls_of_later_tier"]
    """Calls of a request that has the tier behind others in its decision."""
    prompt: float = 1.0
    """Prompt tokens that the provider counts, for each that was estimated."""
    cached: float = 0.0
    """Share of the prompt that is read from the provider's prompt cache; so with `written`."""
    written: float = 0.0
    seen: int = 0

    def usage(self, tokens_in: int, most_out: int, service_tier: str) -> Usage:
        """Return what one call is expected to use."""
        prompt = round(tokens_in * self.prompt)
        cached, written = round(prompt * self.cached), round(prompt * self.written)
        out = min(round(self.tokens_out), most_out)
        return Usage(
            prompt,
            out,
            tokens_cached=cached,
            tokens_cache_write=min(written, prompt - cached),
            service_tier=service_tier,
        )

    def learn(self, calls: Sequence[CallAccount], tokens_in: int, *, first: bool) -> None:
        """Take in what one request's calls at the tier used; none where it was not asked."""
        self.seen += 1
        weight = max(1 / (self.seen + 1), _NEWEST)
        if first:
            self.first += weight * (len(calls) - self.first)
        else:
            self.later += weight * (len(calls) - self.later)
        prompt, n = sum(call.tokens_in for call in calls), len(calls)
        if not n or not prompt:
            return
        self.tokens_out += weight * (sum(call.tokens_out for call in calls) / n - self.tokens_out)
        self.prompt += weight * (prompt / n / max(1, tokens_in) - self.prompt)
        self.cached += weight * (sum(call.tokens_cached for call in calls) / prompt - self.cached)
        self.written += weight * (sum(call.tokens_cache_write for call in calls) / prompt - self.written)


class ExpectedCosts:
    """What requests of one worker are expected to cost."""

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self._learnt: dict[tuple[str, str], _Learnt] = {}

    def answer_tokens(self, request: RequestContext) -> int:
        """Return the completion tokens that are expected where it is not decided yet who answers."""
        surface = request.policy.surface
        tokens = [self._of(surface, name).tokens_out for name in request.policy.ladder[:1]]
        return min(round(max(tokens, default=0)), _most_out(request.body, None))

    def of(self, request: RequestContext, hold: Holding, tiers: Sequence[str]) -> Cost:
        """Return the cost of a request whose decision has these tiers. Raises ApiError for a price nobody states."""
        policy, tokens_in = request.policy, request.features.approx_tokens
        service_tier = request.body.get("service_tier")
        service_tier = service_tier if isinstance(service_tier, str) else ""
        hold.learn = partial(self.learn, policy.surface, tiers, tokens_in)
        expected = worst = 0.0
        beside = _beside(policy)
        for place, name in enumerate(tiers):
            tier, learnt = self._tiers[name], self._of(policy.surface, name)
            calls = learnt.later if place else learnt.first
            most_out = _most_out(request.body, tier.max_output)
            price = tier.price
            if price is None or not tier.priced:
                unknown = hold.unknown(f"a call of tier {name!r}")
                expected, worst = expected + calls * unknown, worst + (1 + beside) * unknown
                continue
            expected += calls * price.of(learnt.usage(tokens_in, most_out, service_tier)) * NANO
            prompt = round(tokens_in * max(1.0, learnt.prompt))
            worst += (1 + beside) * price.of(Usage(prompt, most_out, service_tier=service_tier)) * NANO
        if not request.features.further.isdisjoint(_TOOLS):
            unknown = hold.with_tool("a tool of the provider")
            expected, worst = expected + unknown, worst + unknown
        return Cost(round(expected), max(round(expected), round(worst)))

    def learn(self, surface: str, tiers: Sequence[str], tokens_in: int, ledger: Ledger) -> None:
        """Take in what a finished request used at the tiers of its decision; `tokens_in` was estimated."""
        for place, name in enumerate(tiers):
            calls = [call for call in ledger.calls if call.tier == name and call.verifier != "judge"]
            self._of(surface, name).learn(calls, tokens_in, first=not place)

    def _of(self, surface: str, tier: str) -> _Learnt:
        found = self._learnt.get((surface, tier))
        if found is None:
            if len(self._learnt) >= _MOST:
                self._learnt.clear()
            found = self._learnt[surface, tier] = _Learnt()
        return found


def _beside(policy: Policy) -> int:
    """Return the calls that may be made beside one of a tier."""
    agreement = policy.escalate.agreement
    return (policy.escalate.hedge is not None) + (agreement.samples if agreement is not None else 0)


def _most_out(body: Mapping[str, Any], most: int | None) -> int:
    """Return the most completion tokens that a call may have, of all its choices."""
    limits = [most, *(body.get(name) for name in ("max_completion_tokens", "max_tokens"))]
    given = [limit for limit in limits if isinstance(limit, int)]
    choices = body.get("n")
    return (min(given) if given else _MOST_TOKENS) * (choices if isinstance(choices, int) else 1)
