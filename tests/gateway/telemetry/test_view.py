from __future__ import annotations

import io
from functools import partial
from typing import Any

import orjson
import pytest
from rich.console import Console

from gateway.telemetry import names
from gateway.telemetry.feedback import Feedback
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.reasons import explain
from gateway.telemetry.record import ledger_blob
from gateway.telemetry.trace import Trace
from gateway.telemetry.view import draw, draw_list
from tests.gateway.telemetry.requests_made import escalated, failed


def _record(request: tuple[Trace, Ledger]) -> dict[str, Any]:
    record: dict[str, Any] = orjson.loads(ledger_blob(*request))
    return record


def _timed(record: dict[str, Any], *spans: tuple[int, int]) -> dict[str, Any]:
    for hop, (start_us, duration_us) in zip(record["hops"], spans, strict=False):
        hop["start_us"], hop["duration_us"] = start_us, duration_us
    return record


def _piped(records: list[dict[str, Any]], how: Any, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    how(records if how is draw_list else records[0], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_waterfall_fits_80_columns_and_a_pipe() -> None:
    """Drawn into a pipe it is plain ASCII, no line is longer than 80, and no escape is in it."""
    lines = _piped([_record(escalated())], draw)
    assert max(map(len, lines)) <= 80
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_bars_stand_where_their_hops_were_in_time() -> None:
    """A hop's bar begins and ends in proportion to the request, and even the shortest shows."""
    record = _timed(_record(failed()), (0, 1000), (500, 500))
    record["hops"].append({**record["hops"][1], "name": "route", "start_us": 1000, "duration_us": 0})
    bars = [word for line in _piped([record], draw) for word in line.split() if "#" in word]
    whole, half, instant = (bar.strip(".") for bar in bars)
    assert set(whole) == {"#"}
    assert len(half) * 2 == len(whole)
    assert len(instant) == 1


def test_every_decision_gives_its_reason() -> None:
    """Neighbour against minimum, score and rule, confidence against threshold, budget and outcome are all in words."""
    text = " ".join(" ".join(_piped([_record(escalated())], draw, width=140)).split())
    for phrase in (
        "request req-1 chat@3f2a91c 200 path escalated",
        "TTFT 120 ms overhead 0.70 ms cost $0.0003 wasted $0.0001",
        "miss; nearest neighbour e41 at similarity 0.812 < minimum 0.920",
        "tiers local then hosted; because p_adequate >= 0.7; kind chat, harder than 62.0% of the classifier's "
        "reference prompts; "
        "difficulty 0.310; right by its first tier with a chance of 0.820; in domain",
        "local/smollm2; low_confidence; confidence 0.410 < threshold 0.620 over 24 tokens, calibrated by head "
        "0123456789ab; upstream HTTP 200",
        "hosted/openai; accepted; confidence 0.910 >= threshold 0.620",
        "7.10 s left at the start; timeout 7.00 s",
    ):
        assert phrase in text


def test_money_and_time_are_told() -> None:
    """The pace, the queue, what was wasted, what the strongest tier would have cost, races, the draw, and feedback."""
    figures: dict[str, Any] = {"tpot_ms": 20.0, "queue_ms": 12.5, "wasted_tokens": 124, "counterfactual_usd": 0.0004}
    record = _record(escalated(hedged=True, holdout=True, **figures))
    said = Feedback("req-1", "acme", "chat", 0.5, "wrong year\x1b[2J", 1.0)
    text = " ".join(_piped([record], partial(draw, feedback=said), width=140))
    for phrase in (
        "20.0 ms/token  queue 12.5 ms",
        "wasted $0.0001 and 124 tokens  the strongest tier alone $0.0004  hedged  held out",
        "feedback 0.5: wrong year [2J",
    ):
        assert phrase in text


def said_of(name: str, attributes: dict[str, Any]) -> str:
    """What is said of a hop."""
    return "; ".join(explain({"name": name, "attributes": attributes, "error": None}))


def test_prompt_caches_and_shorter_input_are_told() -> None:
    """What was added, read and written, what that saved or cost, and what of the input was left out."""
    record = _record(escalated(prompt_cache_usd=-0.0002))
    text = " ".join(_piped([record], draw, width=140))
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


def test_a_record_of_an_older_version_is_drawn() -> None:
    """What its ledger did not have yet is left out."""
    record = _record(escalated())
    kept = [*list(record["ledger"])[: list(record["ledger"]).index("error") + 1]]
    record["ledger"] = {name: record["ledger"][name] for name in kept}
    lines = _piped([record], draw)
    assert "cost $0.0003  wasted $0.0001" in lines[2]
    assert not any("strongest tier" in line for line in lines)


def test_an_error_is_said_where_it_happened() -> None:
    """A failed attempt names its error, and so does the header."""
    lines = _piped([_record(failed())], draw)
    assert lines[0].endswith("error upstream_unreachable")
    assert any("local/smollm2; retryable; error upstream_unreachable" in line for line in lines)


def test_what_a_client_wrote_cannot_drive_the_terminal() -> None:
    """Control characters and line breaks in a model's name become spaces, and rich's markup in it is only text."""
    lines = _piped([_record(escalated(requested_model="\x1b[2Jx[red]y\r\nz"))], draw)
    assert "asked for  [2Jx[red]y  z" in "\n".join(lines)


def test_a_table_has_one_row_per_request_in_a_pipe() -> None:
    """Into a pipe each request is one line with its id in full, however narrow the terminal would be."""
    lines = _piped([_record(escalated("a" * 64)), _record(failed())], draw_list, width=40)
    assert len(lines) == 3
    assert lines[1].endswith("a" * 64)
    assert lines[2].split()[1:] == ["chat", "-", "-", "502", "-", "5.0", "ms", "$0", "req-2"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_fits_a_terminal(width: int) -> None:
    """On a terminal too narrow for the id, it goes on a line of its own."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    draw_list([_record(escalated("b" * 36))], console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == (2 if width == 200 else 3)
    assert "b" * 36 in lines[-1]


def test_an_unknown_hop_shows_what_it_has() -> None:
    """A hop this version has no words for is shown with its attributes as they are."""
    assert explain({"name": "queue", "attributes": {"tierline.queue": 3}, "error": None}) == ["tierline.queue 3"]


def test_an_abstention_is_said() -> None:
    """A classifier out of its domain is said to abstain."""
    hop = {"name": names.ROUTE, "attributes": {names.IN_DOMAIN: False}, "error": None}
    assert explain(hop) == ["out of domain: the classifier abstains"]


@pytest.mark.parametrize(
    ("hop", "attributes", "said"),
    [
        (names.ROUTE, {names.HOLDOUT: True}, "held out"),
        (
            names.ROUTE,
            {names.KIND: "chat", names.QUANTILE: 0.35},
            "kind chat, harder than 35.0% of the classifier's reference prompts",
        ),
        (
            names.ROUTE,
            {names.KIND: "chat", names.P_KIND: 0.53, names.QUANTILE: 0.35},
            "kind chat (in doubt: 53%), harder than 35.0% of the classifier's reference prompts",
        ),
        (
            names.ROUTE,
            {names.KIND: "chat", names.QUANTILE: 0.35, names.QUANTILE_OWN: 0.42},
            "kind chat, harder than 42.0% of this surface's own requests (35.0% of the reference prompts)",
        ),
        (names.ROUTE, {names.CONVERSATION: 0.9}, "in its conversation 0.900"),
        (names.ROUTE, {names.LAST_TIER: "hosted"}, "the answer before came from hosted"),
        (names.ROUTE, {names.FORECAST_TTFT: 120.0}, "first token forecast after 120 ms"),
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
    assert said in "; ".join(explain({"name": hop, "attributes": attributes, "error": None}))


def test_a_blended_score_is_shown_beside_the_cross_encoders_own() -> None:
    """Both stand with the threshold that applies to the first."""
    found = {names.CACHE_OUTCOME: "hit", names.CACHE_SCORE: 0.842, names.READ_SCORE: 0.931, names.THRESHOLD: 0.8}
    said = "; ".join(explain({"name": names.CACHE_SEMANTIC, "attributes": found, "error": None}))
    assert "score 0.842 >= threshold 0.800; cross-encoder alone 0.931" in said


def test_a_place_at_once_is_not_mentioned() -> None:
    """An attempt that did not wait has no phrase about a queue."""
    hop = {"name": names.ATTEMPT, "attributes": {names.QUEUE: 0.0}, "error": None}
    assert "queue" not in "; ".join(explain(hop))


def test_a_shared_answer_names_whose_it_was() -> None:
    """And, where it did not come to its end, why."""
    followed = {names.FOLLOWED: "req-1", names.CACHE_OUTCOME: "done"}
    assert explain({"name": names.CACHE_FOLLOW, "attributes": followed, "error": None}) == [
        "shared the answer of request req-1"
    ]
    lost = {"name": names.CACHE_FOLLOW, "attributes": {names.CACHE_OUTCOME: "lost"}, "error": None}
    assert explain(lost) == ["the worker that produced the answer is gone"]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_list_stays_within_eighty_columns(goes_on: bool) -> None:
    """In a narrow terminal long names are cut, the id stands below, and no line is longer than the terminal is wide."""
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=True, color_system=None)
    records = [
        {"started": 1.0, "ledger": {
            "surface": "support-of-the-north", "path": "cache-semantic", "tier": "hosted-large", "status": 200,
            "ttft_ms": 1234.5, "total_ms": 99_000.0, "cost_usd": 0.0012345, "request_id": "r" * 36,
        }},
    ]  # fmt: skip
    draw_list(records, console, goes_on=goes_on)
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "support" in lines[-2] and "~ " in lines[-2] and "$0.00123" in lines[-2]
    assert lines[-1].strip() == "r" * 36
