"""Estimate what a request will cost before its first call: what is reserved of its owners' budgets.

All costs are sums over the tiers of the request's decision, at each tier's price. What is expected is what requests of
its tenant and surface use there on average, and what is reserved is the 90th percentile, both within
`max_tokens`. The worst case is one call of each tier, with a hedge and samples where the policy has them, to the last
token allowed; it is reserved once 90% of a budget is spent (`gateway.parts.access.quotas.machine`).

Estimate a prompt's tokens where part of it is not text in the request's body.

part                                            what it counts as
----------------------------------------------  ---------------------------------------------------------------
a picture, in the body or by URL                1,600 tokens
a file, a document, audio, by id, URL or bytes  all of the tier's context: what is in it only the provider knows
a prompt that the provider keeps by its id      so too

Learn what requests use at one tier, and estimate from it what the next one will use: no I/O, no clock.

    known answers | expected              | reserved
    --------------+-----------------------+---------------------------------------------------------
    none          | 400 completion tokens | what the request allows, at most 2,000 completion tokens
    1 to 19       | the mean              | as above: the first answers to end are the shortest
    20 and more   | the mean              | the 90th percentile: the mean and 1.28 standard deviations

What is reserved holds against what most answers cost, not against the longest that is possible: 2,000 tokens are more
than nine of ten answers of chats have. A quarter of the output limit, or a tenth of the budget, would let too many
requests run beside each other before the first has ended: `python -m tests.bench.overspend --grid` has the figures.
A percentile below the mean, as many short answers and few long ones have it, would not cover their sum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gateway.cascade.call import FIVE_MINUTES, ONE_HOUR, lifetime_asked
from gateway.chat.usage import Usage
from gateway.telemetry.names import LOST
from policies.quantities import NANO
from routing.features import OF_AN_IMAGE, PROVIDERS_TOOLS, text_of

if TYPE_CHECKING:
    from gateway.dialects.native import Native
    from gateway.request.context import RequestContext
    from gateway.telemetry.ledger import Ledger
    from gateway.tiers import Tier
    from policies.model import Policy
    from routing.features import Features

PRIOR: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_name("expected_costs.json").read_text("utf-8"))
"""What is assumed before requests have ended."""
_TOKENS_OUT: Final[float] = PRIOR["completion_tokens"]
_RESERVED_OUT: Final[float] = PRIOR["reserved_tokens"]
_NEWEST: Final[float] = PRIOR["newest"]
"""Weight of the newest request once many have ended; before that the n-th counts as 1/n."""
_SPREAD: Final = 1.28
"""Standard deviations from the mean of a normal distribution to its 90th percentile."""


class AskedOfTier(NamedTuple):
    """What one request would have one tier do: read this prompt, and write at most so much."""

    tokens_in: int
    """Tokens of its prompt, estimated."""
    sees_prompt: bool
    """Whether the body shows all of the prompt; else `tokens_in` is the most that it can have."""
    most_out: int
    """Most completion tokens of each choice."""
    choices: int
    service_tier: str
    kept_for: str = ""
    """How long its prompt is asked to be kept in the provider's cache: `5m`, `1h`, or '' if nobody asks."""


class UsedByRequest(NamedTuple):
    """What one request used at one tier, over all of its calls there."""

    calls: int
    tokens_in: int
    """As the provider counted them; so of the further counts."""
    tokens_out: int
    """Completion tokens for each choice that was asked for."""
    tokens_cached: int
    tokens_cache_write: int


@dataclass(slots=True)
class _Moments:
    """Mean and variance, exponentially weighted, and the 10th and 90th percentile."""

    mean: float = 0.0
    variance: float = 0.0
    low: float = 0.0
    high: float = 0.0
    seen: int = 0

    def learn(self, value: float) -> None:
        self.seen += 1
        weight = max(1 / self.seen, _NEWEST)
        step = value - self.mean
        self.mean += weight * step
        self.variance = (1 - weight) * (self.variance + weight * step * step)
        spread = _SPREAD * math.sqrt(self.variance)
        self.low, self.high = max(0.0, self.mean - spread), self.mean + spread


