"""Say what a conversation's next turn would cost at each tier, as far as their providers still hold its prompt.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from routing.decide import TierCost

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
        """Return the tokens that it still holds; None if that is not known."""
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
        """Note a turn that calls answered; `asked` is the weakest tier that was enough, '' if that is not known."""
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
        """Add a call: tokens that were read cold, and seconds to the first token."""
        added = (1.0, cold, seconds, cold * cold, cold * seconds)
        self._sums = [before * _KEEPS + gain for before, gain in zip(self._sums, added, strict=True)]

    def more_s(self, cold: int) -> float:
        """Return the seconds that so many cold tokens take more than those of the usual call; 0 if not known."""
        n, x, y, xx, xy = self._sums
        spread = n * xx - x * x
        if n < _FEWEST or spread <= 1e-9 * n * xx:
            return 0.0
        return max(0.0, (n * xy - x * y) / spread) * max(0.0, cold - x / n)
