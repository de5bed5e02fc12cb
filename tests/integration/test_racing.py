"""Attempts beside each other, and one budget for all of them: the real gateway, scripted models, real sockets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.support.ask import ask, text_of
from tests.support.gateway import Gateway, serve
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

HEDGED = """
surface: hedged
slo: {{deadline: 20s}}
tiers: [local, hosted]
route: {{classifier: none, start: {{local: otherwise}}}}
escalate:
  when: {{confidence_below: 0.5}}
  no_signal: accept
  hedge: {{after: 100ms, max_extra_spend: {share}}}
holdout: 0%
"""
BOTH = """
surface: both
slo: {deadline: 20s}
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
escalate:
  when: {confidence_below: 0.5}
  no_signal: accept
  stream: {hold_tokens: 3}
  speculate: {both: tokens_in < 100}
holdout: 0%
"""
BUDGET = """
surface: budget
slo: {{deadline: 20s, on_miss: {on_miss}}}
tiers: [local, hosted]
route: {{classifier: none, start: {{local: otherwise}}}}
escalate:
  when: {{confidence_below: 0.5}}
  no_signal: accept
  stream: {{hold_tokens: 3}}
holdout: {holdout}
"""
POLICIES = {
    **{
        f"hedged-{number}": HEDGED.format(share="3%").replace("surface: hedged", f"surface: hedged-{number}")
        for number in range(8)
    },
    "both": BOTH,
    "budget": BUDGET.format(on_miss="serve_best", holdout="0%"),
    "strict": BUDGET.format(on_miss="fail", holdout="0%").replace("surface: budget", "surface: strict"),
    "held": BUDGET.format(on_miss="fail", holdout="100%").replace("surface: budget", "surface: held"),
}
SMALL, LARGE = Reply(text="The small model's answer, at length."), Reply(text="The large model's answer, at length.")


@pytest.fixture(scope="module")
def racing_gateway(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    local, hosted = _upstreams
    folder = tmp_path_factory.mktemp("racing")
    settings = {"default_surface": "both"}
    with serve(folder, local.url, hosted.url, store_url=_store.url, policies=POLICIES, settings=settings) as gateway:
        yield gateway


@pytest.fixture
def gw(racing_gateway: Gateway, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream) -> Gateway:
    local_upstream.default, hosted_upstream.default = SMALL, LARGE
    return racing_gateway


_surfaces = itertools.count()


@pytest.fixture
def hedged() -> str:
    """A surface whose first hedge nobody has had yet."""
    return f"hedged-{next(_surfaces)}"


def in_flight(gateway: Gateway) -> int:
    tiers: dict[str, Any] = httpx2.get(f"{gateway.origin}/readyz").json()["tiers"]
    return sum(backend["in_flight"] for tier in tiers.values() for backend in tier["backends"].values())


def slow(reply: Reply, seconds: float) -> Reply:
    return Reply(text=reply.text, before_headers_s=seconds)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_a_slow_first_tier_is_hedged_and_cancelled(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, hedged: str, stream: bool
) -> None:
    """The next tier's answer goes out, and the call that lost is ended at once."""
    local_upstream.default = slow(SMALL, 10)
    answer = ask(gw, "hi", model=hedged, stream=stream)
    assert (answer.headers["x-tierline-path"], answer.headers["x-tierline-tier"]) == ("hedged", "hosted")
    assert text_of(answer.content) == LARGE.text
    assert answer.headers["x-tierline-attempts"] == "2"
    local_upstream.wait_for(1)[0].wait_gone(1)
    until(lambda: in_flight(gw) == 0, 2, "no call in flight")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_the_first_tier_may_win_after_all(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, hedged: str, stream: bool
) -> None:
    """The hedge is what is ended then, and the answer is as direct as ever."""
    local_upstream.default, hosted_upstream.default = slow(SMALL, 0.3), slow(LARGE, 10)
    answer = ask(gw, "hi", model=hedged, stream=stream)
    assert (answer.headers["x-tierline-path"], text_of(answer.content)) == ("direct", SMALL.text)
    until(lambda: hosted_upstream.requests, 2, "the hedge")
    hosted_upstream.requests[0].wait_gone(1)
    until(lambda: in_flight(gw) == 0, 2, "no call in flight")


def test_hedges_stay_within_their_share(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, hedged: str
) -> None:
    """One that cost more than the surface has earned is the last until it has earned it."""
    local_upstream.default = slow(SMALL, 0.4)
    assert ask(gw, "hi", model=hedged, stream=True).headers["x-tierline-path"] == "hedged"
    for number in range(3):
        answer = ask(gw, f"again {number}", model=hedged, stream=True)
        assert (answer.headers["x-tierline-path"], text_of(answer.content)) == ("direct", SMALL.text)
    assert len(hosted_upstream.requests) == 1