@dataclass(slots=True)
class LearntUsage:
    """Learnt usage of a surface's requests at one tier; `prior_calls` are the calls assumed before any is known."""

    prior_calls: InitVar[float]
    calls: float = field(init=False)
    """Calls that a request is expected to make here: retries, hedges, samples and continued answers included."""
    tokens_out: float = field(init=False)
    """Completion tokens that a request is expected to get here, for each choice."""
    prompt_ratio: float = field(init=False)
    """Prompt tokens that the provider counts over all calls, for each that was estimated."""
    _calls: _Moments = field(default_factory=_Moments)
    _out: _Moments = field(default_factory=_Moments)
    _most_out: int = 0
    _prompt: _Moments = field(default_factory=_Moments)
    _cached: _Moments = field(default_factory=_Moments)
    _written: _Moments = field(default_factory=_Moments)

    def __post_init__(self, prior_calls: float) -> None:
        self.calls = self.prompt_ratio = prior_calls
        self.tokens_out = _TOKENS_OUT * prior_calls

    @property
    def seen(self) -> int:
        """Return from how many answers the averages were computed."""
        return self._out.seen

    def expected(self, asked: AskedOfTier) -> Usage:
        """Return the mean number of tokens that a request is expected to use at this tier."""
        out = asked.choices * min(self.tokens_out, asked.most_out)
        prompt = asked.tokens_in * (self.prompt_ratio if asked.sees_prompt else self.calls)
        written = self._written.mean if self._written.seen else _unknown_write(asked)
        return _usage(asked, prompt, out, self._cached.mean, written)

    def reserved(self, asked: AskedOfTier) -> Usage:
        """Return the tokens to reserve for a request: the amount that nine of ten requests do not exceed."""
        prompt = asked.tokens_in * (self._prompt.high if self._prompt.seen and asked.sees_prompt else 1.0)
        known = self._out.seen >= PRIOR["known_answers"]
        out = asked.choices * min(self._out.high if known else _RESERVED_OUT, asked.most_out)
        written = self._written.high if self._written.seen else _unknown_write(asked)
        return _usage(asked, prompt, out, self._cached.low, written)

    def worst(self, asked: AskedOfTier) -> Usage:
        """Return the most that one call may use: every token allowed, with all of its prompt written to the cache."""
        prompt = asked.tokens_in * max(1.0, self.prompt_ratio)
        return _usage(asked, prompt, asked.choices * asked.most_out, 0.0, _unknown_write(asked))

    def owed_out(self, most_out: int) -> float:
        """Return the completion tokens that a choice owes whose answer is never known.

        From 20 known answers on, what is reserved for it; before, at most (1 + 4/n) times the most that was seen.
        """
        known = self._out.seen
        if known >= PRIOR["known_answers"]:
            return min(self._out.high, most_out)
        unknown = min(float(most_out), _RESERVED_OUT)
        return min(unknown, self._most_out * (1 + 4 / known)) if self._most_out else unknown

    def learn(self, used: UsedByRequest, tokens_in: int, *, sees_prompt: bool) -> None:
        """Take in what a request used here, nothing where it was not asked.

        `tokens_in` was estimated; without `sees_prompt` most of the prompt was not in the body, and says nothing.
        """
        self._calls.learn(used.calls)
        self._out.learn(used.tokens_out)
        self._most_out = max(self._most_out, used.tokens_out)
        self.calls, self.tokens_out = self._calls.mean, self._out.mean
        if not sees_prompt:
            return
        self._prompt.learn(used.tokens_in / max(1, tokens_in))
        self.prompt_ratio = self._prompt.mean
        if used.tokens_in:
            self._cached.learn(used.tokens_cached / used.tokens_in)
            self._written.learn(used.tokens_cache_write / used.tokens_in)


def _unknown_write(asked: AskedOfTier) -> float:
    """Return the share of a prompt that is written to the cache before that is known: all, if it is asked for."""
    return 1.0 if asked.kept_for else 0.0


def _usage(asked: AskedOfTier, prompt: float, out: float, cached: float, written: float) -> Usage:
    tokens_in = round(prompt)
    tokens_cached = min(round(prompt * cached), tokens_in)
    tokens_written = min(round(prompt * written), tokens_in - tokens_cached)
    return Usage(
        tokens_in,
        round(out),
        tokens_cached=tokens_cached,
        tokens_cache_write=tokens_written,
        tokens_hour_write=tokens_written if asked.kept_for == ONE_HOUR else None,
        service_tier=asked.service_tier,
    )


_UNSEEN: Final = frozenset({"audio", "files", "file_urls"})
"""Needs of a request (`routing.features.FURTHER`) with parts whose length the body does not tell."""
_BLOCKS: Final = frozenset({"document", "image", "container_upload", "input_file", "input_image", "file"})
"""Types of content that the provider has, or fetches."""
_UNKNOWN_CONTEXT: Final = 200_000
"""Tokens that a prompt may have at a tier whose context nobody states."""


def prompt_tokens(
    features: Features, body: Mapping[str, Any], native: Native | None, tier: Tier | None
) -> tuple[int, bool]:
    """Return the tokens of a prompt at a tier, and whether the body shows all of it."""
    if not features.further.isdisjoint(_UNSEEN) or (native is not None and native.lost and _is_unseen(native)):
        context = None if tier is None else tier.context()
        return max(features.approx_tokens, context or _UNKNOWN_CONTEXT), False
    if not features.has_images:
        return features.approx_tokens, True
    images = sum(text_of(message.get("content"))[1] for message in body["messages"])
    return features.approx_tokens + images * OF_AN_IMAGE, True


def _is_unseen(native: Native) -> bool:
    return any(
        path == "prompt" or (type(value) is dict and value.get("type") in _BLOCKS)
        for path, value in native.lost.items()
    )


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
    """Estimate the tokens and the cost of one worker's requests, from what earlier ones used."""

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
