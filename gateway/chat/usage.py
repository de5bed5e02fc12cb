"""Read what calls used and cost, in the words of every provider, and compute the cost of a call from rates.

Token counts are read in OpenAI's words; a part brings other spellings into them where a reply arrives (see
`gateway.backends.server_forms.ReplyForms`). A provider that states the charge of a call is believed:

    who                     what it says                                             what it means
    OpenRouter, Perplexity  cost, or cost.total_cost                                 charge of the call in US dollars
    xAI                     cost_in_usd_ticks                                        that charge in 1e-10 US dollars

A price that nobody states is unknown, which is None and never 0: an unknown cost must not look like a saving.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import Field

from gateway.parts.standard import one
from policies.validation import Section
from policies.value_type import value_type

_IN, _OUT, _TOTAL, _ESTIMATED = "prompt_tokens", "completion_tokens", "total_tokens", "estimated"
CACHE_WRITES: Final = "cache_creation_token_details"
"""Detail of the prompt that divides what was written to the cache by how long it is kept."""
SHORT_WRITES: Final = "ephemeral_5m_input_tokens"
HOUR_WRITES: Final = "ephemeral_1h_input_tokens"
COST_WORDS: Final = ("cost", "cost_details", "cost_in_usd_ticks", "is_byok")
"""Members of a usage that state the charge of a call."""
BEGUN: Final = "begun"
"""Member of a chunk's usage that says how its stream begins: with its prompt's tokens, and not with the answer's."""
_OF_CLIENT: Final = (_IN, _OUT, _TOTAL, "completion_tokens_details", _ESTIMATED)
"""Members of a usage that follow from a request and its answer alone."""
_OF_PROMPT: Final = ("audio_tokens", "image_tokens", "text_tokens", "video_tokens")
"""Details of the prompt that do too."""
_MEMBERS: Final = frozenset(
    {
        "id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint", "metadata",
        "moderation", "obfuscation", "provider", "citations", "search_results", "images", "related_questions",
        "prompt_filter_results", "error",
    }
)  # fmt: skip
"""Members of a reply or chunk that say nothing of the backend's prompt cache."""
_OF_CHOICE: Final = frozenset(
    {
        "index", "message", "delta", "text", "finish_reason", "native_finish_reason", "stop_reason", "logprobs",
        "token_ids", "content_filter_results", "error",
    }
)  # fmt: skip
"""Members of a choice that say nothing of it; in streams, Moonshot has the usage there."""
_CHARGES: Final = frozenset({"cost", "cost_in_usd_ticks"})
_MOST_TOKENS: Final = 10**12
_TICKS: Final = 1e10
"""xAI's ticks in a US dollar."""


@value_type
class Usage:
    """Token counts of one backend call. `estimated`: some were counted by the gateway, as the backend told none.

    Of `tokens_in`, `tokens_cached` were read from the provider's prompt cache, and `tokens_cache_write` written to it.
    Of these, `tokens_hour_write` are kept for an hour; None if the provider does not say how long they are kept.
    `service_tier` is the provider's, such as `flex`; '' if it names none. `cost_usd` is the charge in US dollars that
    the provider states; None if it states none. Of `tokens_out`, `tokens_reasoning` were thinking.
    """

    tokens_in: int
    tokens_out: int
    estimated: bool = False
    tokens_cached: int = 0
    tokens_cache_write: int = 0
    service_tier: str = ""
    cost_usd: float | None = None
    tokens_reasoning: int = 0
    tokens_hour_write: int | None = None

    @property
    def incomplete(self) -> bool:
        """Whether the backend left out a count that the gateway has not estimated yet."""
        return self.estimated and not (self.tokens_in and self.tokens_out)


def usage_of(value: Mapping[str, Any]) -> Usage | None:
    """Return the usage that a completion or chunk reports in the standard words; None if it is missing or invalid."""
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return None
    tokens_in, tokens_out = usage.get(_IN), usage.get(_OUT)
    if type(tokens_in) is not int or type(tokens_out) is not int or tokens_in < 0 or tokens_out < 0:
        return None
    cached = written = 0
    for_an_hour = None
    if details := usage.get("prompt_tokens_details"):
        cached = portion(details, "cached_tokens", tokens_in)
        written = min(portion(details, "cache_write_tokens", tokens_in), tokens_in - cached)
        if written:
            for_an_hour = _for_an_hour(details, written)
    thought = 0
    if details := usage.get("completion_tokens_details"):
        thought = portion(details, "reasoning_tokens", tokens_out)
    tier = value.get("service_tier")
    tier = tier if isinstance(tier, str) else ""
    stated = None if _CHARGES.isdisjoint(usage) else _stated_cost(usage)
    estimated = usage.get(_ESTIMATED) is True
    return Usage(tokens_in, tokens_out, estimated, cached, written, tier, stated, thought, for_an_hour)


def portion(details: object, name: str, most: int) -> int:
    """Return the count of this name in the usage's details, at most `most`; 0 if it is missing or invalid."""
    count = details.get(name) if isinstance(details, dict) else None
    return min(count, most) if type(count) is int and count > 0 else 0


