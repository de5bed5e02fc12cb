"""The layout of a request in time, as numbers."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.console.attempt_races import loss_of
from gateway.parts.console.replaced import replaced_in
from gateway.parts.console.svg import ribbon, waterfall
from gateway.parts.console.timeline import timeline_of
from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names


def hop(name: str, number: int, start_ms: float, ms: float, **attributes: Any) -> dict[str, Any]:
    return {
        "name": name, "number": number, "start_us": int(start_ms * 1000), "duration_us": int(ms * 1000), "error": None,
        "attributes": attributes,
    }  # fmt: skip


def record(*hops: dict[str, Any], ttft_ms: float | None = 230.0) -> dict[str, Any]:
    return {"ledger": {"ttft_ms": ttft_ms, "served": [2]}, "hops": [hop(names.REQUEST, 0, 0, 600), *hops]}


def health(ttft_s: float, *, unavailable: str = "") -> dict[str, Any]:
    return {"unavailable": unavailable, "ttft_s": ttft_s, "ttft_p95_s": 2 * ttft_s, "whole_s": 1.0}


ROUTE = hop(names.ROUTE, 1, 2, 1)
FIRST = hop(names.ATTEMPT, 2, 3, 200, **{names.TIER: "local", names.ATTEMPT_NUMBER: 1, names.TTFT: 40.0})
SECOND = hop(names.ATTEMPT, 3, 150, 450, **{names.TIER: "hosted", names.ATTEMPT_NUMBER: 2, names.TTFT: 80.0})


def given(budget_s: float, *tiers: dict[str, Any]) -> dict[str, Any]:
    return {"budget_s": budget_s, "ttft_s": 0.4, "stream": True, "health": list(tiers)}


def test_a_near_deadline_ends_the_axis_and_a_far_one_stands_behind_a_break() -> None:
    near = timeline_of(record(ROUTE), given(0.8), ())
    assert not near.broken and near.deadline_ms == pytest.approx(802) and near.x(802) < 1
    far = timeline_of(record(ROUTE), given(60.0), ())
    assert far.broken and far.x(600) < 0.86 < far.x(60_002) <= 1
    assert far.x(300) == pytest.approx(far.x(600) / 2)
    assert [one.kind for one in far.moments] == ["deadline", "target", "ttft"]


def test_parallel_attempts_have_lanes_and_the_served_one_is_told() -> None:
    _, _, first, second = timeline_of(record(ROUTE, FIRST, SECOND), None, ()).bars
    assert (first.lane, second.lane) == (0, 1), "the second began while the first ran"
    assert (first.served, second.served) == (False, True)
    assert second.first_ms == pytest.approx(230)


def attempt(number: int, start_ms: float, ms: float, tier: str = "local", **attributes: Any) -> dict[str, Any]:
    return hop(names.ATTEMPT, number + 1, start_ms, ms, **{
        names.TIER: tier, names.ATTEMPT_NUMBER: number, names.OUTCOME: "accepted", names.GEN_AI_TOKENS_IN: 20,
        names.GEN_AI_TOKENS_OUT: 10, names.COST: 0.0002, **attributes,
    })  # fmt: skip


def test_a_hedge_is_a_race_with_its_winner_and_the_price_of_the_loser() -> None:
    late = attempt(1, 3, 500, **{names.OUTCOME: names.LOST, names.USAGE_ESTIMATED: True})
    hedge = attempt(2, 150, 350, "hosted", **{names.HEDGE: True})
    laid_out = timeline_of(record(ROUTE, late, hedge, hop(names.CACHE_WRITE, 9, 590, 2)), None, ())
    [race] = laid_out.races
    assert (race.kind, list(race.numbers), race.winner, race.unused_tokens) == ("hedge", [2, 3], 3, 30)
    assert race.unused_usd == pytest.approx(0.0002) and not race.cost_unknown
    assert "attempt 2 · hosted won" in race.text and "attempt 1 · local was cancelled at 503 ms" in race.text
    assert [[bar.number for bar in lanes] for _, lanes in laid_out.rows()] == [[0], [1], [2, 3], [9]]
    loser = laid_out.bars[2]
    assert loss_of(loser) == "cancelled at 503 ms, 500 ms after it began: 30 tokens (estimated), $0.0002"
    assert "cancel" in str(waterfall.bar(laid_out, loser)) and loss_of(laid_out.bars[3]) == ""
    marks = str(waterfall.race_marks(laid_out, laid_out.bars[2:4]))
    assert marks.count('class="fork"') == 1 and marks.count('class="decided"') == 1


def test_samples_are_lanes_beside_their_attempt_and_escalations_are_no_race() -> None:
    sample = hop(names.SAMPLE, 4, 10, 150, **{names.COST: 0.0001, names.COST_UNKNOWN: True})
    [race] = timeline_of(record(ROUTE, attempt(2, 3, 300), sample), None, ()).races
    assert (race.kind, list(race.numbers), race.winner, race.cost_unknown) == ("samples", [3, 4], 3, True)
    assert "1 further answer drawn beside it" in race.text and "at least $0.0001" in race.text
    assert timeline_of(record(ROUTE, attempt(1, 3, 200), attempt(2, 202.9, 300)), None, ()).races == []


def test_the_total_time_consists_of_what_was_waited_for() -> None:
    """Of a hedged request: what ran before the hedge began, then the hedge alone; not the loser's end."""
    late = attempt(1, 3, 580, **{names.OUTCOME: names.LOST})
    hedge = attempt(2, 150, 430, "hosted", **{names.HEDGE: True})
    path = timeline_of(record(ROUTE, late, hedge, hop(names.CACHE_WRITE, 9, 590, 2)), None, ()).path
    assert [(part.number, part.start_ms, part.end_ms) for part in path] == [
        (None, 0, 2), (1, 2, 3), (2, 3, 150), (3, 150, 580), (None, 580, 600),
    ]  # fmt: skip
    laid_out = timeline_of(record(ROUTE, attempt(1, 3, 200), attempt(2, 203, 397)), None, ())
    assert laid_out.critical_ms(2) == pytest.approx(200) and laid_out.critical_ms(None) == pytest.approx(2)
    assert dict(waterfall.path_parts(laid_out))["attempt 2 · local"] == pytest.approx(397 / 600)
    assert sum(part for _, part in waterfall.path_parts(laid_out)) == pytest.approx(1, abs=0.01)
    assert str(waterfall.path_strip(laid_out)).count("<rect") == 4


