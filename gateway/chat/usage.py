"""Read what calls used and cost, in the words of every provider, and compute the cost of a call from rates.

Providers spell and divide token counts differently. `standardise` adds OpenAI's members to a reply's usage, once, where
the reply arrives; all that follows reads these alone. What the provider said in its own words stays beside them.

    who                     what it says                                             what it means
    DeepSeek                prompt_cache_hit_tokens                                  prompt_tokens_details.cached_tokens
    Moonshot, Together      cached_tokens                                            prompt_tokens_details.cached_tokens
    xAI                     total_tokens = prompt + completion + reasoning tokens    the reasoning is output
    Gemini                  total_tokens beyond prompt + completion tokens           the rest is output (thinking)
    Anthropic               cache_creation, with a count for each lifetime           `CACHE_WRITES`, as LiteLLM names it
    anyone                  a count that is null, missing or negative                the rest of total_tokens, if told
    llama.cpp               completion_tokens are timings.predicted_n, of n choices  the tokens of one choice
    OpenRouter, Perplexity  cost, or cost.total_cost                                 charge of the call in US dollars
    xAI                     cost_in_usd_ticks                                        that charge in 1e-10 US dollars

Kinds `anthropic` and `responses` translate their own members to OpenAI's first.

A price that nobody states is unknown, which is None and never 0: an unknown cost must not look like a saving.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from gateway.parts.standard import one
from policies.validation import Section
from policies.value_type import value_type

_IN, _OUT, _TOTAL, _ESTIMATED = "prompt_tokens", "completion_tokens", "total_tokens", "estimated"
_PARTS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    (
        "prompt_tokens_details",
        "cached_tokens",
        ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens"),
    ),
    ("prompt_tokens_details", "cache_write_tokens", ("cache_creation_input_tokens",)),
    ("completion_tokens_details", "reasoning_tokens", ("reasoning_tokens",)),
)
"""Details of a usage: the object that holds one, its name there, and other names that it has beside the counts."""
CACHE_WRITES: Final = "cache_creation_token_details"
"""Detail of the prompt that divides what was written to the cache by how long it is kept."""
SHORT_WRITES: Final = "ephemeral_5m_input_tokens"
HOUR_WRITES: Final = "ephemeral_1h_input_tokens"
_CACHE_CREATION: Final = "cache_creation"
_OTHER_WORDS: Final = frozenset((_CACHE_CREATION, *(word for _, _, words in _PARTS for word in words)))
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
        """Whether a count is missing: it was not told, and the gateway has not counted it yet."""
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
    """Return a count of details, at most `most`; 0 if it is missing or invalid."""
    count = details.get(name) if isinstance(details, dict) else None
    return min(count, most) if type(count) is int and count > 0 else 0


def _for_an_hour(details: Mapping[str, Any], written: int) -> int | None:
    """Return how many of the written tokens are kept for an hour; None if that is not told."""
    writes = details.get(CACHE_WRITES)
    told = isinstance(writes, dict) and (count_in(writes.get(HOUR_WRITES)) or count_in(writes.get(SHORT_WRITES)))
    return portion(writes, HOUR_WRITES, written) if told else None


def standardise(value: Mapping[str, Any]) -> bool:
    """Add what is missing of OpenAI's members to a reply's `usage`, in place; return whether anything changed.

    A usage without any count stays as it is. A count that neither is told nor follows from the others becomes 0, and
    `estimated` is set. It is, too, where one choice of several was counted: each then has as many.
    """
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return False
    tokens_in, tokens_out, total = usage.get(_IN), usage.get(_OUT), usage.get(_TOTAL)
    if "timings" in value and tokens_out is not None and _counts_one_choice(value, tokens_out):
        usage[_OUT] = tokens_out * len(value["choices"])
        usage[_TOTAL] = usage[_IN] + usage[_OUT]
        usage[_ESTIMATED] = True
        return True
    if (
        type(tokens_in) is int
        and type(tokens_out) is int
        and tokens_in >= 0
        and tokens_out >= 0
        and total == tokens_in + tokens_out
        and _OTHER_WORDS.isdisjoint(usage)
        and not (usage.get("completion_tokens_details") and _more_thought(usage, tokens_out))
    ):
        return False
    before = dict(usage)
    for holder, name, words in _PARTS:
        details = usage.get(holder)
        details = details if isinstance(details, dict) else {}
        told = next((count for word in words if (count := count_in(usage.get(word))) is not None), None)
        if told is not None and count_in(details.get(name)) is None:
            usage[holder] = {**details, name: told}
    if isinstance(writes := usage.get(_CACHE_CREATION), dict):
        details = usage.get("prompt_tokens_details")
        usage["prompt_tokens_details"] = {CACHE_WRITES: writes, **(details if isinstance(details, dict) else {})}
    _fill_in_counts(usage)
    return usage != before


def _counts_one_choice(value: Mapping[str, Any], tokens_out: object) -> bool:
    """Return whether llama.cpp counted the tokens of one choice of several, with those of the prompt."""
    timings, choices = value["timings"], value.get("choices")
    if not (isinstance(timings, dict) and isinstance(choices, list) and len(choices) > 1):
        return False
    told = count_in(value["usage"].get(_IN)) is not None and type(tokens_out) is int
    return told and timings.get("predicted_n") == tokens_out


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


def _fill_in_counts(usage: dict[str, Any]) -> None:
    tokens_in, tokens_out, total = (count_in(usage.get(name)) for name in (_IN, _OUT, _TOTAL))
    if tokens_in is None and tokens_out is None:
        return
    rest = 0 if total is None else total - (tokens_in or 0) - (tokens_out or 0)
    if rest > 0:
        prompt = usage.get("prompt_tokens_details")
        in_cache = portion(prompt, "cached_tokens", rest + 1) + portion(prompt, "cache_write_tokens", rest + 1)
        thought = portion(usage.get("completion_tokens_details"), "reasoning_tokens", rest + 1)
        if tokens_in is None or (tokens_out is not None and rest == in_cache != thought):
            tokens_in = (tokens_in or 0) + rest
        else:
            tokens_out = (tokens_out or 0) + rest
    if tokens_in is None or tokens_out is None:
        usage[_ESTIMATED] = True
    usage[_IN], usage[_OUT] = tokens_in or 0, tokens_out or 0
    usage[_OUT] += _more_thought(usage, usage[_OUT])
    usage[_TOTAL] = usage[_IN] + usage[_OUT]


def _more_thought(usage: Mapping[str, Any], tokens_out: int) -> int:
    """Return the reasoning tokens if they are more than the output, of which they cannot be a part then; else 0."""
    details = usage.get("completion_tokens_details")
    thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return thought if type(thought) is int and thought > tokens_out else 0


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
        prompt = usage.tokens_in * self.input
        if usage.tokens_cached and self.cached_input is not None:
            prompt += usage.tokens_cached * (self.cached_input - self.input)
        if usage.tokens_cache_write:
            for_an_hour = usage.tokens_hour_write or 0
            shorter = self.input if self.cache_write is None else self.cache_write
            prompt += (usage.tokens_cache_write - for_an_hour) * (shorter - self.input)
            prompt += for_an_hour * (self.hour_write - self.input)
        return ((prompt + usage.tokens_out * self.output) * (_STEPS / _PER) + 0.5) // 1 / _STEPS  # round() is a call

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
