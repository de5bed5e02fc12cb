"""A call costs what its tokens cost by the rates that apply to it."""

from __future__ import annotations

import pytest

from gateway.chat.usage import Usage, usage_of
from gateway.config.prices import LongContext, Price, ServiceTierPrice

PRICE = Price(
    input=2,
    output=10,
    cached_input=0.5,
    cache_write=2.5,
    long=LongContext(over=1000, input=4, output=20),
    service_tiers={"flex": ServiceTierPrice(input=1, output=5)},
)


@pytest.mark.parametrize(
    ("usage", "micro_dollars"),
    [
        (Usage(100, 10), 100 * 2 + 10 * 10),
        (Usage(100, 10, tokens_cached=60), 40 * 2 + 60 * 0.5 + 100),
        (Usage(100, 10, tokens_cached=60, tokens_cache_write=30), 10 * 2 + 60 * 0.5 + 30 * 2.5 + 100),
        (Usage(1001, 10), 1001 * 4 + 10 * 20),
        (Usage(100, 10, service_tier="flex"), 100 + 50),
        (Usage(100, 10, service_tier="default"), 300),
    ],
)
def test_a_call_costs_by_its_rates(usage: Usage, micro_dollars: float) -> None:
    """Cached tokens, long prompts and service tiers have rates of their own."""
    assert PRICE.of(usage) == pytest.approx(micro_dollars * 1e-6)


def test_usage_names_what_was_cached() -> None:
    """The details of the prompt's tokens and the service tier are read; impossible counts are cut to the prompt."""
    value = {
        "usage": {
            "prompt_tokens": 50,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 3},
        },
        "service_tier": "flex",
    }
    assert usage_of(value) == Usage(50, 5, tokens_cached=50, tokens_cache_write=0, service_tier="flex")
    assert usage_of({"usage": {"prompt_tokens": 5, "completion_tokens": 1}}) == Usage(5, 1)