def test_the_time_left_falls_to_the_deadline_through_the_hops() -> None:
    begun = {**ROUTE, "attributes": {detail.BUDGET_LEFT: 798.0}}
    laid_out = timeline_of(record(begun), given(0.8), ())
    drawn = str(waterfall.budget(laid_out))
    assert laid_out.left_ms(laid_out.total_ms) == pytest.approx(202) and "798 ms of 802 ms left" in drawn
    assert drawn.count("<circle") == 1 and drawn.count('class="left soon"') == 1
    assert waterfall.budget_words(laid_out) == "202 ms of 802 ms left at the end"
    assert waterfall.budget(timeline_of(record(ROUTE), None, ())) is None


def test_roads_not_taken_are_those_that_the_hops_name() -> None:
    """The route says which tiers it did not start at, a judged attempt which would have taken over; -1 is unknown."""
    route = hop(names.ROUTE, 1, 2, 1, **{
        detail.OTHER_TIERS: ["hosted", "large", "gone", "new"], detail.OTHER_TTFT: [310.0, 900.0, -1.0, -1.0],
        detail.OTHER_TTFT_P95: [700.0, -1.0, -1.0, -1.0], detail.OTHER_WHOLE: [1.0, 1.0, -1.0, -1.0],
        detail.OTHER_LATE: [False, True, False, False], detail.OTHER_STATE: ["", "", "ejected", ""],
    })  # fmt: skip
    judged = attempt(1, 3, 200, **{
        detail.VERDICT_AT: 50.0, detail.NEXT_TIER: "hosted", detail.NEXT_TTFT: 310.0, detail.NEXT_LATE: True,
    })  # fmt: skip
    roads = timeline_of(record(route, judged), given(60.0, health(9), health(9)), ("local", "hosted")).ghosts
    assert [(road.tier, road.start_ms, road.p95_ms, road.late, road.instead_of) for road in roads] == [
        ("hosted", 3, 700.0, False, ""), ("large", 3, None, True, ""), ("gone", 3, None, False, ""),
        ("hosted", 53, None, True, "attempt 1 · local"),
    ]  # fmt: skip
    assert "ejected" in roads[2].text and roads[0].duration_ms == 310


