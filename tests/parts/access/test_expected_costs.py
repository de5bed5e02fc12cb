"""What a request is expected to cost before its first call, over real tiers and prices, and what is learnt of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting import HedgeBudgets
from gateway.cascade.runner import CascadeRunner
from gateway.chat.usage import Price
from gateway.dialects.native import Native
from gateway.errors import Forbidden
from gateway.parts.access.admission import Holding, QuotaAdmission
from gateway.parts.access.expected_costs import ExpectedCosts
from gateway.parts.access.keys.key_caller import KeyCaller, Limited
from gateway.parts.access.quotas.terms import Budget, Terms
from gateway.request.context import Client, RequestContext
from gateway.request.options import RequestOptions
from gateway.telemetry import names
from gateway.telemetry.ledger import CallAccount, Ledger
from gateway.telemetry.trace import Trace
from policies.model import Agreement, Hedge
from policies.quantities import NANO
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
    caller = KeyCaller(limited=(Limited("key", "k_1", terms),), is_limited=True)
    limits = app.steps.limits
    assert isinstance(limits, QuotaAdmission)
    hold = limits.hold(caller, trace, ledger)
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


def learn(costs: ExpectedCosts, ended: Ledger, tiers: tuple[str, ...] = ("hosted",), surface: str = "chat") -> None:
    """A request of 500 tokens, of tenant t, has ended."""
    costs.learn("t", surface, tiers, 500, 1, ended)


HEDGED: dict[str, Any] = {"hedge": Hedge(after="p95", max_extra_spend=0.03)}


def escalating(made: RequestContext, fields: dict[str, Any]) -> RequestContext:
    """The request of a policy that escalates so."""
    escalate = made.policy.escalate.model_copy(update=fields)
    return replace(made, policy=made.policy.model_copy(update={"escalate": escalate}))


def test_what_is_expected_does_not_follow_max_tokens_but_the_worst_case_does(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    few, many = (costs.of(*request(app, max_tokens=most), TIERS) for most in (4000, 64_000))
    assert 0 < few.expected == many.expected < few.worst < many.worst
    assert few.expected < few.reserved == many.reserved < few.worst


def test_an_answer_is_not_expected_to_be_longer_than_the_request_allows(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    made, hold = request(app, max_tokens=10)
    assert costs.tokens(made) == made.features.approx_tokens + 10
    assert costs.of(made, hold, TIERS).expected < costs.of(*request(app), TIERS).expected


def test_a_call_that_is_given_up_owes_what_answers_had_there(app: InProcess) -> None:
    """At a tier that was asked first; where it was only escalated to, what it answered then."""
    costs, made = ExpectedCosts(app.steps.tiers), request(app)[0]
    assert costs.owed(made, "hosted") == 2000
    for _ in range(20):
        learn(costs, ledger_of(call("local", 500, 30), call("hosted", 500, 300)), TIERS)
    assert costs.owed(made, "hosted") == 300
    for _ in range(20):
        learn(costs, ledger_of(call("hosted", 500, 100)))
    assert costs.owed(made, "hosted") == 100
    assert CascadeRunner(app.steps.tiers, HedgeBudgets(app.steps.tiers)).owed(made, "local") == 0, "it costs nothing"


def test_without_a_budget_a_call_owes_what_its_tier_answers_on_average(app: InProcess) -> None:
    """Nothing was reserved, and nothing is learnt by surface there; 400 tokens before any answer is known."""
    costs, made = ExpectedCosts(app.steps.tiers), replace(request(app)[0], hold=None)
    eight = replace(request(app, n=8, max_tokens=50)[0], hold=None)
    assert (costs.owed(made, "hosted"), costs.owed(eight, "hosted")) == (400, 400)
    app.steps.tiers["hosted"].endpoints[0].mean_out = 120.4
    assert (costs.owed(made, "hosted"), costs.owed(eight, "hosted")) == (120, 120)
    assert costs.owed(replace(request(app, max_tokens=50)[0], hold=None), "hosted") == 50
    for _ in range(20):
        learn(costs, ledger_of(call("hosted", 500, 70)))
    assert costs.owed(made, "hosted") == 70, "what its surface's answers have, where that is learnt"


def test_a_tier_further_up_counts_by_how_often_it_is_asked(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    alone, behind = (costs.of(*request(app), tiers).expected for tiers in (("hosted",), TIERS))
    assert behind < alone, "the price of tier local is 0"
    for _ in range(200):
        learn(costs, ledger_of(call("local", 500, 100), call("hosted", 500, 400)), TIERS)
    assert costs.of(*request(app), TIERS).expected == pytest.approx(alone, rel=0.25), "now each request comes there"


def test_what_answers_had_is_learnt_for_each_surface_and_tenant(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    before = costs.of(*request(app), ("hosted",)).expected
    for _ in range(200):
        learn(costs, ledger_of(call("hosted", 500, 4000)), surface="another")
        costs.learn("another", "chat", ("hosted",), 500, 1, ledger_of(call("hosted", 500, 4000)))
    assert costs.of(*request(app), ("hosted",)).expected == before, "of another surface, and another tenant"
    made, hold = request(app)
    costs.of(made, hold, ("hosted",))
    assert hold.learn is not None
    for _ in range(200):
        made.ledger.calls = [call("hosted", made.features.approx_tokens, 4000)]
        hold.learn(made.ledger)
    assert costs.tokens(made) == made.features.approx_tokens + 400, "of tier local nothing was learnt"
    assert costs.of(*request(app), ("hosted",)).expected > 5 * before


def test_the_worst_case_counts_tokens_as_the_provider_does_and_every_call_beside(app: InProcess) -> None:
    """A provider that counts three tokens for one estimated makes it dearer, and so do a hedge and samples."""
    costs = ExpectedCosts(app.steps.tiers)
    made, hold = request(app, max_tokens=1)
    once = costs.of(made, hold, ("hosted",)).worst
    for _ in range(200):
        learn(costs, ledger_of(call("hosted", 1500, 1)))
    thrice = costs.of(made, hold, ("hosted",)).worst
    assert thrice == pytest.approx(3 * once, rel=0.05)
    for beside, times in (
        (HEDGED, 2),
        ({"agreement": Agreement(samples=2)}, 3),
        (HEDGED | {"agreement": Agreement()}, 3),
    ):
        worst = costs.of(escalating(made, beside), hold, ("hosted",)).worst
        assert worst == pytest.approx(times * thrice, rel=0.01), beside


async def test_calls_of_unknown_price_beside_one_count_too(upstream: Upstream, tmp_path: Path) -> None:
    """Each as much as the config has a call of unknown price count, at most; one is reserved."""
    settings = {"keys": {"unknown_price": {"ceiling": 0.5}}}
    async with in_process(tmp_path, upstream.url, upstream.url, settings=settings) as app:
        app.steps.tiers["hosted"].price = None
        made, hold = request(app)
        cost = ExpectedCosts(app.steps.tiers).of(escalating(made, HEDGED), hold, ("hosted",))
        assert (cost.reserved / NANO, cost.worst / NANO) == (0.5, 1.0)


def test_what_is_read_from_prompt_caches_is_learnt_for_each_tenant_and_surface(app: InProcess) -> None:
    """Tokens of prompts that do not count against tokens a minute are left out of what the next one will take."""
    costs = ExpectedCosts(app.steps.tiers)
    before = costs.tokens(request(app)[0])
    read = ledger_of(call("local", 500, 400, cached=450))
    read.tokens_in = 500
    read.exempt(450)
    for tenant, surface in (("another", "chat"), ("t", "another")):
        costs.learn(tenant, surface, ("local",), 500, 1, read)
        assert costs.tokens(request(app)[0]) == before
    learn(costs, read, ("local",))
    made, _ = request(app)
    assert costs.tokens(made) == pytest.approx(before - 0.9 * made.features.approx_tokens, abs=2)


def test_nothing_is_learnt_of_a_request_that_was_left_or_failed(app: InProcess) -> None:
    """What its calls used is a guess: were it learnt, a client that leaves would teach what the next ones reserve."""
    costs = ExpectedCosts(app.steps.tiers)
    before = costs.of(*request(app), ("hosted",))
    for error in ("client_gone", "deadline_exceeded"):
        left = ledger_of(call("hosted", 500, 4000))
        left.error = error
        learn(costs, left)
    assert costs.of(*request(app), ("hosted",)) == before


def test_every_choice_counts(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    one, eight = (costs.of(*request(app, n=n, max_tokens=1000), ("hosted",)) for n in (1, 8))
    assert eight.reserved > 6 * one.reserved
    owed = [costs.owed(request(app, n=n, max_tokens=1000)[0], "hosted") for n in (1, 8)]
    assert owed == [1000, 8000]
    for _ in range(20):
        learn(costs, ledger_of(call("hosted", 500, 1000)))
    one, eight = (costs.of(*request(app, n=n, max_tokens=1000), ("hosted",)) for n in (1, 8))
    assert eight.reserved > 6 * one.reserved


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ],
)
def test_what_is_not_in_the_body_counts_as_all_that_a_tier_can_read(app: InProcess, part: dict[str, Any]) -> None:
    """A file may hold any number of tokens: the tier's context is reserved, and what others had says nothing of it."""
    costs = ExpectedCosts(app.steps.tiers)
    plain = costs.of(*request(app), ("hosted",))
    for _ in range(20):
        learn(costs, ledger_of(call("hosted", 50, 10)))
    made, hold = request(app, messages=[{"role": "user", "content": [{"type": "text", "text": "sum up"}, part]}])
    unseen = costs.of(made, hold, ("hosted",))
    assert unseen.reserved > 20 * plain.reserved
    assert costs.tokens(made) > 100_000
    assert hold.learn is not None
    before = costs.of(*request(app), ("hosted",))
    made.ledger.calls = [call("hosted", 90_000, 10)]
    hold.learn(made.ledger)
    assert costs.of(*request(app), ("hosted",)) == before, "its prompt's length says nothing of other prompts"


