"""What stands on top of a request's page, and what would have changed it: in words, with recorded figures."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.console.facts import hop_facts
from gateway.parts.console.policy_numbers import numbers_of
from gateway.parts.console.summary import summary_of
from gateway.parts.console.timeline import timeline_of
from gateway.parts.console.what_changes import tried_as, what_changes
from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from policies.model import Hedge
from tests.parts.console.test_timeline import attempt, hop

LEDGER = {
    "status": 200, "path": "direct", "tier": "hosted", "backend": "openai", "served": [2], "stream": True,
    "ttft_ms": 530.0, "total_ms": 600.0, "cost_usd": 0.000265, "cost_unknown": False, "counterfactual_usd": 0.00025,
    "error": None, "slo": {"ttft_p95": False, "ttft_p99": True, "deadline": True}, "kept": "head",
}  # fmt: skip
SCORE = "escalate.when.uncalibrated_below"
REJECTED = {
    names.OUTCOME: "low_confidence", names.CONFIDENCE: 0.45, detail.MIN_CONFIDENCE: 0.8, names.CLAUSE: SCORE,
    detail.VERDICT_AT: 314.0, names.REASON: "confidence 0.45 < 0.80", names.COST: 0.0, detail.NEXT_TIER: "hosted",
}  # fmt: skip
HIT = {
    names.CACHE_OUTCOME: "hit", names.CACHE_AGE: 1.5, names.CACHE_SCORE: 0.91, names.THRESHOLD: 0.77,
    names.SIMILARITY: 0.962, detail.MIN_SIMILARITY: 0.4,
}  # fmt: skip
POLICY = """surface: chat
tiers: [local, hosted]
escalate: {when: {uncalibrated_below: 0.8}}
cache: {exact: {ttl: 24h}, semantic: {ttl: 1h}}
slo: {ttft: {p99: 900ms}, deadline: 60s}
"""


def laid_out(*hops: dict[str, Any], **ledger: Any) -> tuple[dict[str, Any], Any]:
    """A ledger and the timeline of a request with these hops, whose deadline is a minute."""
    limits = {detail.DEADLINE: 60_000.0, detail.TTFT_TARGET: 900.0}
    record = {"ledger": LEDGER | ledger, "hops": [hop(names.REQUEST, 0, 0, 600, **limits), *hops]}
    return record["ledger"], timeline_of(record, None, ())


def said(*hops: dict[str, Any], **ledger: Any) -> str:
    told, timeline = laid_out(*hops, **ledger)
    return summary_of(told, timeline.bars).text


def test_an_escalation_says_its_score_and_what_it_took_and_cost() -> None:
    """In a stream against the verdict, when the draft's first byte would have gone out; whole against its end."""
    second = attempt(2, 317, 280, "hosted", **{names.COST: 0.000265})
    first = attempt(1, 3, 314, **REJECTED)
    told, timeline = laid_out(first, second)
    found = summary_of(told, timeline.bars)
    assert found.text == "local's draft scored 0.45 where 0.80 is asked, so hosted answered: +213 ms, +$0.000265"
    assert found.missed == ["ttft.p95"]
    assert said(first, second, stream=False).endswith("+283 ms, +$0.000265")
    assert said(first, second, cost_unknown=True).endswith("+213 ms, at an unknown price")
    misfit = attempt(1, 3, 314, **REJECTED | {names.CONFIDENCE: 0.97, names.REASON: "not what the JSON schema says"})
    assert said(misfit, second).startswith("local's draft was rejected: not what the JSON schema says, so hosted")


def test_a_refusal_says_whose_budget_ran_out_of_how_much() -> None:
    """In the client's words, with how long it was held back before; one that ended well is told beside the answer."""
    words = "Key k_1 has spent $0.0501 of its budget of $0.05 a day (2026-11-28)."
    root = hop(names.REQUEST, 0, 0, 600, **{names.LIMIT_SAID: words, names.LIMITED_BY: "key:k_1/usd/2026-11-28@UTC"})
    wait = hop(
        names.QUOTA_WAIT, 1, 2, 1200, **{names.OUTCOME: "refused", names.LIMITED_BY: "key:k_1/usd/2026-11-28@UTC"}
    )
    told = {"status": 429, "error": "insufficient_quota"}
    bars = timeline_of({"ledger": LEDGER | told, "hops": [root, wait]}, None, ()).bars
    assert summary_of(LEDGER | told, bars).text == (
        "Refused with 429: Key k_1 has spent $0.0501 of its budget of $0.05 a day (2026-11-28), "
        "after 1.20 s of waiting for the budget of key:k_1"
    )
    text = said(wait, attempt(2, 1203, 500, "hosted", **{names.CONFIDENCE: 0.9, detail.MIN_CONFIDENCE: 0.8}))
    assert text.endswith("is asked, after 1.20 s of waiting for the budget of key:k_1")
    assert "waiting" not in said(hop(names.QUOTA_WAIT, 1, 2, 4), attempt(2, 6, 500, "hosted"))


