"""Define what a backend's calls cost: rates by context length and service tier, and the cost of one call.

A price that nobody states is unknown, which is None and never 0: an unknown cost must not look like a saving.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.chat.usage import Usage
from policies.validation import Section, Whole

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

    def cost(self, usage: Usage) -> float:
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


def _completed(price: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(price)
    if "long" in made:
        steps, below = list(_steps(made["long"])), price
        with contextlib.suppress(TypeError, KeyError):  # what is no step is refused later
            steps.sort(key=lambda step: step["over"])
        for at, step in enumerate(steps):
            if isinstance(step, Mapping):
                steps[at] = below = _usual(below, step)
        made["long"] = steps
    if isinstance(tiers := made.get("service_tiers"), Mapping):
        made["service_tiers"] = {
            name: _completed(_usual(price, rates)) if isinstance(rates, Mapping) else rates
            for name, rates in tiers.items()
        }
    return made


def _usual(price: Mapping[str, Any], rates: Mapping[str, Any]) -> dict[str, Any]:
    """Return rates with what they leave out: the answer's or, where they state no `input`, any of them."""
    left_out = ("output",) if "input" in rates else TokenRates.model_fields
    return {name: price[name] for name in left_out if name in price} | dict(rates)


class LongContext(TokenRates):
    """TokenRates of a whole call whose prompt has more than `over` tokens."""

    over: Annotated[Whole, Field(ge=1)]


def _steps(long: Any) -> Any:
    if long is None:
        return ()
    return long if isinstance(long, (list, tuple)) else (long,)


def _in_order(steps: tuple[LongContext, ...]) -> tuple[LongContext, ...]:
    return tuple(sorted(steps, key=lambda step: step.over))


LongSteps = Annotated[tuple[LongContext, ...], BeforeValidator(_steps), AfterValidator(_in_order)]
"""Rates of long prompts, one for each length from which they change, shortest first. A single one needs no list."""


class ServiceTierPrice(TokenRates):
    """TokenRates of the calls that the provider answered in one of its service tiers."""

    long: LongSteps = ()


class Price(TokenRates):
    """The price of a backend: its rates, those of long prompts, and those of service tiers such as `flex`, by name."""

    long: LongSteps = ()
    service_tiers: Mapping[str, ServiceTierPrice] = {}

    @model_validator(mode="before")
    @classmethod
    def _left_out_is_as_usual(cls, data: Any) -> Any:
        """Return the data with the price of shorter prompts, or of ordinary calls, where further rates leave it out."""
        return _completed(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _a_free_price_is_free(self) -> Price:
        if self.is_free and (self.long or self.service_tiers):
            raise ValueError("long and service_tiers need input and output of ordinary calls")
        return self

    def of(self, usage: Usage) -> float:
        """Return the cost in US dollars of one call with this usage."""
        chosen = self.service_tiers.get(usage.service_tier, self) if self.service_tiers else self
        rates: TokenRates = chosen
        for step in chosen.long:
            if usage.tokens_in > step.over:
                rates = step
        return rates.cost(usage)
