"""Remember of each conversation which tier answered last, and what each tier's provider holds of its prompt.

A worker knows it of the turns that it has answered itself. A request's turn begins with `enter` and is remembered when
its reply is out: nothing of it is on the request's path but the look into memory. What is weighed by it, and how, is in
`gateway.parts.agents.warmth`.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway.cascade.call import ONE_HOUR
from gateway.chat.usage import Usage
from gateway.parts.agents.recent import Recent
from gateway.parts.agents.turns import TurnMemory, keys_of
from gateway.parts.agents.warmth import Held, KnownConversation, ReadingSpeed, TierTerms, costs_of, kept_of
from policies.quantities import read_duration
from routing.cascade import REJECTED
from routing.decide import TierCost, clause_of

if TYPE_CHECKING:
    from gateway.chat.usage import Price
    from gateway.config.backends import BackendConfig
    from gateway.request.context import RequestContext
    from gateway.telemetry.ledger import CallAccount, Ledger
    from gateway.telemetry.trace import Trace
    from gateway.tiers import Tier
    from policies.model import Policy
    from routing.difficulty.model import DifficultyModel
    from routing.embedder import Vector
    from routing.features import Features

_MOST: Final = 8192
"""Conversations that are remembered: some 10 MB."""
_MOST_OF_MESSAGE: Final = 500


class TierPrompts:
    """What is known of how one tier reads prompts."""

    def __init__(self, tier: Tier) -> None:
        self.backends: dict[str, BackendConfig] = {endpoint.config.name: endpoint.config for endpoint in tier.endpoints}
        configs = [config for config in self.backends.values() if config.configured]
        goes_back = len(configs) == 1 or tier.sticky
        lifetime_s = configs[0].prompt_lifetime if configs and goes_back else None
        facts = configs[0].prompt_cache if lifetime_s is not None else None
        self.longest_s = read_duration(facts.longest) if facts is not None and facts.longest else lifetime_s
        """How long it keeps a prompt where a request asks for the longest time."""
        self.speed = ReadingSpeed()
        self.terms = TierTerms(lifetime_s, partial(_usd, tier.price, for_an_hour=False), self.speed.more_s)
        for_an_hour = facts is not None and facts.longest == ONE_HOUR
        self.longer_terms = self.terms._replace(usd=partial(_usd, tier.price, for_an_hour=for_an_hour))
        """The same where a request asks for the longest time, which may cost more to write."""


def _usd(price: Price | None, tokens_in: int, cached: int, tokens_out: int, *, for_an_hour: bool) -> float | None:
    written = tokens_in - cached
    hour_write = written if for_an_hour else None
    usage = Usage(tokens_in, tokens_out, tokens_cached=cached, tokens_cache_write=written, tokens_hour_write=hour_write)
    return None if price is None else price.of(usage)


class ConversationMemory:
    """The latest conversations of one worker: a `gateway.cascade.protocols.ConversationAdvisor`."""

    def __init__(self, tiers: Mapping[str, Tier], clock: Callable[[], float] = time.time) -> None:
        self._tiers = {name: TierPrompts(tier) for name, tier in tiers.items()}
        self._clock = clock
        self._terms = {name: tier.terms for name, tier in self._tiers.items()}
        self._longer_terms = {name: tier.longer_terms for name, tier in self._tiers.items()}
        self._recent: Recent[KnownConversation] = Recent(_MOST)
        self._turns = TurnMemory()

    def enter(
        self, policy: Policy, ledger: Ledger, body: Mapping[str, Any], features: Features, trace: Trace, *, named: bool
    ) -> tuple[Features, KnownConversation | None]:
        """Return a turn's features, with the tier of the answer before where a rule asks for it, and its conversation.

        `named`: the client names its session. The turn is remembered when its request is over.
        """
        messages, this = body["messages"], hash(ledger.conversation)
        keys = [this]
        if not named:
            before, this = keys_of(ledger.conversation, features)
            keys = [this, before]  # of an agent's step, the user's messages are those of the step before
        recent = next((conversation for key in keys if (conversation := self._recent.get(key)) is not None), None)
        if recent is not None:
            recent = recent.copy()
            at = recent.messages // 2
            if features.approx_tokens < recent.estimate or at >= len(messages) or _mark(messages[at]) != recent.mark:
                recent.held.clear()  # the prompt does not begin as the last one did: no provider holds it
            if "last_tier" in policy.asked and recent.tier in policy.tiers:
                features = features._replace(last_tier=policy.tiers.index(recent.tier) + 1)
        count, mark = len(messages), _mark(messages[len(messages) // 2])
        estimate = features.approx_tokens
        longer = policy.prompt_cache == "long" or body.get("prompt_cache_retention") == "24h"

        def over(ledger: Ledger) -> None:
            conversation = recent.copy() if recent is not None else KnownConversation()
            conversation.messages, conversation.mark = count, mark
            conversation.left_out = ledger.tokens_left_out
            self._note(conversation, ledger, _asked(trace, ledger), estimate - conversation.left_out, longer=longer)
            self._recent.put(this, conversation)

        trace.then(over)
        return features, recent

    def costs(self, request: RequestContext) -> Mapping[str, TierCost] | None:
        """Return what the request's conversation costs at its tiers; None or empty where that changes nothing."""
        conversation = request.conversation
        if not isinstance(conversation, KnownConversation) or conversation.left_out != request.ledger.tokens_left_out:
            return None  # where more is left out than before, the prompt begins otherwise
        terms = self._longer_terms if request.policy.prompt_cache == "long" else self._terms
        return costs_of(conversation, terms, request.policy.ladder, request.features.approx_tokens, self._clock())

    async def read(
        self,
        features: Features,
        vector: Vector,
        embed: Callable[[Sequence[str], float], Awaitable[Sequence[Vector]]],
        limit_s: float,
    ) -> None:
        """Remember the vector of the request's turn, and of the earlier ones that this worker has not read."""
        turns = self._turns
        if not features.in_context:
            turns.put(features.text, vector)
        if features.earlier and (unread := turns.unread(features.earlier)):
            with contextlib.suppress(TimeoutError):  # nothing is known of the conversation then
                for text, read in zip(unread, await embed(unread, limit_s), strict=True):
                    turns.put(text, read)

    def rated(self, policy: Policy, model: DifficultyModel, features: Features, vector: Vector) -> Features:
        """Return the features with how hard the turns before are, as far as they are read."""
        return features._replace(before=self._turns.hardest(policy, model, vector, features.earlier))

    def _note(self, known: KnownConversation, ledger: Ledger, asked: str, estimate: int, *, longer: bool) -> None:
        now_s = self._clock()
        known.tier = ledger.tier or known.tier
        answered: CallAccount | None = None
        for call in ledger.calls:
            tier = self._tiers.get(call.tier)
            if tier is None or not call.attempt or not call.tokens_in:
                continue
            known.held[call.tier] = _held(call, tier, known.held.get(call.tier), now_s, longer=longer)
            known.gave(call.tier, rejected=call.outcome in REJECTED)
            if call.ttft_ms is not None and not call.estimated:
                tier.speed.observe(call.tokens_in - call.tokens_cached, call.ttft_ms / 1000)
            answered = answered or (None if call.wasted else call)
        if answered is not None:
            known.ended(now_s, asked, answered.tokens_in, answered.tokens_out, estimate)


