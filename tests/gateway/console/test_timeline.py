"""The layout of a request in time, as numbers."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from gateway.console.svg import ribbon, waterfall
from gateway.console.timeline import timeline_of
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


def test_a_document_of_its_own_is_whole() -> None:
    """Valid XML with labels as text; each class has a rule in it, and it refers to nothing outside."""
    failed = {**hop(names.CACHE_WRITE, 4, 600, 1, **{names.VERDICT_AT: 0.5}), "error": "\x1b & <late>"}
    laid_out = timeline_of(
        record(ROUTE, FIRST, SECOND, failed), given(60.0, health(0.05), health(0.3), health(70)), ("a", "b", "c" * 40)
    )
    assert laid_out.broken and {road.late for road in laid_out.ghosts} == {True, False}
    text = waterfall.standalone(laid_out, ["request req-1  200 <b>", "total 600 ms"])
    root = ElementTree.fromstring(text)
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "request req-1 \N{MIDDLE DOT} 200 <b>"
    assert "attempt 2 \N{MIDDLE DOT} hosted \N{CHECK MARK}" in texts and "600 ms" in texts
    assert any("error \N{REPLACEMENT CHARACTER} & <late>" in one for one in texts)
    assert any("would have been late" in one for one in texts)
    drawn = {name for element in root.iter() for name in element.get("class", "").split()}
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    grouping = {"waterfall", "lane", "axis", "marks", "bar"}
    assert drawn - grouping <= set(re.findall(r"\.([a-z]+)", style)), drawn
    assert not re.search("script|href|url|var[(]|@", text) and 'width="1200"' in text


def test_a_request_without_hops_is_a_document_too() -> None:
    empty = timeline_of({"ledger": {"ttft_ms": None, "served": None}, "hops": []}, None, ())
    ElementTree.fromstring(waterfall.standalone(empty, []))


def test_a_request_without_a_decision_is_laid_out() -> None:
    alone = timeline_of(record(ttft_ms=None), None, ())
    assert alone.moments == [] and alone.deadline_ms is None and alone.x(600) < 1
    assert alone.ticks()[0] == (0, "0 ms")


def test_the_judged_tokens_are_a_ribbon_with_the_doubtful_ones_named() -> None:
    judged = {names.PREFIX: [-0.01, -2.3, -0.5], names.LOWEST: [1], names.LOWEST_LOGPROBS: [-2.3]}
    drawn = str(ribbon.ribbon(judged))
    assert drawn.count("<rect") == 3 and drawn.count('class="doubt"') == 1 and "probability 0.100" in drawn
    assert ribbon.doubts(judged) == ["token 2 at 0.10"]
    texts = {**judged, names.PREFIX_TOKENS: ["It", " <b>", "."], names.LOWEST_TOKENS: [" <b>"]}
    assert "&lt;b&gt;" in str(ribbon.ribbon(texts)) and "<b>" not in str(ribbon.ribbon(texts))
    assert ribbon.doubts(texts) == ["token 2 ' <b>' at 0.10"]
    assert ribbon.ribbon({}) is None