def test_a_long_wait_is_told_where_a_limit_was_missed() -> None:
    queued = attempt(2, 3, 500, "hosted", **{names.QUEUE: 475.0})
    assert said(queued).endswith("475 ms of it in the queue")
    assert "queue" not in said(queued, slo={"ttft_p95": True}) + said(queued, total_ms=9000.0)


@pytest.mark.parametrize(
    ("hops", "ledger", "text"),
    [
        ([attempt(2, 3, 500, "hosted", **{names.CONFIDENCE: 0.94, detail.MIN_CONFIDENCE: 0.8})], {},
         "hosted answered: its draft scored 0.94 where 0.80 is asked"),
        ([hop(names.ROUTE, 1, 2, 1, **{names.REASON: "hosted: otherwise"}), attempt(2, 3, 500, "hosted")], {},
         "hosted answered: it starts there by the rule “hosted: otherwise”"),
        ([hop(names.ROUTE, 1, 2, 1, **{names.HOLDOUT: True}), attempt(2, 3, 500, "hosted")], {},
         "hosted answered: drawn at random, as the baseline of the other tiers"),
        ([attempt(1, 2, 300, **{names.OUTCOME: names.LOST}), attempt(2, 67, 500, "hosted", **{names.HEDGE: True})], {},
         "local was late, so after 65.0 ms a hedge went to hosted, which won"),
        ([attempt(2, 2, 500), attempt(1, 67, 90, "hosted", **{names.HEDGE: True, names.COST: 0.00004})], {},
         "local was late, so after 65.0 ms a hedge went to hosted, and local won all the same; the hedge cost "
         "$0.00004"),
        ([attempt(2, 2, 500), attempt(1, 3, 90, "hosted", **{names.SPECULATIVE: True, names.COST: 0.00004})], {},
         "local answered; hosted had been called ahead, which cost $0.00004"),
        ([attempt(1, 2, 300) | {"error": "upstream_timeout"}, attempt(2, 310, 200, "hosted")], {},
         "local failed (upstream timeout), so hosted answered"),
        ([attempt(1, 2, 300, **{names.UPSTREAM_STATUS: 429}) | {"error": "upstream_http_error"},
          attempt(2, 310, 200, "hosted", **{names.UPSTREAM_STATUS: 200})], {},
         "local failed (upstream http error: HTTP 429), so hosted answered"),
        ([attempt(1, 2, 300) | {"error": "upstream_truncated"}, attempt(2, 310, 200, "hosted", **{names.CONTINUES: 1})],
         {"served": [1, 2]}, "local broke off after 300 ms (upstream truncated), and hosted continued its text"),
        ([hop(names.CACHE_SEMANTIC, 1, 1, 1, **HIT)], {"path": "cache-semantic"},
         "The answer came from the cache: hosted gave it 1.50 s before to a question that scored 0.910 where 0.770 is "
         "asked; the strongest tier would have cost $0.00025"),
        ([hop(names.CACHE_EXACT, 1, 1, 1, **HIT)], {"path": "cache-exact", "counterfactual_usd": None},
         "The answer came from the cache: hosted gave it 1.50 s before to the same question"),
        ([hop(names.CACHE_FOLLOW, 1, 1, 1, **{names.FOLLOWED: "req-9"})], {"served": []},
         "It shared the answer of hosted to an identical request at the same time (req-9), at no cost"),
        ([], {"status": 400, "error": "invalid_type", "path": ""}, "Refused with 400: invalid type"),
        ([attempt(1, 2, 3) | {"error": "upstream_unreachable"}], {"status": 502, "error": "upstream_unreachable"},
         "Answered with 502: local failed (upstream unreachable), and no other tier was left"),
        ([], {"status": 499, "error": "client_gone"},
         "The client went away after 600 ms, before it had the whole answer"),
        ([], {"path": "escalated"}, "A draft was not good enough, so hosted answered"),
    ],
)  # fmt: skip
def test_every_path_has_a_sentence(hops: list[dict[str, Any]], ledger: dict[str, Any], text: str) -> None:
    assert said(*hops, **ledger) == text


def changes_of(*hops: dict[str, Any], hedge: Hedge | None = None, **ledger: Any) -> dict[str, list[str]]:
    """What would have changed a request, by part; each with the query of What if, where there is one."""
    told, timeline = laid_out(*hops, **ledger)
    numbers = numbers_of(POLICY)
    found: dict[str, list[str]] = {}
    for one in what_changes(told, timeline, hedge):
        tried = tried_as(one, numbers)
        found.setdefault(one.part, []).append(one.text + (f" [{tried[0]}={tried[1]}]" if tried else ""))
    return found


