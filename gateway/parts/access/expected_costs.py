"""Estimate what a request will cost before its first call: what is reserved of its owners' budgets.

All costs are sums over the tiers of the request's decision, at each tier's price. What is expected is what requests of
its tenant and surface use there on average, and what is reserved is the 90th percentile (`learnt_usage`), both within
`max_tokens`. The worst case is one call of each tier, with a hedge and samples where the policy has them, to the last
token allowed; it is reserved once 90% of a budget is spent (`gateway.parts.access.quotas.machine`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gateway.cascade.call import FIVE_MINUTES, lifetime_asked
from gateway.parts.access.learnt_usage import PRIOR, AskedOfTier, LearntUsage, UsedByRequest
from gateway.parts.access.unseen_input import prompt_tokens
from gateway.telemetry.names import LOST
from policies.quantities import NANO
from routing.features import PROVIDERS_TOOLS

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.telemetry.ledger import Ledger
    from gateway.tiers import Tier
    from policies.model import Policy

_MOST_TOKENS: Final[int] = PRIOR["most_completion_tokens"]
"""Completion tokens of the worst case where neither the request nor the config limits them."""
_TOOLS: Final = PROVIDERS_TOOLS | {"web_search"}
"""Needs of a request that its provider charges by the use, beside the tokens."""
_UNUSED: Final = UsedByRequest(0, 0, 0, 0, 0)
_REMEMBERED: Final = 0.9
"""How much of what earlier requests say of the prompt cache stays with each new one."""
_MOST: Final = 2048
"""Tenants' surfaces, by tier, that are remembered."""


class Cost(NamedTuple):
    """What a request costs on average, what is reserved for it, and what it costs at most, in nanodollars."""

    expected: int
    reserved: int
    """At least `expected`."""
    worst: int
    """At least `reserved`."""


class ReservedCost(Protocol):
    """What a request reserves, as far as its estimate says what prices nobody states, and learns from its end."""

    learn: Callable[[Ledger], None] | None

    def unknown(self, what: str) -> int: ...

    def with_tool(self, what: str) -> int: ...


