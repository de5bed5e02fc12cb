"""Step 8 in a running application: which tiers try a request, what its hop says, and whom chance holds out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.request.context import Client, RequestContext
from gateway.request.options import RequestOptions
from gateway.telemetry import names
from gateway.telemetry.ledger import PLAYGROUND, Ledger
from gateway.telemetry.trace import Hop, Trace
from routing.decide import Clamp
from routing.features import features_of
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.upstream import Upstream, error_reply

HELD = CHAT.replace("holdout: 0%", "holdout: 100%")
POLICIES = {
    "chat": CHAT,
    "held": HELD.replace("surface: chat", "surface: held").replace("match: {models: [chat, gpt-4o-mini]}", ""),
    "both": CHAT.replace("surface: chat", "surface: both")
    .replace("match: {models: [chat, gpt-4o-mini]}", "")
    .replace("no_signal: accept", 'no_signal: accept\n  speculate: {both: "turns > 1"}'),
    "alone": HELD.replace("surface: chat", "surface: alone")
    .replace("match: {models: [chat, gpt-4o-mini]}", "")
    .replace("[local, hosted]", "[local]"),
}


@pytest.fixture
async def app(upstream: Upstream, hosted_upstream: Upstream, tmp_path: Path) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path, upstream.url, hosted_upstream.url, policies=POLICIES) as running:
        yield running


def request(app: InProcess, surface: str = "chat", *turns: str, **more: Any) -> RequestContext:
    """A request of this surface that is about to be routed."""
    messages = [{"role": "user", "content": turn} for turn in turns or ("hi",)]
    body = {"model": surface, "messages": messages}
    made = RequestContext(
        request_id="r",
        tenant="t",
        policy=app.steps.policies.current.by_surface[surface],
        body=body,
        features=features_of(body),
        options=RequestOptions(),
        clamp=None,
        own_limit=False,
        deadline=time.monotonic() + 10,
        trace=Trace(names.REQUEST),
        ledger=Ledger("r"),
        client=Client(None, 0.0),
    )
    return replace(made, **more)


def hop_of(made: RequestContext) -> Hop:
    """The hop of step 8."""
    (hop,) = [hop for hop in made.trace.hops if hop.name == names.ROUTE]
    return hop


async def test_the_hop_says_which_tiers_and_why(app: InProcess) -> None:
    made = request(app)
    routed = app.steps.router.decide(made, None)
    hop = hop_of(made)
    assert hop.attributes[names.DECISION] == list(routed.decision.tiers) == ["local", "hosted"]
    assert hop.attributes[names.REASON] == routed.decision.reason
    assert made.trace.decision is not None and made.trace.decision.decision is routed.decision
    assert names.HOLDOUT not in hop.attributes, "there was no draw"
    assert (routed.priors, routed.asks_both) == ({}, False), "no classifier has rated it"


async def test_whom_chance_holds_out_goes_to_the_strongest_tier(app: InProcess) -> None:
    """As a baseline, where all are drawn."""
    made = request(app, "held")
    assert app.steps.router.decide(made, None).decision.tiers[0] == "hosted"
    assert hop_of(made).attributes[names.HOLDOUT] is True


async def test_who_is_not_held_out(app: InProcess) -> None:
    """Who names a tier, who tries a policy, and who has one tier only: there is no draw."""
    tried = request(app, "held")
    tried.ledger.arm = PLAYGROUND
    for made in (request(app, "held", clamp=Clamp(max_tier="local")), tried, request(app, "alone")):
        assert app.steps.router.decide(made, None).decision.tiers[0] == "local"
        assert names.HOLDOUT not in hop_of(made).attributes


async def test_a_strongest_tier_that_cannot_answer_is_no_baseline(app: InProcess, hosted_upstream: Upstream) -> None:
    hosted_upstream.default = error_reply(401)
    await app.ask("hi", {"x-tierline-surface": "held"})
    assert app.steps.tiers["hosted"].health().unavailable
    made = request(app, "held")
    assert app.steps.router.decide(made, None).decision.tiers[0] == "local"
    assert names.HOLDOUT not in hop_of(made).attributes


async def test_both_tiers_are_asked_where_the_rule_holds(app: InProcess) -> None:
    """`escalate.speculate.both` is read for each request."""
    assert not app.steps.router.decide(request(app, "both", "one"), None).asks_both
    assert app.steps.router.decide(request(app, "both", "one", "two", "three"), None).asks_both


async def test_without_a_tier_the_error_and_the_hop_say_so(app: InProcess) -> None:
    """A picture that no tier of the surface can see."""
    made = request(app, "alone")
    made = replace(made, features=made.features._replace(has_images=True))
    with pytest.raises(ApiError) as refused:
        app.steps.router.decide(made, None)
    hop = hop_of(made)
    assert (refused.value.status, hop.error) == (400, "no_tier")
    assert "vision" in hop.attributes[names.REASON]
    assert names.DECISION not in hop.attributes


async def test_sealed_reasoning_is_known_by_its_maker(app: InProcess) -> None:
    """Each maker is one tier's, and what nobody here has made is nobody's."""

    def tier_of(maker: str) -> str | None:
        sealed = {"type": "reasoning.encrypted", "data": f"tl1.{maker}.0.text"}
        turn = {"role": "assistant", "content": "a", "reasoning_details": [sealed]}
        return app.steps.router.tier_of_reasoning([turn, {"role": "user", "content": "b"}])

    for tier in app.steps.tiers.values():
        assert {tier_of(maker) for maker in tier.makers} == {tier.name}
    assert tier_of("someone else") is None
