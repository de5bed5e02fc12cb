"""Define the rates of long prompts and of service tiers: `long` and `service_tiers` of a price."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.chat.usage import Price, TokenRates, Usage
from policies.validation import Whole


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
    """Rates of a whole call whose prompt has more than `over` tokens."""

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
    """Rates of the calls that the provider answered in one of its service tiers."""

    long: LongSteps = ()


class SteppedPrice(Price):
    """A price with rates of long prompts, and of service tiers such as `flex`, by name."""

    long: LongSteps = ()
    service_tiers: Mapping[str, ServiceTierPrice] = {}

    @model_validator(mode="before")
    @classmethod
    def _left_out_is_as_usual(cls, data: Any) -> Any:
        """Return the data with the price of shorter prompts, or of ordinary calls, where further rates leave it out."""
        return _completed(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _a_free_price_is_free(self) -> SteppedPrice:
        if self.is_free and (self.long or self.service_tiers):
            raise ValueError("long and service_tiers need input and output of ordinary calls")
        return self

    @cached_property
    def varies(self) -> bool:
        """See `TokenRates.varies`."""
        return bool(self.long or self.service_tiers)

    def rates_for(self, usage: Usage) -> TokenRates:
        """See `TokenRates.rates_for`."""
        chosen = self.service_tiers.get(usage.service_tier, self) if self.service_tiers else self
        rates: TokenRates = chosen
        for step in chosen.long:
            if usage.tokens_in > step.over:
                rates = step
        return rates