def _held(call: CallAccount, tier: TierPrompts, before: Held | None, now_s: float, *, longer: bool) -> Held:
    """Return what a call's provider holds of its prompt; `longer`: it was asked to keep it for the longest time.

    One that read nothing of what it should hold since the call `before` keeps no prompts.
    """
    lifetime_s = tier.longest_s if longer else tier.terms.lifetime_s
    if call.estimated:
        return Held(None, now_s, lifetime_s)
    config = tier.backends.get(call.backend)
    tells = call.tokens_cache_write > 0 or (config is not None and config.tells_cache_writes)
    failed = before is not None and not call.tokens_cached and (before.tokens == 0 or before.at(now_s))
    kept = kept_of(call.tokens_in, call.tokens_cached, call.tokens_cache_write if tells or failed else None)
    return Held(kept, now_s, lifetime_s)


def _asked(trace: Trace, ledger: Ledger) -> str:
    """Return the weakest tier that was enough for the turn; '' if that is not known."""
    made = trace.decision
    if ledger.path == "escalated":
        return ledger.tier
    if made is None or made.decision is None:
        return ""
    tier = clause_of(made.policy, made.decision).removeprefix("route.start.")
    return tier if tier in made.policy.tiers else ""


def _mark(message: Mapping[str, Any]) -> int:
    """Return a hash of the beginning of a message's text."""
    content = message.get("content")
    parts: Sequence[Any] = content if type(content) is list else ()
    text = content if type(content) is str else "".join(str(part.get("text", "")) for part in parts[:2])
    return zlib.crc32(text[:_MOST_OF_MESSAGE].encode("utf-8", "surrogatepass"))