def test_what_would_have_changed_an_escalation() -> None:
    """The threshold, with the value to try, or that no threshold would have; of an accepted draft the other way."""
    second = attempt(2, 317, 280, "hosted", **{names.COST: 0.000265})
    assert changes_of(attempt(1, 3, 314, **REJECTED), second)["The escalation"] == [
        f"{SCORE} at 0.45 or less (it is 0.8): local's draft would have been served, 213 ms sooner, and $0.000265 "
        f"cheaper [{SCORE}=0.45]"
    ]
    misfit = REJECTED | {names.REASON: "no valid JSON", names.CLAUSE: "escalate.when.invalid_json"}
    assert changes_of(attempt(1, 3, 314, **misfit), second)["The escalation"] == [
        "Another answer of local: it was rejected for “no valid JSON”, at any score"
    ]
    accepted = REJECTED | {names.OUTCOME: "accepted", names.CONFIDENCE: 0.9405}
    assert changes_of(attempt(2, 3, 314, **accepted))["The verdict"] == [
        f"{SCORE} at 0.941 or more (it is 0.8): the draft would have been rejected, and hosted asked [{SCORE}=0.941]"
    ]


def test_what_would_have_changed_a_hit_or_a_miss() -> None:
    hit = changes_of(hop(names.CACHE_SEMANTIC, 1, 1, 1, **HIT), path="cache-semantic")["The hit"]
    assert hit[0] == "A threshold above 0.910 (it is 0.770, kept by cache.semantic.max_error): no hit"
    assert hit[1].endswith("[cache.semantic.min_similarity=0.963]")
    exact = changes_of(hop(names.CACHE_EXACT, 1, 1, 1, **HIT | {names.CACHE_AGE: 7200.0}), path="cache-exact")
    assert exact["The hit"][1].endswith("[cache.exact.ttl=1.98]"), "just under two hours, in the policy's unit"
    miss = HIT | {names.CACHE_OUTCOME: "miss", names.CACHE_SCORE: 0.132}
    assert changes_of(hop(names.CACHE_SEMANTIC, 1, 1, 1, **miss))["The miss"] == [
        "A threshold of 0.132 or less (it is 0.770, kept by cache.semantic.max_error): a hit"
    ]
    near = miss | {names.SIMILARITY: 0.38}
    assert changes_of(hop(names.CACHE_SEMANTIC, 1, 1, 1, **near))["The miss"] == [
        "cache.semantic.min_similarity at 0.38 or less (it is 0.4): the nearest would have been read "
        "[cache.semantic.min_similarity=0.38]"
    ]
    far = changes_of(hop(names.CACHE_SEMANTIC, 1, 1, 1, **miss | {names.SIMILARITY: 0.013}))["The miss"]
    assert far == ["Nothing: the nearest question is far off, at a similarity of 0.013"]
    guarded = changes_of(hop(names.CACHE_SEMANTIC, 1, 1, 1, **miss | {detail.GUARD: "numbers"}))["The miss"]
    assert guarded == ["No threshold: the guard for numbers refuses the nearest question at any score"]


def test_what_would_have_changed_a_hedge_and_the_deadline() -> None:
    late = attempt(1, 2, 300, **{names.OUTCOME: names.LOST})
    found = changes_of(late, attempt(2, 67, 500, "hosted", **{names.HEDGE: True}))
    assert found["The hedge"][0] == "Had local given its first token within 65.0 ms, none would have begun"
    alone = changes_of(attempt(2, 2, 300, **{names.TTFT: 40.0, names.QUEUE: 20.0}), hedge=Hedge())["A hedge"]
    assert alone == [
        "None began: its first token came after 60.0 ms. One begins after p95, as long as hedges cost at most 3% of "
        "what is spent"
    ]
    assert found["The deadline"] == ["Less than 600 ms (it was 60.00 s): the deadline would have cut it off"]
    kept = "slo.ttft.p99 below 530 ms (it was due after 900 ms): missed [slo.ttft.p99=524.7]"
    assert found["The first token"] == [kept]
    assert "More than" in changes_of(late, total_ms=60_001.0)["The deadline"][0]
    queued = attempt(2, 0, 600, **{names.QUEUE: 475.0})
    assert changes_of(queued, ttft_ms=1000.0)["The first token"] == [
        "100 ms less, in time: the queue of attempt 2 · local took 475 ms of it [slo.ttft.p99=1010]"
    ]


def test_facts_have_labels_and_say_which_limit_was_missed() -> None:
    facts = hop_facts({**REJECTED, names.QUEUE: 475.0, names.COST_UNKNOWN: True, names.HEDGE: True}, "upstream_timeout")
    assert [(one.label, one.value, one.state) for one in facts] == [
        ("", "low confidence", "bad"), ("", "hedge", ""), ("score", "0.450, under 0.800", "bad"),
        ("cost", "price not known", "bad"), ("queue", "475 ms", ""), ("error", "upstream timeout", "bad"),
    ]  # fmt: skip
