"""What is said of each hop of a record."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.reasons import detail_names as detail
from gateway.parts.reasons.words import reasons_of
from gateway.parts.trace.commands.trace import draw
from gateway.telemetry import names
from tests.gateway.telemetry.requests_made import escalated
from tests.parts.trace.test_trace_drawn import piped, record_of_request


def said_of(name: str, attributes: dict[str, Any]) -> str:
    """What is said of a hop."""
    return "; ".join(reasons_of({"name": name, "attributes": attributes, "error": None}))


def test_prompt_caches_and_shorter_input_are_told() -> None:
    """What was added, read and written, what that saved or cost, and what of the input was left out."""
    record = record_of_request(escalated(prompt_cache_usd=-0.0002))
    text = " ".join(piped([record], draw, width=140))
    assert "prompt caches cost $0.0002" in text
    read = {names.GEN_AI_TOKENS_IN: 900, names.GEN_AI_TOKENS_OUT: 5, names.GEN_AI_TOKENS_CACHED: 800}
    added = {names.PROMPT_CACHE: ["system", "messages[2]"], names.PROMPT_CACHE_USD: 0.01}
    told = said_of(names.ATTEMPT, {**read, **added, names.GEN_AI_TOKENS_CACHE_WRITE: 50})
    assert "tokens 900 in (800 of them read from the prompt cache, 50 written to it), 5 out" in told
    assert "added for the prompt cache: system, messages[2]" in told and "the prompt cache saved $0.01" in told
    written = {names.GEN_AI_TOKENS_IN: 9, names.GEN_AI_TOKENS_CACHE_WRITE: 9, names.PROMPT_CACHE_USD: -0.5}
    told = said_of(names.ATTEMPT, written)
    assert "9 in (9 of them written to the prompt cache)" in told and "writing to the prompt cache cost $0.50" in told
    assert said_of(names.INPUT, {names.INPUT_SAVED: ["tool_results 120", "minify 3"]}) == (
        "tool_results left out 120 tokens, minify left out 3 tokens"
    )
    assert said_of(names.INPUT, {}) == "nothing was left out"


def test_an_unknown_hop_shows_what_it_has() -> None:
    """A hop this version has no words for is shown with its attributes as they are."""
    assert reasons_of({"name": "queue", "attributes": {"tierline.queue": 3}, "error": None}) == ["tierline.queue 3"]


def test_an_abstention_is_said() -> None:
    """A classifier out of its domain is said to abstain."""
    hop = {"name": names.ROUTE, "attributes": {detail.IN_DOMAIN: False}, "error": None}
    assert reasons_of(hop) == ["out of domain: the classifier abstains"]


@pytest.mark.parametrize(
    ("hop", "attributes", "said"),
    [
        (names.ROUTE, {names.HOLDOUT: True}, "held out"),
        (
            names.ROUTE,
            {detail.KIND: "chat", detail.QUANTILE: 0.35},
            "kind chat, harder than 35.0% of the classifier's reference prompts",
        ),
        (
            names.ROUTE,
            {detail.KIND: "chat", detail.P_KIND: 0.53, detail.QUANTILE: 0.35},
            "kind chat (in doubt: 53%), harder than 35.0% of the classifier's reference prompts",
        ),
        (
            names.ROUTE,
            {detail.KIND: "chat", detail.QUANTILE: 0.35, detail.QUANTILE_OWN: 0.42},
            "kind chat, harder than 42.0% of this surface's own requests (35.0% of the reference prompts)",
        ),
        (names.ROUTE, {detail.CONVERSATION: 0.9}, "in its conversation 0.900"),
        (names.ROUTE, {names.LAST_TIER: "hosted"}, "the answer before came from hosted"),
        (names.ROUTE, {detail.FORECAST_TTFT: 120.0}, "first token forecast after 120 ms"),
        (names.ATTEMPT, {names.OUTCOME: names.LOST}, "lost the race"),
        (names.ATTEMPT, {names.HEDGE: True}, "a hedge"),
        (names.ATTEMPT, {names.SPECULATIVE: True}, "speculative"),
        (names.ATTEMPT, {names.CONTINUES: 1}, "continues the text of attempt 1"),
        (names.ATTEMPT, {names.TTFT: 40.0}, "first token after 40.0 ms"),
        (names.ATTEMPT, {names.QUEUE: 12.5}, "waited 12.5 ms in the queue"),
        (names.HOP_SHED, {names.REASON: "the queue is full"}, "rejected: the queue is full"),
    ],
)
def test_what_the_live_cascade_did_is_said(hop: str, attributes: dict[str, Any], said: str) -> None:
    """Races, queues, hand-overs, the holdout and shedding are told in words, not as attribute names."""
    assert said in "; ".join(reasons_of({"name": hop, "attributes": attributes, "error": None}))


def test_a_blended_score_is_shown_beside_the_cross_encoders_own() -> None:
    """Both stand with the threshold that applies to the first."""
    found = {names.CACHE_OUTCOME: "hit", names.CACHE_SCORE: 0.842, names.READ_SCORE: 0.931, names.THRESHOLD: 0.8}
    said = "; ".join(reasons_of({"name": names.CACHE_SEMANTIC, "attributes": found, "error": None}))
    assert "score 0.842 >= threshold 0.800; cross-encoder alone 0.931" in said


def test_a_place_at_once_is_not_mentioned() -> None:
    """An attempt that did not wait has no phrase about a queue."""
    hop = {"name": names.ATTEMPT, "attributes": {names.QUEUE: 0.0}, "error": None}
    assert "queue" not in "; ".join(reasons_of(hop))


def test_a_shared_answer_names_whose_it_was() -> None:
    """And, where it did not come to its end, why."""
    followed = {names.FOLLOWED: "req-1", names.CACHE_OUTCOME: "done"}
    assert reasons_of({"name": names.CACHE_FOLLOW, "attributes": followed, "error": None}) == [
        "shared the answer of request req-1"
    ]
    lost = {"name": names.CACHE_FOLLOW, "attributes": {names.CACHE_OUTCOME: "lost"}, "error": None}
    assert reasons_of(lost) == ["the worker that produced the answer is gone"]