def test_a_client_that_leaves_ends_both(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, hedged: str
) -> None:
    """Neither call goes on for nobody."""
    local_upstream.default, hosted_upstream.default = slow(SMALL, 10), slow(LARGE, 10)
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(
            f"{gw.url}/chat/completions",
            json={"model": hedged, "messages": [{"role": "user", "content": "hi"}]},
            timeout=0.5,
        )
    for upstream in (local_upstream, hosted_upstream):
        upstream.requests[0].wait_gone(1)
    until(lambda: in_flight(gw) == 0, 2, "no call in flight")


def test_speculation_costs_a_poor_draft_no_time(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """Both are asked at once; the draft is turned down and the other answer is under way already."""
    local_upstream.default = Reply(text=SMALL.text, logprob=-4.0)
    hosted_upstream.default = slow(LARGE, 0.3)
    answer = ask(gw, "hi", model="both", stream=True)
    assert (answer.headers["x-tierline-path"], text_of(answer.content)) == ("escalated", LARGE.text)


def test_speculation_ends_what_was_not_needed(gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """A good draft goes out by itself."""
    hosted_upstream.default = slow(LARGE, 10)
    answer = ask(gw, "hi", model="both", stream=True)
    assert (answer.headers["x-tierline-path"], text_of(answer.content)) == ("direct", SMALL.text)
    until(lambda: hosted_upstream.requests, 2, "the speculative call")
    hosted_upstream.requests[0].wait_gone(1)
    until(lambda: in_flight(gw) == 0, 2, "no call in flight")


def learn(gateway: Gateway, upstream: Upstream, reply: Reply) -> None:
    """Has the hosted tier asked often enough for its latency to be known."""
    upstream.default = reply
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda n: ask(gateway, f"learn {n}", model="tier:hosted", stream=True), range(24)))
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    upstream.requests.clear()


def test_a_tier_that_would_come_too_late_does_not_take_over(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """Its first token is expected after the client's limit: the draft goes out as degraded, or nothing, by policy."""
    learn(gw, hosted_upstream, slow(LARGE, 0.6))
    local_upstream.default = Reply(text=SMALL.text, logprob=-4.0)
    hurried = {"x-tierline-ttft-ms": "400"}
    answer = ask(gw, "hi", model="budget", stream=True, headers=hurried)
    assert (answer.headers["x-tierline-path"], text_of(answer.content)) == ("degraded", SMALL.text)
    by_llm_d = ask(gw, "and so", model="budget", stream=True, headers={"x-llm-d-slo-ttft-ms": "400"})
    assert by_llm_d.headers["x-tierline-path"] == "degraded"
    refused = ask(gw, "hi", model="strict", stream=True, headers=hurried)
    assert (refused.status_code, refused.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert hosted_upstream.requests == []
    patient = ask(gw, "in your own time", model="budget", stream=True)
    assert (patient.headers["x-tierline-path"], text_of(patient.content)) == ("escalated", LARGE.text)


def test_no_call_begins_that_cannot_be_in_time(gw: Gateway, hosted_upstream: Upstream) -> None:
    """A deadline under anything the backend has ever managed is refused at once, and no call is made for it."""
    learn(gw, hosted_upstream, slow(LARGE, 0.6))
    answer = ask(gw, "hi", model="tier:hosted", stream=True, headers={"x-tierline-deadline-ms": "300"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert answer.elapsed.total_seconds() < 0.3
    assert hosted_upstream.requests == []


def test_a_held_out_request_goes_to_the_strongest_tier(gw: Gateway, local_upstream: Upstream) -> None:
    """Whatever the rules say, chance sends a share of the requests there, and the path is direct."""
    answer = ask(gw, "hi", model="held", stream=True, headers={"x-tierline-debug": "1"})
    assert (answer.headers["x-tierline-path"], answer.headers["x-tierline-tier"]) == ("direct", "hosted")
    assert "held out" in answer.headers["x-tierline-reason"]
    assert local_upstream.requests == []


def test_a_first_token_that_is_held_is_not_hedged(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, hedged: str
) -> None:
    """While the first tokens are judged their backend is not waited for any more."""
    local_upstream.default = Reply(text="one two three four five six seven eight", between_s=0.06)
    answer = ask(gw, "hi", model=hedged, stream=True)
    assert (answer.headers["x-tierline-path"], answer.headers["x-tierline-attempts"]) == ("direct", "1")
    assert hosted_upstream.requests == []
