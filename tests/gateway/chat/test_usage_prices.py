"""A call costs what its tokens cost by the rates that apply to it."""

from __future__ import annotations

import pytest

from gateway.chat.usage import LongContext, Price, ServiceTierPrice, Usage, usage_of

PRICE = Price(
    input=2,
    output=10,
    cached_input=0.5,
    cache_write=2.5,
    long=(LongContext(over=1000, input=4, output=20), LongContext(over=5000, input=6, output=30)),
    service_tiers={"flex": ServiceTierPrice(input=1, output=5)},
)


@pytest.mark.parametrize(
    ("usage", "micro_dollars"),
    [
        (Usage(100, 10), 100 * 2 + 10 * 10),
        (Usage(100, 10, tokens_cached=60), 40 * 2 + 60 * 0.5 + 100),
        (Usage(100, 10, tokens_cached=60, tokens_cache_write=30), 10 * 2 + 60 * 0.5 + 30 * 2.5 + 100),
        (Usage(100, 10, tokens_cache_write=30, tokens_hour_write=20), 70 * 2 + 10 * 2.5 + 20 * 4 + 100),
        (Usage(1001, 10), 1001 * 4 + 10 * 20),
        (Usage(5000, 10), 5000 * 4 + 10 * 20),
        (Usage(5001, 10), 5001 * 6 + 10 * 30),
        (Usage(100, 10, service_tier="flex"), 100 + 50),
        (Usage(100, 10, service_tier="default"), 300),
    ],
)
def test_a_call_costs_by_its_rates(usage: Usage, micro_dollars: float) -> None:
    """Cached tokens, long prompts and service tiers have rates of their own."""
    assert PRICE.of(usage) == pytest.approx(micro_dollars * 1e-6)


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


def test_rates_that_leave_a_price_out_have_the_usual_one() -> None:
    """Of long prompts, of service tiers and of long prompts there; a price that nobody states is never 0."""
    flex = {"input": 1, "long": {"over": 1000, "input": 3}}
    usual = {"input": 2, "output": 10, "long": {"over": 1000, "input": 4}, "service_tiers": {"flex": flex}}
    price = Price.model_validate(usual)
    assert price.of(Usage(2000, 10)) == pytest.approx((2000 * 4 + 10 * 10) * 1e-6)
    assert price.of(Usage(100, 10, service_tier="flex")) == pytest.approx((100 * 1 + 10 * 10) * 1e-6)
    assert price.of(Usage(2000, 10, service_tier="flex")) == pytest.approx((2000 * 3 + 10 * 10) * 1e-6)
    dear_answers = Price.model_validate({"input": 2, "output": 10, "long": {"over": 1000, "output": 20}})
    assert dear_answers.of(Usage(2000, 10)) == pytest.approx((2000 * 2 + 10 * 20) * 1e-6)


def test_a_step_without_a_price_of_the_prompt_has_that_of_shorter_ones() -> None:
    """Cached tokens, too, and not the first price where there is a step between; so of a service tier."""
    steps = [{"over": 5000, "output": 30}, {"over": 1000, "input": 4, "cached_input": 2}]
    price = Price.model_validate({"input": 2, "output": 10, "cached_input": 0.5, "long": steps})
    assert price.of(Usage(2000, 10, tokens_cached=1000)) == pytest.approx((1000 * 4 + 1000 * 2 + 10 * 10) * 1e-6)
    assert price.of(Usage(6000, 10, tokens_cached=1000)) == pytest.approx((5000 * 4 + 1000 * 2 + 10 * 30) * 1e-6)
    flex = {"input": 2, "output": 10, "cached_input": 0.5, "service_tiers": {"flex": {"output": 5}}}
    call = Usage(100, 10, tokens_cached=50, service_tier="flex")
    assert Price.model_validate(flex).of(call) == pytest.approx((50 * 2 + 50 * 0.5 + 10 * 5) * 1e-6)


def test_steps_of_long_prompts_come_in_any_order() -> None:
    """The one that a prompt has reached last counts, however they were written."""
    steps = [LongContext(over=5000, input=6, output=30), LongContext(over=1000, input=4, output=20)]
    written = [{"over": 5000, "input": 6, "output": 30}, {"over": 1000, "input": 4, "output": 20}]
    for long in (steps, written):
        price = Price.model_validate({"input": 2, "output": 10, "long": long})
        assert [price.of(Usage(tokens, 0)) for tokens in (1000, 2000, 6000)] == pytest.approx([0.002, 0.008, 0.036])


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
