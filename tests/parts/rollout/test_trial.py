"""One step of a canary: what is counted, and what is done about it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.parts.rollout.policy import CANDIDATE, CONTROL, Learn, Rollout
from gateway.parts.rollout.registry.records import Rolling
from gateway.parts.rollout.report import canary_report
from gateway.parts.rollout.trial import SETTLE_S, GuardFigures, Trial, TrialVerdict, floor_chance
from tests.bench import canary

BEGAN = 1_000_000.0
ALL = {"goodput": "-1%", "quality": "-2%", "ttft_p95": "+50ms", "cost": "+10%"}
Draw = Callable[[random.Random, str], Mapping[str, Any]]


def trial(share: float = 0.25, **more: Any) -> Trial:
    guard, learn = more.pop("guard", ALL), more.pop("learn", None)
    return Trial(Rollout.model_validate({"steps": ["25%"], "guard": guard, **more}), share, BEGAN, SETTLE_S, learn)


def ledger(number: int, arm: str, **more: Any) -> dict[str, Any]:
    return {
        "arm": arm,
        "path": "direct",
        "unit": f"{arm} {number}",
        "tenant": "acme",
        "request_id": f"req-{number}",
        "status": 200,
        "error": None,
        "ttft_ms": 200.0,
        "total_ms": 500.0,
        "cost_usd": 0.001,
        "slo": {"ttft_p95": False, "deadline": True},
        **more,
    }


def told(
    one: Trial, count: int, draw: Draw = lambda _chance, _arm: {}, share: float = 0.25, pace_s: float = 0.1
) -> float:
    """Tell the trial so many requests of as many conversations, one each `pace_s`; return the time after the last."""
    chance = random.Random(11)
    for number in range(count):
        arm = CANDIDATE if chance.random() < share else CONTROL
        one.add(ledger(number, arm, **draw(chance, arm)), BEGAN + SETTLE_S + number * pace_s)
    return BEGAN + SETTLE_S + count * pace_s + 1


def bad(rates: Mapping[str, float]) -> Draw:
    return lambda chance, arm: {"slo": {"deadline": chance.random() >= rates[arm]}}


def by_guard(verdict: TrialVerdict) -> dict[str, Any]:
    return {one.guard: one for one in verdict.guards}


@pytest.mark.parametrize(
    ("guard", "draw"),
    [
        ("goodput", bad({CANDIDATE: 0.1, CONTROL: 0.01})),
        ("ttft_p95", lambda chance, arm: {"ttft_ms": chance.uniform(100, 300) + 90 * (arm == CANDIDATE)}),
        ("cost", lambda chance, arm: {"cost_usd": chance.uniform(0.5, 1.5) * (1.4 if arm == CANDIDATE else 1)}),
    ],
)
def test_each_guard_takes_back_what_is_worse_than_allowed(guard: str, draw: Draw) -> None:
    """And says by how much, between which bounds."""
    one = trial(guard={guard: ALL[guard]})
    verdict = one.verdict(told(one, 4000, draw))
    assert verdict.move == "rollback" and verdict.reason.startswith(guard)
    [figures] = verdict.guards
    assert figures.state == "crossed" and figures.decided_in_s == 0
    assert figures.low < figures.difference < figures.high
    worst = figures.high if guard == "goodput" else figures.low
    assert abs(worst) > abs(figures.allowed) and worst * figures.difference > 0


def test_figures_are_plain_json_at_any_time() -> None:
    """The judge keeps them in the store; what is not decided yet has an estimate of how long it takes."""
    one, chance, left = trial(guard={"cost": "+10%"}), random.Random(3), []
    for number in range(2000):
        arm = CANDIDATE if chance.random() < 0.25 else CONTROL
        now = BEGAN + SETTLE_S + number
        one.add(ledger(number, arm, cost_usd=chance.choice([0.0, 0.001])), now)
        if number % 100 == 0:
            [figures] = orjson.loads(orjson.dumps(one.verdict(now).as_json()))["guards"]
            left.append(figures["decided_in_s"])
    assert any(left)


def test_a_cost_that_nobody_knows_is_not_one_of_nothing() -> None:
    """A candidate whose backend has no price is not the cheaper one: its guard has nothing to go by."""

    def unknown(_chance: random.Random, arm: str) -> Mapping[str, Any]:
        return {"cost_usd": 0.0, "cost_unknown": True} if arm == CANDIDATE else {}

    one = trial(guard={"cost": ALL["cost"]})
    verdict = one.verdict(told(one, 4000, unknown))
    assert verdict.move != "promote" and [figures.state for figures in verdict.guards] != ["within"]


def test_ratings_count_for_the_arm_of_their_request() -> None:
    """Whenever they come; those of other requests are left out."""
    one = trial(guard={"quality": "-2%"})
    now = told(one, 2000)
    chance = random.Random(11)
    for number in range(2000):
        good = 0.6 if chance.random() < 0.25 else 0.9
        one.rate("acme", f"req-{number}", good + 0.1 * (number % 2))
        one.rate("other", f"req-{number}", 1.0)
    verdict = one.verdict(now)
    [quality] = verdict.guards
    assert verdict.move == "rollback"
    assert (quality.candidate, quality.control) == (pytest.approx(0.65, abs=0.01), pytest.approx(0.95, abs=0.01))
    assert quality.n_candidate + quality.n_control == 2000


LEARN = {arm: Learn(judge="judge") for arm in (CANDIDATE, CONTROL)}


def quality_of(one: Trial, now: float) -> GuardFigures:
    [quality] = one.verdict(now).guards
    return quality


def spoken(one: Trial, count: int, people: Callable[[int, str], float | None], judge: dict[str, float]) -> None:
    """Have a judge label every answer as good as its arm's share says, and people rate some."""
    chance, luck = random.Random(11), random.Random(12)
    for number in range(count):
        arm = CANDIDATE if chance.random() < 0.25 else CONTROL
        one.judge("acme", f"req-{number}", float(luck.random() < judge[arm]))
        if (score := people(number, arm)) is not None:
            one.rate("acme", f"req-{number}", score)


