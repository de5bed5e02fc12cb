"""Remember of each conversation which tier answered last, and what each tier's provider holds of its prompt.

A worker knows it of the turns that it has answered itself. A request's turn begins with `enter` and is remembered when
its reply is out: nothing of it is on the request's path but the look into memory.

Say what a conversation's next turn would cost at each tier, as far as their providers still hold its prompt.

A provider keeps a prompt that it has read for some minutes, and reads it again faster and for less. What it holds is
known from what it said of each call (`Held`), and how long from facts about it; the rest is not known, and changes
nothing. The strongest tier that holds a part of the prompt is where the conversation is warm: going below it is a
switch, and this is what it costs, in US dollars:

    this turn    what the tier holds read from its cache, and the rest read cold
    its like     the turns until one asks for the strongest again: all but what a turn adds read from the cache, if
                 turns follow each other before it lapses
    made again   what the strongest costs, for the share of the tier's answers, with this one, that it has replaced
    coming back  the prompt read cold at the strongest, if it lapses by then, times the chance that it is asked for

That chance is the share of the conversation's turns so far that asked for a tier as strong: one in `turns / hard` does,
so as many turns pass until then. The first two count for the strongest tier too, so that staying is weighed alike.
Nothing is weighed above it: what asks for a stronger tier gets it.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.cascade.call import ONE_HOUR
from gateway.chat.usage import Usage
from gateway.parts.agents.turns import Recent, TurnMemory, keys_of
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

LEAST_KEPT: Final = 1024
"""Shortest prompt in tokens that providers keep."""
_BLOCK: Final = 128
_FEWEST: Final = 12.0
"""Calls, by their weights, from which a reading speed is known."""
_KEEPS: Final = 0.98
"""Share of its weight that a call keeps when the next one is counted."""


class Held(NamedTuple):
    """What a provider holds of a conversation's prompt: tokens, and when it read them last, in Unix seconds.

    `tokens` and `lifetime_s` are None where they are not known.
    """

    tokens: int | None
    used_s: float
    lifetime_s: float | None

    def at(self, now_s: float) -> int | None:
        """Return the prompt tokens that the provider still holds at a Unix time; None if that is not known."""
        if self.tokens is None or self.tokens == 0:
            return self.tokens
        if self.lifetime_s is None:
            return None
        return self.tokens if now_s - self.used_s < self.lifetime_s else 0


def kept_of(tokens_in: int, cached: int, written: int | None) -> int:
    """Return how many tokens of the prompt are in the provider's prompt cache after a call.

    `written` is None for a provider that caches each prompt's beginning in whole blocks without reporting it.
    """
    if written is not None:
        return cached + written
    return max(cached, tokens_in - tokens_in % _BLOCK) if tokens_in >= LEAST_KEPT else cached


class TierTerms(NamedTuple):
    """What is known of a tier's calls. `lifetime_s` is how long its provider keeps a prompt after its last use."""

    lifetime_s: float | None
    usd: Callable[[int, int, int], float | None]
    """The cost of a call with so many prompt tokens, so many of them cached and the others written, and so many out."""
    cold_s: Callable[[int], float]
    """The seconds that reading so many tokens cold takes more than the usual call; 0 where that is not known."""


