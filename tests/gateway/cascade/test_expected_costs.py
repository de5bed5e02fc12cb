"""What a request is expected to cost before its first call, over real tiers and prices, and what is learnt of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cascade.expected_costs import ExpectedCosts
from gateway.errors import Forbidden
from gateway.keys.records import Caller, Limited
from gateway.quotas.terms import Budget, Terms
from gateway.request.admission import Holding
from gateway.request.context import Client, RequestContext
from gateway.request.options import RequestOptions
from gateway.telemetry import names
from gateway.telemetry.ledger import CallAccount, Ledger
from gateway.telemetry.trace import Trace
from routing.features import features_of
from tests.support.app import InProcess, in_process
from tests.support.upstream import Upstream

TIERS = ("local", "hosted")


@pytest.fixture
async def app(upstream: Upstream, hosted_upstream: Upstream, tmp_path: Path) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path, upstream.url, hosted_upstream.url) as running:
        yield running


def request(app: InProcess, **more: Any) -> tuple[RequestContext, Holding]:
    """A request of surface chat whose key has a budget, and what it holds of it."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "word " * 400}], **more}
    trace, ledger = Trace(names.REQUEST), Ledger("r")
    terms = Terms(budgets=(Budget(usd=25, per="month"),))
    caller = Caller(limited=(Limited("key", "k_1", terms),), is_limited=True)
    hold = app.steps.admission.hold(caller, trace, ledger)
    assert hold is not None
    made = RequestContext(
        request_id="r",
        tenant="t",
        policy=app.steps.policies.current.by_surface["chat"],
        body=body,
        features=features_of(body),
        options=RequestOptions(),
        clamp=None,
        own_limit=False,
        deadline=time.monotonic() + 10,
        trace=trace,
        ledger=ledger,
        client=Client(None, 0.0),
        hold=hold,
    )
    return made, hold


def call(tier: str, tokens_in: int, tokens_out: int, cached: int = 0) -> CallAccount:
    """One call that was answered."""
    return CallAccount(
        1, tier, tier, "m", "ok", tokens_in, tokens_out, estimated=False, cost_usd=0.0, wasted=False, queue_ms=0.0,
        ttft_ms=None, total_ms=1.0, tokens_cached=cached,
    )  # fmt: skip


def ledger_of(*calls: CallAccount) -> Ledger:
    """The ledger of a finished request with these calls."""
    ledger = Ledger("r")
    ledger.calls = list(calls)
    return ledger


def test_what_is_expected_does_not_follow_max_tokens_but_the_worst_case_does(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    few, many = (costs.of(*request(app, max_tokens=most), TIERS) for most in (1000, 64_000))
    assert 0 < few.expected == many.expected < few.worst < many.worst


def test_an_answer_is_not_expected_to_be_longer_than_the_request_allows(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    made, hold = request(app, max_tokens=10)
    assert costs.answer_tokens(made) == 10
    assert costs.of(made, hold, TIERS).expected < costs.of(*request(app), TIERS).expected


def test_a_tier_further_up_counts_by_how_often_it_is_asked(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    alone, behind = (costs.of(*request(app), tiers).expected for tiers in (("hosted",), TIERS))
    assert behind < alone, "the price of tier local is 0"
    made, _ = request(app)
    for _ in range(200):
        both = ledger_of(call("local", 500, 100), call("hosted", 500, 400))
        costs.learn("chat", TIERS, made.features.approx_tokens, both)
    assert costs.of(*request(app), TIERS).expected == pytest.approx(alone, rel=0.25), "now each request comes there"


def test_what_answers_had_is_learnt_for_each_surface(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    before = costs.of(*request(app), ("hosted",)).expected
    for _ in range(200):
        costs.learn("another", ("hosted",), 500, ledger_of(call("hosted", 500, 4000)))
    assert costs.of(*request(app), ("hosted",)).expected == before, "of another surface"
    made, hold = request(app)
    costs.of(made, hold, ("hosted",))
    assert hold.learn is not None
    for _ in range(200):
        made.ledger.calls = [call("hosted", made.features.approx_tokens, 4000)]
        hold.learn(made.ledger)
    assert costs.answer_tokens(made) == 400, "of tier local nothing was learnt"
    assert costs.of(*request(app), ("hosted",)).expected > 5 * before


def test_a_tool_of_the_provider_has_a_price_that_nobody_states(app: InProcess) -> None:
    made, hold = request(app, web_search_options={})
    with pytest.raises(Forbidden, match=r"keys\.unknown_price\.ceiling"):
        ExpectedCosts(app.steps.tiers).of(made, hold, TIERS)