@pytest.mark.parametrize(
    "lost",
    [
        {"messages[0].content[1]": {"type": "document", "source": {"type": "file", "file_id": "file-1"}}},
        {"input[0].content[1]": {"type": "input_file", "file_id": "file-1"}},
        {"prompt": {"id": "pmpt_1"}},
    ],
)
def test_what_only_another_api_has_words_for_counts_so_too(app: InProcess, lost: dict[str, Any]) -> None:
    """A document, a file, or a prompt that the provider keeps; what else is lost in translation is no prompt."""
    costs = ExpectedCosts(app.steps.tiers)
    made, hold = request(app)
    plain = costs.of(made, hold, ("hosted",))
    told = {"thinking": {"type": "enabled"}}
    assert costs.of(replace(made, native=Native("messages", {}, told)), hold, ("hosted",)) == plain
    assert (
        costs.of(replace(made, native=Native("messages", {}, told | lost)), hold, ("hosted",)).reserved
        > 5 * plain.reserved
    )


def test_a_picture_counts_as_the_tokens_that_it_usually_has(app: InProcess) -> None:
    costs = ExpectedCosts(app.steps.tiers)
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    made, _ = request(app, messages=[{"role": "user", "content": [{"type": "text", "text": "what?"}, picture]}])
    assert costs.tokens(made) > 1600


