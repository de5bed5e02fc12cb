from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from gateway.accounting.charges import charge, cost, replayed, settle
from gateway.chat.completions import Usage
from gateway.config.schema import Price
from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace

PRICE = Price(input=2.5, output=10)


@pytest.fixture
def ctx() -> RequestContext:
    return cast(RequestContext, SimpleNamespace(ledger=Ledger("req-1")))


def test_a_price_is_per_million_tokens() -> None:
    """Input and output each at their own."""
    assert cost(PRICE, Usage(1_000_000, 100_000)) == pytest.approx(3.5)


def test_a_charge_is_booked_twice(ctx: RequestContext) -> None:
    """Once for the request, which adds its calls up, and once on the call's own hop."""
    trace = Trace(names.REQUEST)
    first, second = trace.begin(names.ATTEMPT), trace.begin(names.ATTEMPT)
    charge(ctx.ledger, first, PRICE, Usage(100, 5, estimated=True))
    dollars = charge(ctx.ledger, second, PRICE, Usage(0, 7))
    assert dollars == pytest.approx(70e-6)
    assert (ctx.ledger.tokens_in, ctx.ledger.tokens_out, ctx.ledger.usage_estimated) == (100, 12, True)
    assert ctx.ledger.cost_usd == pytest.approx(370e-6)
    assert (first.attributes[names.GEN_AI_TOKENS_IN], first.attributes[names.GEN_AI_TOKENS_OUT]) == (100, 5)
    assert first.attributes[names.COST] == pytest.approx(300e-6)
    assert first.attributes[names.USAGE_ESTIMATED] is True
    assert second.attributes[names.COST] == dollars
    assert names.USAGE_ESTIMATED not in second.attributes


def test_who_was_served_adds_up(ctx: RequestContext) -> None:
    """Each attempt is served once, several after one another; and nobody served is not the same as nothing known."""
    assert ctx.ledger.served is None
    settle(ctx, None)
    assert ctx.ledger.served == ()
    for number in (1, 1, 2):
        settle(ctx, number)
    settle(ctx, None)
    assert ctx.ledger.served == (1, 2)


def test_a_hit_serves_no_attempt(ctx: RequestContext) -> None:
    """One that had begun while the cache was still asked was for nothing; the tokens are the stored answer's."""
    replayed(ctx, b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"details":{"reasoning_tokens":0}}}')
    assert ctx.ledger.served == ()
    assert (ctx.ledger.answer_tokens_in, ctx.ledger.answer_tokens_out) == (9, 4)