def test_a_judge_speaks_where_people_are_silent() -> None:
    """Its labels decide by themselves, though they come before the records do; the figures say whose word they are."""
    one = trial(guard={"quality": "-2%"}, learn=LEARN)
    spoken(one, 1000, lambda _number, _arm: None, {CANDIDATE: 0.6, CONTROL: 0.95})
    now = told(one, 2000)
    assert (quality_of(one, now).state, quality_of(one, now).word) == ("crossed", "judge")
    assert quality_of(one, now).candidate == pytest.approx(0.6, abs=0.06)
    assert quality_of(one, now).n_candidate + quality_of(one, now).n_control == 1000


def test_people_overrule_a_judge_that_is_wrong_of_one_arm() -> None:
    """Where both have rated enough, the judge's word only helps as far as it agrees with theirs."""
    one = trial(guard={"quality": "-2%"}, learn=LEARN)
    now = told(one, 2000)
    blind = {CANDIDATE: 0.6, CONTROL: 0.95}
    spoken(one, 2000, lambda number, _arm: 0.9 if number % 4 == 0 else None, blind)
    quality = quality_of(one, now)
    assert (quality.word, quality.difference) == ("people", pytest.approx(0))
    assert quality.state != "crossed" and quality.candidate == pytest.approx(0.9)


def test_a_judge_that_agrees_with_people_is_worth_many_ratings() -> None:
    """It is the estimate's variance that says how many."""
    helped, alone = (trial(guard={"quality": "-2%"}, learn=LEARN) for _ in range(2))
    for one in (helped, alone):
        now = told(one, 2000)
    chance, luck = random.Random(11), random.Random(12)
    for number in range(2000):
        good = float(luck.random() < (0.6 if chance.random() < 0.25 else 0.8))
        helped.judge("acme", f"req-{number}", good if luck.random() < 0.95 else 1 - good)
        if number % 10 == 0:
            for one in (helped, alone):
                one.rate("acme", f"req-{number}", good)
    more, less = quality_of(helped, now), quality_of(alone, now)
    assert more.n_candidate > 3 * less.n_candidate > 100
    assert more.difference is not None and more.difference == pytest.approx(-0.2, abs=0.07)
    assert more.high is not None and more.low is not None and less.high is not None and less.low is not None
    assert more.high - more.low < 0.7 * (less.high - less.low)


def test_a_later_rating_of_an_answer_takes_the_earlier_ones_place() -> None:
    """As in every other figure: of several ratings of one request the last counts."""
    one = trial(guard={"quality": "-2%"})
    now = told(one, 400)
    for score in (0.0, 1.0):
        for number in range(400):
            one.rate("acme", f"req-{number}", score)
    quality = quality_of(one, now)
    assert (quality.candidate, quality.control, quality.n_candidate + quality.n_control) == (1.0, 1.0, 400)


@pytest.mark.parametrize(
    ("learn", "said"),
    [
        ({}, "no feedback, and no judge labels answers: give both policies a `learn` section"),
        ({CANDIDATE: LEARN[CANDIDATE]}, "give the policy in force a `learn` section too"),
        ({CONTROL: LEARN[CANDIDATE]}, "give the candidate a `learn` section too"),
        (LEARN, "of either arm's answers yet: `learn.share` is 0.01 of the fresh answers; raise it"),
    ],
)
def test_a_quality_guard_without_evidence_says_what_is_missing(learn: dict[str, Learn], said: str) -> None:
    """And what to do, in the status at once and in the reason when the step ends."""
    one = trial(guard={"quality": "-2%"}, step_max="2h", learn=learn)
    now = told(one, 400)
    verdict = one.verdict(now)
    assert said in verdict.guards[0].missing and "POST /v1/feedback" in verdict.guards[0].missing
    rolling = Rolling("c" * 64, "canary", 0.25, 0, BEGAN, "", "d")
    lines = canary_report(rolling, 1, verdict, now)["lines"]
    assert any(said in line for line in lines) and any("ends undecided" in line for line in lines)
    assert said in one.verdict(BEGAN + 7201).reason
    for number in range(20):
        one.rate("acme", f"req-{number}", 1.0)
    assert not one.verdict(now).guards[0].missing