def test_a_tool_of_the_provider_has_a_price_that_nobody_states(app: InProcess) -> None:
    made, hold = request(app, web_search_options={})
    with pytest.raises(Forbidden, match=r"keys\.unknown_price\.ceiling"):
        ExpectedCosts(app.steps.tiers).of(made, hold, TIERS)


def test_a_tier_of_unknown_price_refuses_whoever_may_come_there(app: InProcess) -> None:
    """Also where it is only the last one to be asked; a request that stays below is let in."""
    costs = ExpectedCosts(app.steps.tiers)
    app.steps.tiers["hosted"].price = None
    with pytest.raises(Forbidden, match="tier 'hosted'"):
        costs.of(*request(app), TIERS)
    assert costs.of(*request(app), ("local",)).worst == 0


@pytest.mark.parametrize(
    ("marker", "times"),
    [({"type": "ephemeral", "ttl": "1h"}, 2.0), ({"type": "ephemeral"}, 1.25), (None, 1.0)],
    ids=["an hour", "five minutes", "nothing"],
)
def test_a_prompt_that_is_to_be_kept_costs_what_writing_it_does(
    app: InProcess, marker: dict[str, str] | None, times: float
) -> None:
    """As expected, as reserved and at most, until it is known what the provider reads of it."""
    costs, tier = ExpectedCosts(app.steps.tiers), app.steps.tiers["hosted"]
    tier.price = Price(input=4, cache_write=5)
    part = {"type": "text", "text": "word " * 400, **({"cache_control": marker} if marker else {})}
    made, hold = request(app, messages=[{"role": "user", "content": [part]}])
    cost = costs.of(made, hold, ("hosted",))
    usd = made.features.approx_tokens * 4e-6 * times
    assert [one / NANO for one in (cost.expected, cost.reserved, cost.worst)] == pytest.approx([usd] * 3, rel=0.01)
