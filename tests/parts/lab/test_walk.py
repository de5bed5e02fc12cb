"""Walks of single requests: what would be tried, and what the client would get."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.lab.walk import Draft, Surroundings, TierQueue, Walk, walk
from policies.loader import made_policy
from policies.model import Policy
from routing.decide import DecisionInput, TierHealth
from routing.features import Features
from routing.load.latency import Forecast

CAN = frozenset({"tools", "vision", "json"})


def policy_of(**rules: Any) -> Policy:
    """Return a policy with two tiers that starts at the cheap one and judges its answers."""
    content = {
        "surface": "chat",
        "slo": {"deadline": "60s"},
        "tiers": ["local", "hosted"],
        "route": {"start": {"local": "otherwise"}},
        "escalate": {"when": {"confidence_below": 0.62, "invalid": ["json"], "finish": ["length"]}},
        **rules,
    }
    return made_policy(content, Path("chat.yaml"), {})


def forecast(ttft_s: float, whole_s: float) -> Forecast:
    """Return a forecast without a queue."""
    return Forecast(ttft_s, ttft_s, whole_s, 0.0, known=True)


def asked(
    policy: Policy,
    *drafts: Draft,
    stream: bool = False,
    hosted: Forecast | None = None,
    budget_s: float = 60.0,
    ttft_s: float | None = None,
    features: dict[str, Any] | None = None,
    around: Surroundings | None = None,
    **local: Any,
) -> Walk:
    """Walk a request whose calls of the cheap tier give these drafts."""
    health = {
        "local": TierHealth("local", CAN, 1, **local),
        "hosted": TierHealth("hosted", CAN, 1, forecast=hosted),
    }
    given = DecisionInput(None, Features("", 1, 40, stream=stream, **(features or {})), health, budget_s, ttft_s)
    around = around or Surroundings()
    return walk(policy, given, replace(around, drafts={"local": drafts or (Draft(),), **around.drafts}))


DOUBTFUL = Draft(confidence=0.41, ttft_s=0.11, total_s=0.9)


def test_good_answers_go_out_directly() -> None:
    """One call, nothing else, and the answer may be stored."""
    got = asked(policy_of(), Draft(confidence=0.9, total_s=0.5))
    assert (got.path, got.tier, got.called, got.may_store) == ("direct", "local", ("local",), True)
    assert got.total_s == 0.5


@pytest.mark.parametrize("stream", [True, False])
def test_doubtful_drafts_are_replaced_before_the_client_sees_them(stream: bool) -> None:
    """A stream's draft is judged by its held beginning, a JSON answer as a whole."""
    got = asked(policy_of(), DOUBTFUL, stream=stream)
    assert (got.path, got.tier, got.called, got.seen_of_draft) == ("escalated", "hosted", ("local", "hosted"), 0)
    assert got.held == (24 if stream else 100)
    assert (("escalate", "when", "confidence_below"), True, "0.41 < 0.62") in got.steps


@pytest.mark.parametrize("on_miss", ["serve_best", "fail"])
def test_late_escalation_is_up_to_on_miss(on_miss: str) -> None:
    """The next tier is expected after the deadline."""
    policy = policy_of(slo={"deadline": "2s", "on_miss": on_miss})
    got = asked(policy, DOUBTFUL, hosted=forecast(9, 9), budget_s=2)
    if on_miss == "fail":
        assert (got.refused, got.path) == ("deadline", "")
    else:
        assert (got.refused, got.path, got.tier, got.may_store) == ("", "degraded", "local", False)
    assert (("slo", "on_miss"), True, "hosted would take 9 s, 1.1 s left") in got.steps


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (Draft(refusal=True), "refusal"),
        (Draft(repetition=True), "repetition loop"),
        (Draft(finish="length"), "cut off"),
        (Draft(empty=True), "empty"),
        (Draft(confidence=None), "no signal"),
        (Draft(confidence=0.7, calibrated=False), "confidence 0.700 < 0.8 (logprob)"),
        (Draft(text="I can't assist with that."), "refusal"),
    ],
)
def test_faults_escalate(draft: Draft, reason: str) -> None:
    """Each condition of `escalate.when` replaces an answer at any confidence."""
    got = asked(policy_of(), draft)
    assert got.judged is not None
    assert (got.path, got.judged.reason) == ("escalated", reason)


def test_invalid_json_escalates_where_json_was_asked_for() -> None:
    """Otherwise the text is only text."""
    assert asked(policy_of(), Draft(invalid="json"), features={"wants_json": True}).path == "escalated"
    assert asked(policy_of(), Draft(invalid="json")).path == "direct"


def test_holds_end_by_time() -> None:
    """A slow stream is judged by the tokens that came within `hold_max` of the first one."""
    slow = Draft(confidence=0.9, tokens=101, ttft_s=0.1, total_s=10.1)
    got = asked(policy_of(), slow, stream=True)
    assert got.held == 3  # at 0.1, 0.2 and 0.3 s; the hold of 250 ms ends at 0.35 s
    assert got.first_token_s == pytest.approx(0.35)
    assert (("escalate", "stream", "hold_max"), True, "held for 250 ms") in got.steps


