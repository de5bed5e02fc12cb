"""Define what a backend's calls cost: rates by context length and service tier, and the cost of one call.

A price that nobody states is unknown, which is None and never 0: an unknown cost must not look like a saving.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, model_validator

from gateway.chat.usage import Usage
from policies.validation import Section, Whole

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_PER: Final = 1e-6


class TokenRates(Section):
    """US dollars per million tokens: prompt (`input`), completion (`output`), prompt read from or written to a cache.

    Left out, cached prompt tokens cost what other prompt tokens do.
    """

    input: Dollars = 0.0
    output: Dollars = 0.0
    cached_input: Dollars | None = None
    cache_write: Dollars | None = None

    def cost(self, usage: Usage) -> float:
        """Return the cost of one call in US dollars."""
        prompt = usage.tokens_in * self.input
        if usage.tokens_cached and self.cached_input is not None:
            prompt += usage.tokens_cached * (self.cached_input - self.input)
        if usage.tokens_cache_write and self.cache_write is not None:
            prompt += usage.tokens_cache_write * (self.cache_write - self.input)
        return (prompt + usage.tokens_out * self.output) * _PER

    @property
    def is_free(self) -> bool:
        """Whether no token costs anything."""
        return self.input == 0 == self.output


class LongContext(TokenRates):
    """TokenRates of a whole call whose prompt has more than `over` tokens."""

    over: Annotated[Whole, Field(ge=1)]


class ServiceTierPrice(TokenRates):
    """TokenRates of the calls that the provider answered in one of its service tiers."""

    long: LongContext | None = None


class Price(TokenRates):
    """The price of a backend: its rates, those of long prompts, and those of service tiers such as `flex`, by name."""

    long: LongContext | None = None
    service_tiers: Mapping[str, ServiceTierPrice] = {}

    @model_validator(mode="after")
    def _a_free_price_is_free(self) -> Price:
        if self.is_free and (self.long is not None or self.service_tiers):
            raise ValueError("long and service_tiers need input and output of ordinary calls")
        return self

    def of(self, usage: Usage) -> float:
        """Return the cost in US dollars of one call with this usage."""
        chosen = self.service_tiers.get(usage.service_tier, self) if self.service_tiers else self
        long = chosen.long
        if long is not None and usage.tokens_in > long.over:
            return long.cost(usage)
        return chosen.cost(usage)