def test_the_answer_that_replaced_a_rejected_one_stands_beside_it() -> None:
    verdict = {
        detail.VERDICT_AT: 50.0,
        names.CONFIDENCE: 0.3,
        detail.MIN_CONFIDENCE: 0.6,
        names.TOKENS_JUDGED: 24,
    }
    rejected = attempt(1, 3, 100, **{**verdict, names.PREFIX_TOKENS: ["It", " is"], names.OUTCOME: "low_confidence"})
    whole = record(ROUTE, rejected, attempt(2, 104, 300, "hosted"))
    whole["hops"][0]["attributes"][names.ANSWER] = "It was."
    replaced = replaced_in(timeline_of(whole, None, ()).bars)[2]
    assert replaced.captured and replaced.before.text == "It is" and replaced.before.confidence == 0.3
    assert replaced.after is not None and (replaced.after.text, replaced.after.label) == (
        "It was.",
        "attempt 2 · hosted",
    )
    quiet = record(ROUTE, attempt(1, 3, 100, **verdict), attempt(2, 104, 300, "hosted"))
    bare = replaced_in(timeline_of(quiet, None, ()).bars)[2]
    assert not bare.captured and bare.before.text is None and bare.before.judged == 24
    nobody = {**quiet, "ledger": {"ttft_ms": None, "served": []}}
    assert replaced_in(timeline_of(nobody, None, ()).bars)[2].after is None


def test_tiers_that_were_not_called_are_drawn_as_expected() -> None:
    """With what the router expected of them, and whether that would have been in time."""
    roads = timeline_of(
        record(ROUTE, FIRST), given(60.0, health(0.05), health(0.3), health(0.5), health(9, unavailable="down")),
        ("local", "mid", "late", "gone"),
    ).ghosts  # fmt: skip
    assert [(road.tier, road.late) for road in roads] == [("mid", False), ("late", True), ("gone", False)]
    assert roads[0].start_ms == 3 and roads[0].duration_ms == pytest.approx(300)
    assert "would have been late" in roads[1].text and "down" in roads[2].text


def test_what_is_drawn_needs_no_script_and_no_inline_style() -> None:
    timeline = timeline_of(record(ROUTE, FIRST, SECOND), given(60.0, health(0.05), health(0.3)), ("a", "b"))
    drawn = str(waterfall.axis(timeline)) + str(waterfall.marks(timeline))
    drawn += "".join(str(waterfall.bar(timeline, bar)) for bar in timeline.bars)
    drawn += "".join(str(waterfall.ghost(timeline, road)) for road in timeline.ghosts)
    assert " style=" not in drawn and "<script" not in drawn and drawn.count("<svg") == 2 + len(timeline.bars) + 2


def test_a_request_without_a_decision_is_laid_out() -> None:
    alone = timeline_of(record(ttft_ms=None), None, ())
    assert alone.moments == [] and alone.deadline_ms is None and alone.x(600) < 1
    assert alone.ticks()[0] == (0, "0 ms")


def test_the_judged_tokens_are_a_ribbon_with_the_doubtful_ones_named() -> None:
    judged = {detail.PREFIX: [-0.01, -2.3, -0.5], detail.LOWEST: [1], detail.LOWEST_LOGPROBS: [-2.3]}
    drawn = str(ribbon.ribbon(judged))
    assert drawn.count("<rect") == 3 and drawn.count('class="doubt"') == 1 and "probability 0.100" in drawn
    assert ribbon.doubts(judged) == ["token 2 at 0.10"]
    texts = {**judged, names.PREFIX_TOKENS: ["It", " <b>", "."], names.LOWEST_TOKENS: [" <b>"]}
    assert "&lt;b&gt;" in str(ribbon.ribbon(texts)) and "<b>" not in str(ribbon.ribbon(texts))
    assert ribbon.doubts(texts) == ["token 2 ' <b>' at 0.10"]
    assert ribbon.ribbon({}) is None


def test_a_wait_in_the_queue_is_drawn_and_the_first_token_stands_where_it_was() -> None:
    """The recorded time to the first token begins with the call, behind the queue; a whole answer has a queue, too."""
    queued = attempt(1, 0, 900, **{names.QUEUE: 475.0, names.TTFT: 271.0, detail.VERDICT_AT: 800.0})
    timeline = timeline_of(record(queued, ttft_ms=746.4), None, ())
    bar = timeline.bars[1]
    assert bar.queue_ms == 475 and bar.first_ms == pytest.approx(746) and bar.verdict_ms == pytest.approx(800)
    drawn = waterfall.bar(timeline, bar)
    at = f"{timeline.x(746) * 100:.3f}%"
    assert f'x1="{at}" x2="{at}"' in drawn and 'class="queued"' in drawn and "waited 475 ms in the queue" in drawn
    parts = dict(waterfall.path_parts(timeline))
    assert parts["queue of attempt 1 · local"] == pytest.approx(475 / 600) and parts["attempt 1 · local"] < 0.22
    at_once = timeline_of(record(attempt(1, 0, 500)), None, ())
    assert 'class="queued"' not in waterfall.bar(at_once, at_once.bars[1])