class ExpectedCosts:
    """What requests of one worker are expected to cost."""

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self._learnt: dict[tuple[str, str, str, bool], LearntUsage] = {}
        self._exempt: dict[tuple[str, str], tuple[float, float]] = {}
        """By tenant and surface: prompt tokens of the latest requests that do not count against tokens a minute, and
        all prompt tokens of these."""

    def tokens(self, request: RequestContext) -> int:
        """Return the tokens that a request will probably take where it is not decided yet who answers.

        The share of prompts that is usually read from a prompt cache, which does not count, is left out.
        """
        body, policy = request.body, request.policy
        name = policy.ladder[0] if policy.ladder else ""
        prompt, _ = prompt_tokens(request.features, body, request.native, self._tiers.get(name))
        out = min(round(self._of(request.tenant, policy.surface, name, first=True).tokens_out), _most_out(body, None))
        exempt, of = self._exempt.get((request.tenant, policy.surface), (0.0, 1.0))
        return round(prompt * (1 - exempt / of)) + out * _choices(body)

    def of(self, request: RequestContext, hold: ReservedCost, tiers: Sequence[str]) -> Cost:
        """Return the cost of a request whose decision has these tiers. Raises ApiError for a price nobody states."""
        policy, body, choices = request.policy, request.body, _choices(request.body)
        service_tier = body.get("service_tier")
        service_tier = service_tier if isinstance(service_tier, str) else ""
        expected = reserved = worst = 0.0
        beside = _beside(policy)
        shown, sees_prompt = prompt_tokens(request.features, body, request.native, None)
        for place, name in enumerate(tiers):
            tier, learnt = self._tiers[name], self._of(request.tenant, policy.surface, name, first=not place)
            price = tier.price
            if price is None or not tier.priced:
                unknown = hold.unknown(f"a call of tier {name!r}")
                expected, reserved = expected + learnt.calls * unknown, reserved + unknown
                worst += (1 + beside) * unknown
                continue
            most_out = _most_out(body, tier.max_output)
            tokens_in = shown if sees_prompt else prompt_tokens(request.features, body, request.native, tier)[0]
            kept_for = "" if price.cache_write is None else _kept_for(request, tier)
            asked = AskedOfTier(tokens_in, sees_prompt, most_out, choices, service_tier, kept_for)
            expected += price.of(learnt.expected(asked)) * NANO
            reserved += price.of(learnt.reserved(asked)) * NANO
            worst += (1 + beside) * price.of(learnt.worst(asked)) * NANO
        known_in = shown if sees_prompt else 0
        hold.learn = partial(self.learn, request.tenant, policy.surface, tiers, known_in, choices)
        if not request.features.further.isdisjoint(_TOOLS):
            unknown = hold.with_tool("a tool of the provider")
            expected, reserved, worst = expected + unknown, reserved + unknown, worst + unknown
        most = max(round(expected), round(worst))
        return Cost(round(expected), min(max(round(expected), round(reserved)), most), most)

    def owed(self, request: RequestContext, tier: str) -> int:
        """Return the completion tokens that a call is charged whose answer is never known.

        Where nothing was reserved, and so nothing is learnt, that is what answers of its tier have on average.
        """
        tenant, surface = request.tenant, request.policy.surface
        learnt = self._of(tenant, surface, tier, first=True)
        if not learnt.seen:
            learnt = self._of(tenant, surface, tier, first=False)
        most_out = _most_out(request.body, self._tiers[tier].max_output)
        choices = _choices(request.body)
        if not learnt.seen and (request.hold is None or not request.hold.has_budget):
            mean = max(model.mean_out for model in self._tiers[tier].endpoints) or PRIOR["completion_tokens"] * choices
            return round(min(mean, most_out * choices))
        return round(learnt.owed_out(most_out)) * choices

    def learner(self, request: RequestContext, tiers: Sequence[str]) -> Callable[[Ledger], None]:
        """Return what takes in the ledger of this request once it has ended."""
        tokens_in, sees_prompt = prompt_tokens(request.features, request.body, request.native, None)
        known_in, choices = tokens_in if sees_prompt else 0, _choices(request.body)
        return partial(self.learn, request.tenant, request.policy.surface, tiers, known_in, choices)

    def learn(
        self, tenant: str, surface: str, tiers: Sequence[str], tokens_in: int, choices: int, ledger: Ledger
    ) -> None:
        """Take in what a finished request used at the tiers of its decision.

        `tokens_in` was estimated; it is 0 where the body does not show how long the prompt is. Nothing is learnt of a
        request that failed or was left: what it used is a guess. A call that lost a race counts as its rivals do.
        """
        if ledger.error is not None:
            return
        if ledger.tokens_in:
            if len(self._exempt) >= _MOST:
                self._exempt.clear()
            exempt, of = self._exempt.get((tenant, surface), (0.0, 0.0))
            self._exempt[tenant, surface] = (
                exempt * _REMEMBERED + ledger.tokens_exempt, of * _REMEMBERED + ledger.tokens_in
            )  # fmt: skip
        for place, name in enumerate(tiers):
            used = _used(ledger, name, choices)
            if used is None:
                continue
            self._of(tenant, surface, name, first=not place).learn(used, tokens_in, sees_prompt=tokens_in > 0)

    def _of(self, tenant: str, surface: str, tier: str, *, first: bool) -> LearntUsage:
        key = tenant, surface, tier, first
        learnt = self._learnt.get(key)
        if learnt is None:
            if len(self._learnt) >= _MOST:
                self._learnt.clear()
            learnt = self._learnt[key] = LearntUsage(PRIOR["calls_of_first_tier" if first else "calls_of_later_tier"])
        return learnt


def _kept_for(request: RequestContext, tier: Tier) -> str:
    """Return how long a request asks the provider to keep its prompt, by its own markers or by those it is given."""
    lifetime = lifetime_asked(request.body, request.native)
    facts = tier.endpoints[0].config.prompt_cache
    added = request.policy.prompt_cache
    if lifetime or facts is None or facts.form == "key" or added == "off":
        return lifetime
    if not facts.worth(request.features.approx_tokens, request.features.tools):
        return ""
    return facts.longest if added == "long" else FIVE_MINUTES


def _beside(policy: Policy) -> int:
    """Return the calls that may be made beside one of a tier."""
    agreement = policy.escalate.agreement
    return (policy.escalate.hedge is not None) + (agreement.samples if agreement is not None else 0)


def _used(ledger: Ledger, tier: str, choices: int) -> UsedByRequest | None:
    """Return what a request used at a tier; None if none of its calls there was read to the end."""
    calls = lost = tokens_in = tokens_out = cached = written = 0
    for call in ledger.calls:
        if call.tier != tier or call.verifier == "judge":
            continue
        calls += 1
        tokens_in += call.tokens_in
        cached += call.tokens_cached
        written += call.tokens_cache_write
        if call.outcome == LOST:
            lost += 1
        else:
            tokens_out += call.tokens_out
    if calls == lost:
        return None if calls else _UNUSED
    return UsedByRequest(calls, tokens_in, round(tokens_out * calls / (calls - lost) / choices), cached, written)


def _most_out(body: Mapping[str, Any], most: int | None) -> int:
    """Return the most completion tokens that one choice of a call may have."""
    for name in ("max_completion_tokens", "max_tokens"):
        limit = body.get(name)
        if isinstance(limit, int) and (most is None or limit < most):
            most = limit
    return _MOST_TOKENS if most is None else most


def _choices(body: Mapping[str, Any]) -> int:
    choices = body.get("n")
    return choices if isinstance(choices, int) and choices > 0 else 1