def test_a_step_passes_when_all_guards_are_within_and_its_time_is_over() -> None:
    """Not before its shortest time, however clear it is."""

    def draw(chance: random.Random, _arm: str) -> Mapping[str, Any]:
        return {
            "slo": {"deadline": chance.random() > 0.002},
            "ttft_ms": chance.uniform(100, 300),
            "cost_usd": chance.uniform(0.9, 1.1),
        }

    one = trial(guard={name: ALL[name] for name in ("goodput", "ttft_p95", "cost")})
    now = told(one, 12_000, draw)
    early = one.verdict(now)
    assert [guard.state for guard in early.guards] == ["within"] * 3
    assert (early.move, early.elapsed_s < 1800) == ("wait", True)
    late = one.verdict(BEGAN + 1801)
    assert late.move == "pass" and "goodput, ttft_p95, cost" in late.reason


@pytest.mark.parametrize(("undecided", "move"), [("pause", "pause"), ("promote", "pass"), ("rollback", "rollback")])
def test_a_step_without_a_verdict_ends_as_the_policy_says(undecided: str, move: str) -> None:
    """Here nobody has rated anything."""
    one = trial(undecided=undecided, step_max="2h")
    told(one, 400)
    assert one.verdict(BEGAN + 7199).move == "wait"
    verdict = one.verdict(BEGAN + 7201)
    assert verdict.move == move and verdict.reason.startswith("undecided after 2 h: ") and "quality" in verdict.reason


def test_a_minute_below_the_floor_is_enough() -> None:
    """After hours in which all was well, which the guard's own figures would need long to make up for."""
    one = trial(floor={"goodput": "90%"}, guard={"goodput": "-1%"}, step_min="5h")
    now = told(one, 8_000, bad({CANDIDATE: 0.02, CONTROL: 0.02}))
    assert one.verdict(now).move == "wait"
    for number in range(40):
        arm = CANDIDATE if number % 4 == 0 else CONTROL
        one.add(ledger(number + 50_000, arm, slo={"deadline": arm == CONTROL}), now + number)
    verdict = one.verdict(now + 41)
    assert verdict.move == "rollback" and "below the floor of 90%" in verdict.reason
    assert by_guard(verdict)["goodput"].state == "open"
    both = trial(floor={"goodput": "90%"}, guard={})
    now = told(both, 400, bad({CANDIDATE: 0.5, CONTROL: 0.5}))
    assert both.verdict(now).move == "wait", "all arms fail: it is not the candidate's doing"


def test_the_floor_counts_conversations() -> None:
    """One that fails in all its 30 turns is one; of 10, five must fail where 2% usually do."""
    assert not floor_chance(1.0, 30, 0.02)
    assert not floor_chance(4.9, 10, 0.02)
    assert floor_chance(5.0, 10, 0.02)
    assert not floor_chance(4.0, 4, 0.001), "fewer units than any verdict rests on"
    assert floor_chance(900.0, 5000, 0.02), "no number is too large"


def test_no_outcome_of_the_candidate_is_failure() -> None:
    """Once chance cannot be the reason: then it hangs, crashes the worker, or its records are lost."""
    one = trial(guard={})
    assert one.verdict(told(one, 60, share=0)).move == "wait"
    now = told(one, 400, share=0)
    verdict = one.verdict(now)
    assert verdict.move == "rollback" and verdict.reason.startswith("no outcome of the candidate for 4")


def test_an_uneven_split_pauses() -> None:
    """A tenth instead of a quarter: whatever the other figures say, they are not of comparable arms."""
    one = trial(guard={})
    now = told(one, 1100, share=0.1)
    assert one.verdict(now).move == "wait", "the latest are not counted: one arm may be the slower"
    verdict = one.verdict(now + 200)
    assert verdict.move == "pause" and "instead of 25.00%" in verdict.reason
    even = trial(guard={})
    assert even.verdict(told(even, 2000) + 200).move == "wait"