def _for_an_hour(details: Mapping[str, Any], written: int) -> int | None:
    """Return how many of the written tokens are kept for an hour; None if that is not told."""
    writes = details.get(CACHE_WRITES)
    told = isinstance(writes, dict) and (count_in(writes.get(HOUR_WRITES)) or count_in(writes.get(SHORT_WRITES)))
    return portion(writes, HOUR_WRITES, written) if told else None


def without_cache(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a usage in the standard words without what depends on the backend's prompt cache: its hits and charges.

    Where several tenants share a backend, these would tell one of them what the others have asked.
    """
    kept = {name: usage[name] for name in _OF_CLIENT if name in usage}
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and (kinds := {name: details[name] for name in _OF_PROMPT if name in details}):
        kept["prompt_tokens_details"] = kinds
    return kept


def hide_cache(value: dict[str, Any]) -> bool:
    """Leave out of a reply or chunk, in place, what may depend on the backend's prompt cache; return whether it did.

    Servers tell of it in members of their own, such as llama.cpp's `timings` and `prompt_progress`: only those that are
    known to say nothing of it stay.
    """
    changed = False
    for holder, known in ((value, _MEMBERS), *((choice, _OF_CHOICE) for choice in value.get("choices") or ())):
        for name in holder.keys() - known:
            del holder[name]
            changed = True
    usage = value.get("usage")
    if isinstance(usage, dict) and (kept := without_cache(usage)) != usage:
        value["usage"] = kept
        return True
    return changed


def count_in(value: object) -> int | None:
    """Return a token count; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _stated_cost(usage: Mapping[str, Any]) -> float | None:
    """Return the charge in US dollars that the provider states; None if it states none."""
    ticks, cost = usage.get("cost_in_usd_ticks"), usage.get("cost")
    if ticks is None and cost is None:
        return None
    in_ticks = _dollars(ticks)
    if in_ticks is not None:
        return in_ticks / _TICKS
    stated = _dollars(cost.get("total_cost") if isinstance(cost, dict) else cost)
    if stated is None or usage.get("is_byok") is not True:
        return stated
    # OpenRouter with a key of one's own at the provider, which charges too.
    details = usage.get("cost_details")
    upstream = _dollars(details.get("upstream_inference_cost")) if isinstance(details, dict) else None
    return None if upstream is None else stated + upstream


def _dollars(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None


Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_PER: Final = 1e6
"""Tokens that a rate is of."""
_STEPS: Final = 1e12
"""Parts of a dollar in which costs are counted: what is finer comes of binary fractions."""
_HOUR_BY_INPUT: Final = 2.0
"""What writing for an hour costs by the prompt's price; see the guide on prompt caching at platform.claude.com."""


class TokenRates(Section):
    """US dollars per million tokens: prompt (`input`), completion (`output`), prompt read from or written to a cache.

    Left out, cached prompt tokens cost what other prompt tokens do. What is written for an hour costs twice the
    prompt's price where writing has a price of its own, as with Anthropic.
    """

    input: Dollars = 0.0
    output: Dollars = 0.0
    cached_input: Dollars | None = None
    cache_write: Dollars | None = None
    cache_write_1h: Dollars | None = None

    def of(self, usage: Usage) -> float:
        """Return the cost of one call in US dollars."""
        rates = self.rates_for(usage) if self.varies else self
        prompt = usage.tokens_in * rates.input
        if usage.tokens_cached and rates.cached_input is not None:
            prompt += usage.tokens_cached * (rates.cached_input - rates.input)
        if usage.tokens_cache_write:
            for_an_hour = usage.tokens_hour_write or 0
            shorter = rates.input if rates.cache_write is None else rates.cache_write
            prompt += (usage.tokens_cache_write - for_an_hour) * (shorter - rates.input)
            prompt += for_an_hour * (rates.hour_write - rates.input)
        return ((prompt + usage.tokens_out * rates.output) * (_STEPS / _PER) + 0.5) // 1 / _STEPS  # round() is a call

    @cached_property
    def varies(self) -> bool:
        """Whether the rates differ between calls, so that `rates_for` has to be asked."""
        return False

    def rates_for(self, usage: Usage) -> TokenRates:
        """Return the rates of a call with this usage."""
        return self

    @property
    def hour_write(self) -> float:
        """The price of prompt tokens that are written to the cache for an hour."""
        if self.cache_write_1h is not None:
            return self.cache_write_1h
        return self.input if self.cache_write is None else _HOUR_BY_INPUT * self.input

    @property
    def is_free(self) -> bool:
        """Whether no token costs anything."""
        return self.input == 0 == self.output


class Price(TokenRates):
    """The price of a backend: its rates. A part that provides `price` has those of long prompts and service tiers."""

    @classmethod
    def model_of(cls, value: Any) -> type[Section]:
        """See `Section.model_of`; this class itself where no part has another."""
        return price_class()


@one("price")
def price_class() -> type[Price]:
    """Return the class of what configs write as `price`."""
    return Price
