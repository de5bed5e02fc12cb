"""A call costs what its tokens cost by the rates that apply to it."""

from __future__ import annotations

import pytest

from gateway.chat.usage import Price, Usage, usage_of


@pytest.mark.parametrize(
    ("price", "usage", "shown"),
    [
        (Price(input=3, output=15), Usage(300, 30), "0.00135"),
        (Price(input=0.15, output=0.6), Usage(100_000, 10), "0.015006"),
        (Price(input=2.5, output=10), Usage(12, 7), "0.0001"),
    ],
)
def test_a_cost_has_the_digits_of_its_price(price: Price, usage: Usage, shown: str) -> None:
    """Spans, records and pages show it as it is computed: no digits that come of binary fractions."""
    assert repr(price.of(usage)) == shown


def test_writing_for_an_hour_may_have_a_price_of_its_own() -> None:
    """Where writing has none at all, it is charged as any other token."""
    usage = Usage(100, 0, tokens_cache_write=100, tokens_hour_write=100)
    assert Price(input=2, cache_write=2.5, cache_write_1h=3).of(usage) == pytest.approx(300e-6)
    assert Price(input=2).of(usage) == pytest.approx(200e-6)


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
