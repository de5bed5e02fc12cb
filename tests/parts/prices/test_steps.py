"""Long prompts and service tiers have rates of their own."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.chat.usage import Price, Usage
from gateway.config import backends
from gateway.config.backends import BackendConfig
from gateway.parts.prices.steps import LongContext, ServiceTierPrice, SteppedPrice

PRICE = SteppedPrice(
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


def test_rates_that_leave_a_price_out_have_the_usual_one() -> None:
    """Of long prompts, of service tiers and of long prompts there; a price that nobody states is never 0."""
    flex = {"input": 1, "long": {"over": 1000, "input": 3}}
    usual = {"input": 2, "output": 10, "long": {"over": 1000, "input": 4}, "service_tiers": {"flex": flex}}
    price = SteppedPrice.model_validate(usual)
    assert price.of(Usage(2000, 10)) == pytest.approx((2000 * 4 + 10 * 10) * 1e-6)
    assert price.of(Usage(100, 10, service_tier="flex")) == pytest.approx((100 * 1 + 10 * 10) * 1e-6)
    assert price.of(Usage(2000, 10, service_tier="flex")) == pytest.approx((2000 * 3 + 10 * 10) * 1e-6)
    dear_answers = SteppedPrice.model_validate({"input": 2, "output": 10, "long": {"over": 1000, "output": 20}})
    assert dear_answers.of(Usage(2000, 10)) == pytest.approx((2000 * 2 + 10 * 20) * 1e-6)


def test_a_step_without_a_price_of_the_prompt_has_that_of_shorter_ones() -> None:
    """Cached tokens, too, and not the first price where there is a step between; so of a service tier."""
    steps = [{"over": 5000, "output": 30}, {"over": 1000, "input": 4, "cached_input": 2}]
    price = SteppedPrice.model_validate({"input": 2, "output": 10, "cached_input": 0.5, "long": steps})
    assert price.of(Usage(2000, 10, tokens_cached=1000)) == pytest.approx((1000 * 4 + 1000 * 2 + 10 * 10) * 1e-6)
    assert price.of(Usage(6000, 10, tokens_cached=1000)) == pytest.approx((5000 * 4 + 1000 * 2 + 10 * 30) * 1e-6)
    flex = {"input": 2, "output": 10, "cached_input": 0.5, "service_tiers": {"flex": {"output": 5}}}
    call = Usage(100, 10, tokens_cached=50, service_tier="flex")
    assert SteppedPrice.model_validate(flex).of(call) == pytest.approx((50 * 2 + 50 * 0.5 + 10 * 5) * 1e-6)


def test_steps_of_long_prompts_come_in_any_order() -> None:
    """The one that a prompt has reached last counts, however they were written."""
    steps = [LongContext(over=5000, input=6, output=30), LongContext(over=1000, input=4, output=20)]
    written = [{"over": 5000, "input": 6, "output": 30}, {"over": 1000, "input": 4, "output": 20}]
    for long in (steps, written):
        price = SteppedPrice.model_validate({"input": 2, "output": 10, "long": long})
        assert [price.of(Usage(tokens, 0)) for tokens in (1000, 2000, 6000)] == pytest.approx([0.002, 0.008, 0.036])


def test_without_the_part_a_price_is_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has beside them is refused with the part's name."""
    backend = {"name": "a", "base_url": "https://a.example.com/v1", "model": "m"}
    price = BackendConfig.model_validate({**backend, "price": {"input": 1, "long": {"over": 9, "input": 2}}}).price
    assert isinstance(price, SteppedPrice) and price.of(Usage(10, 0)) == pytest.approx(20e-6)
    monkeypatch.setattr(backends, "price_class", lambda: Price)
    monkeypatch.setattr(backends, "missing_for", lambda seam, what: f"{what} needs the part of {seam}")
    price = BackendConfig.model_validate({**backend, "price": {"input": 1, "output": 2}}).price
    assert price == Price(input=1, output=2) and price.of(Usage(10, 10)) == pytest.approx(30e-6)
    for name in ("long", "service_tiers"):
        with pytest.raises(ValidationError, match=f"{name} needs the part of price"):
            BackendConfig.model_validate({**backend, "price": {"input": 1, name: {}}})