def test_holds_leave_time_for_the_next_tier() -> None:
    """Of 500 ms for the first token, the next tier needs 250, and the verdict 10: the hold ends when these are left."""
    slow = Draft(confidence=0.9, tokens=101, ttft_s=0.1, total_s=10.1)
    got = asked(policy_of(), slow, stream=True, ttft_s=0.5, hosted=forecast(0.25, 1))
    assert (got.path, got.held, got.first_token_s) == ("direct", 2, pytest.approx(0.24))


def test_short_streams_are_judged_whole() -> None:
    """So an answer that is cut off within the hold is replaced."""
    got = asked(policy_of(), Draft(tokens=10, finish="length", total_s=0.1), stream=True)
    assert (got.path, got.held) == ("escalated", 10)


def test_faults_of_a_tier_fall_back() -> None:
    """A failed call goes to the next tier, and a rejected request to none."""
    assert asked(policy_of(), Draft(fault="error")).path == "fallback"
    assert asked(policy_of(), Draft(fault="rejected")).refused == "rejected"
    too_long = asked(policy_of(), Draft(fault="too_long"))
    assert (too_long.path, too_long.tier) == ("escalated", "hosted")


def test_slow_first_tokens_time_out() -> None:
    """Half of the budget stays for the next tier."""
    got = asked(policy_of(), Draft(ttft_s=3), stream=True, budget_s=4)
    assert (got.path, got.first_token_s) == ("fallback", 2.0)


def test_hedges_race() -> None:
    """The next tier is called beside a slow one, and the first first token wins."""
    policy = policy_of(
        escalate={"when": {"confidence_below": 0.62}, "hedge": {"after": "300ms"}, "stream": {"hold_tokens": 1}}
    )
    got = asked(policy, Draft(ttft_s=2, total_s=3), stream=True, hosted=forecast(0.2, 1))
    assert (got.path, got.tier, got.called, got.first_token_s) == ("hedged", "hosted", ("local", "hosted"), 0.5)
    quick = asked(policy, Draft(ttft_s=0.2, total_s=3), stream=True, hosted=forecast(0.2, 1))
    assert (quick.path, quick.called) == ("direct", ("local",))


def test_both_tiers_are_asked_at_once() -> None:
    """`speculate.both` calls the next tier too, and a doubtful draft costs no time."""
    policy = policy_of(escalate={"when": {"confidence_below": 0.62}, "speculate": {"both": "tokens_in >= 10"}})
    got = asked(policy, DOUBTFUL, hosted=forecast(1.2, 1.2))
    assert (got.path, got.tier, got.total_s) == ("escalated", "hosted", 1.2)


def test_full_tiers_are_left() -> None:
    """A request that would wait longer than `max_wait` goes on at once."""
    policy, around = policy_of(load={"max_wait": "1s"}), Surroundings(queues={"local": TierQueue(1.5)})
    got = asked(policy, around=around, forecast=forecast(1.6, 2.5))
    assert (got.path, got.called) == ("fallback", ("hosted",))
    shorter = asked(policy, around=Surroundings(queues={"local": TierQueue(0.5)}), forecast=forecast(0.6, 1.5))
    assert (shorter.path, shorter.total_s) == ("direct", 1.5)


def test_watched_drafts_are_stopped_early() -> None:
    """A poor JSON draft is cancelled after `hold_tokens`, and a good one runs to its end."""
    around = Surroundings(watches_drafts=frozenset({"local"}))
    poor = asked(policy_of(), Draft(confidence=0.2, tokens=101, ttft_s=0, total_s=10), around=around)
    assert (poor.path, poor.held, poor.total_s) == ("escalated", 24, pytest.approx(2.3))
    good = asked(policy_of(), Draft(confidence=0.9, tokens=101, ttft_s=0, total_s=10), around=around)
    assert (good.path, good.held, good.total_s) == ("direct", 101, 10)


def test_a_watched_draft_that_comes_at_once_is_judged_as_a_whole() -> None:
    """Its first tokens alone are no JSON."""
    around = Surroundings(watches_drafts=frozenset({"local"}))
    policy = policy_of(escalate={"when": {"confidence_below": 0.62, "invalid": ["json"]}})
    for times in ({"ttft_s": 0, "total_s": 0}, {"ttft_s": 0.1, "total_s": 1}):
        got = asked(policy, Draft(confidence=0.9, tokens=100, **times), around=around, features={"wants_json": True})
        assert (got.path, got.held) == ("direct", 100)


def test_requests_that_no_tier_can_take_are_refused() -> None:
    """All tiers down is 502, and more than any tier can do is 400."""
    down = asked(policy_of(tiers=["local"], route={"start": {"local": "otherwise"}}), unavailable="down")
    assert (down.refused, down.path) == ("no_tier", "")


@pytest.mark.parametrize("on_miss", ["serve_best", "fail"])
def test_speculation_that_comes_too_late_is_up_to_on_miss(on_miss: str) -> None:
    """The draft was poor, and the tier that was called at once has not answered by the deadline."""
    policy = policy_of(
        slo={"deadline": "2s", "on_miss": on_miss},
        escalate={"when": {"confidence_below": 0.62}, "speculate": {"both": "otherwise"}},
    )
    around = Surroundings(drafts={"hosted": (Draft(total_s=9),)})
    got = asked(policy, DOUBTFUL, budget_s=2, around=around)
    assert (got.path, got.refused) == (("degraded", "") if on_miss == "serve_best" else ("", "deadline"))
    assert (("slo", "on_miss"), True, "no time is left") in got.steps