@dataclass(slots=True)
class KnownConversation:
    """What is remembered of a conversation, as of its last turn. Times are in Unix seconds."""

    tier: str = ""
    """The tier of the answer before."""
    turns: int = 0
    first_s: float = 0.0
    tokens_in: int = 0
    """Prompt tokens of the last turn, by its provider's count."""
    estimate: int = 0
    """The same by the gateway's own estimate, which leaves tools out."""
    left_out: int = 0
    """Estimated tokens of what the client sent and the provider was not (`input`)."""
    tokens_out: float = 0.0
    """Mean tokens of an answer."""
    messages: int = 0
    mark: int = 0
    """Hash of the message in the middle of the last prompt, which the next one begins with."""
    asked: dict[str, int] = field(default_factory=dict)
    """Turns by the weakest tier that was enough."""
    held: dict[str, Held] = field(default_factory=dict)
    """By tier; one that was never called holds nothing."""
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By tier, how many answers it gave, and how many of them were not good enough and were made again above it."""

    def copy(self) -> KnownConversation:
        """Return a copy that can be changed by itself."""
        return replace(self, asked=dict(self.asked), held=dict(self.held), drafts=dict(self.drafts))

    def gave(self, tier: str, *, rejected: bool) -> None:
        """Note an answer of a tier."""
        drafts, failed = self.drafts.get(tier, (0, 0))
        self.drafts[tier] = drafts + 1, failed + rejected

    def ended(self, now_s: float, asked: str, tokens_in: int, tokens_out: int, estimate: int) -> None:
        """Note a turn that was answered by calls.

        `asked` is the weakest tier that would have been enough, '' if that is not known; `estimate` is the gateway's
        own count of `tokens_in`.
        """
        self.first_s = self.first_s or now_s
        self.turns += 1
        self.tokens_in, self.estimate = tokens_in, estimate
        self.tokens_out += (tokens_out - self.tokens_out) / self.turns
        if asked:
            self.asked[asked] = self.asked.get(asked, 0) + 1


def costs_of(
    conversation: KnownConversation, terms: Mapping[str, TierTerms], ladder: Sequence[str], estimate: int, now_s: float
) -> dict[str, TierCost]:
    """Return the cost of the tiers up to the strongest that holds a part of the prompt; empty if that is the cheapest.

    `estimate` is the gateway's own estimate of the prompt's tokens.
    """
    warm = [conversation.held[name].at(now_s) if name in conversation.held else 0 for name in ladder]
    top = max((place for place, tokens in enumerate(warm) if tokens), default=0)
    if not top or not conversation.turns:
        return {}
    grown = max(0, estimate - conversation.estimate)
    tokens = max(1, conversation.tokens_in + estimate - conversation.estimate)
    turns = conversation.turns + 1
    hard = sum([conversation.asked.get(name, 0) for name in ladder[top:]])
    pause_s = (now_s - conversation.first_s) / conversation.turns
    runs, out = turns / max(1, hard), round(conversation.tokens_out)
    strongest, held = terms[ladder[top]], conversation.held[ladder[top]]
    lapses_s = held.used_s + (held.lifetime_s or 0.0) - now_s
    back = 0.0
    if runs * pause_s >= lapses_s:
        cold, read = (strongest.usd(tokens, cached, 0) for cached in (0, tokens))
        back = 0.0 if cold is None or read is None else hard / turns * max(0.0, cold - read)
    costs: dict[str, TierCost] = {}
    again = 0.0
    for place in range(top, -1, -1):
        own, cached = terms[ladder[place]], warm[place]
        lasts = own.lifetime_s is not None and pause_s < own.lifetime_s
        usd = own.usd(tokens, min(cached or 0, tokens), out)
        like = own.usd(tokens, max(0, tokens - grown) if lasts else 0, out)
        if (cached is None or own.lifetime_s is None) and usd != own.usd(tokens, tokens, out):
            usd = None
        if usd is not None and like is not None:
            usd += (runs - 1) * like
            if place == top:
                again = usd
            else:
                drafts, failed = conversation.drafts.get(ladder[place], (0, 0))
                usd += back + failed / (drafts + 1) * again
        read_cold = None if cached is None else max(0, tokens - cached)
        slower_s = own.cold_s(read_cold) if read_cold and place < top else 0.0
        costs[ladder[place]] = TierCost(read_cold, usd, slower_s)
    return dict(reversed(costs.items()))


class ReadingSpeed:
    """How long a tier takes to read a prompt, from the calls whose cached tokens are known; late ones weigh more.

    Least squares of the time to the first token over the tokens that were read cold.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5

    def observe(self, cold: int, seconds: float) -> None:
        """Add a call: the prompt tokens that no cache held, and the seconds to its first token."""
        added = (1.0, cold, seconds, cold * cold, cold * seconds)
        self._sums = [before * _KEEPS + gain for before, gain in zip(self._sums, added, strict=True)]

    def more_s(self, cold: int) -> float:
        """Return the seconds that a prompt with `cold` uncached tokens takes beyond the usual call; 0 if unknown."""
        n, x, y, xx, xy = self._sums
        spread = n * xx - x * x
        if n < _FEWEST or spread <= 1e-9 * n * xx:
            return 0.0
        return max(0.0, (n * xy - x * y) / spread) * max(0.0, cold - x / n)


_MOST: Final = 8192
"""Conversations that are remembered: some 10 MB."""
_MOST_OF_MESSAGE: Final = 500


class TierPrompts:
    """What is known of the prompts of one tier: how long they stay cached, what they cost, how fast they are read."""

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

    def rated(
        self, policy: Policy, model: DifficultyModel, features: Features, vector: Vector, effort: float | None
    ) -> Features:
        """Return the features with how hard earlier turns make this one, as far as their vectors are known."""
        return features._replace(before=self._turns.hardest(policy, model, vector, effort, features.earlier))

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