def test_what_the_client_did_is_no_failure_of_the_candidate() -> None:
    """A request that it broke off, or that was wrong itself, has no objectives; one that began before is left out."""
    one = trial(guard={"goodput": "-1%"})
    now = told(
        one, 3000, lambda _chance, arm: {"slo": None, "status": 499, "error": "client_gone"} if arm == CANDIDATE else {}
    )
    one.add(ledger(9, CANDIDATE, slo={"deadline": False}), BEGAN + SETTLE_S - 0.1)
    one.add(ledger(9, "", slo={"deadline": False}), now)
    verdict = one.verdict(now)
    assert verdict.move == "wait"
    assert verdict.guards[0].n_candidate == 0
    assert verdict.requests[CANDIDATE] > 600


def test_the_bench_judges_as_a_trial_does() -> None:
    """A day of clustered traffic, thinned: the sums of every guard are the same in both."""
    one = canary.day(np.random.default_rng(5), pace=0.02)
    judged = trial(share=0.05, guard={**ALL, "ttft_p95": "+50ms"})
    names = {True: CANDIDATE, False: CONTROL}
    order = np.lexsort((np.arange(len(one.unit)), one.second))
    for number in order:
        arm = names[bool(one.place[number] < 0.05)]
        judged.add(
            ledger(
                int(number),
                arm,
                unit=str(one.unit[number]),
                slo={"deadline": not one.bad[number]},
                ttft_ms=one.ttft[number] * 1000,
                cost_usd=one.cost[number],
                total_ms=0.0,
            ),
            BEGAN + SETTLE_S + float(one.second[number]),
        )
        if not np.isnan(one.score[number]):
            judged.rate("acme", f"req-{number}", one.score[number])
    verdict = judged.verdict(BEGAN + SETTLE_S + canary.DAY)
    figures = by_guard(verdict)
    for guard, values in (("goodput", one.bad), ("quality", 1 - one.score), ("cost", one.cost)):
        candidate, control = canary.arms(one, values, 0.05)
        found = figures[guard]
        sign = 1.0 if guard == "cost" else -1.0
        assert (found.n_candidate, found.n_control) == (candidate.n[-1], control.n[-1])
        mean = candidate.mean[-1] if guard == "cost" else 1 - candidate.mean[-1]
        assert found.candidate == pytest.approx(mean)
        difference = (
            candidate.mean[-1] / control.mean[-1] - 1 if guard == "cost" else candidate.mean[-1] - control.mean[-1]
        )
        assert found.difference == pytest.approx(sign * difference)
    late = canary.arms(one, canary.slow(one, 0.05, 0.05), 0.05)
    assert figures["ttft_p95"].n_control == pytest.approx(late[1].n[-1], abs=2)
    assert figures["ttft_p95"].difference == pytest.approx(late[0].mean[-1] - late[1].mean[-1], abs=0.01)
    arm = judged._arms[CANDIDATE]
    assert float(arm.sums["goodput"].variance()) == pytest.approx(
        float(canary.arms(one, one.bad, 0.05)[0].variance()[-1])
    )


@pytest.mark.parametrize("count", [0, 3, 60, 600])
def test_a_verdict_is_json_whatever_is_known(count: int) -> None:
    """With no outcomes, few, and many: the judge stores it as such."""
    one = trial()
    now = told(
        one, count, lambda chance, arm: {"cost_usd": chance.uniform(0.9, 1.1) * (1.05 if arm == CANDIDATE else 1)}
    )
    for number in range(0, count, 7):
        one.rate("acme", f"req-{number}", 0.5)
    assert b'"guards":[' in orjson.dumps(one.verdict(now).as_json())


def test_what_is_late_is_known_from_before_the_step() -> None:
    """Then the first requests count; without, the control's first hundred are waited for."""
    rollout = Rollout.model_validate({"steps": ["50%"], "guard": {"ttft_p95": "+50ms"}})
    before = [0.1 + number / 1000 for number in range(100)]
    known, unknown = Trial(rollout, 0.5, BEGAN, before=before), Trial(rollout, 0.5, BEGAN, before=before[:99])
    for number in range(40):
        for one in (known, unknown):
            arm = CANDIDATE if number % 2 else CONTROL
            late = {"ttft_ms": 900.0 if arm == CANDIDATE else 120.0}
            one.add(ledger(number, arm, **late), BEGAN + SETTLE_S + number)
    verdict = known.verdict(BEGAN + 60)
    assert verdict.move == "rollback" and by_guard(verdict)["ttft_p95"].n_candidate == 20
    figures = by_guard(unknown.verdict(BEGAN + 60))["ttft_p95"]
    assert (figures.n_candidate, figures.allowed_s) == (0, 0.05)
    assert figures.waits_for == "the control's 95th percentile: 20 of 100 first tokens"
    for number in range(40, 400):  # the control has become slower: both arms are held against what it is now
        for arm in (CONTROL, CANDIDATE):
            known.add(ledger(number, arm, ttft_ms=300.0), BEGAN + SETTLE_S + number)
    assert known._slow_after == pytest.approx(0.3)
