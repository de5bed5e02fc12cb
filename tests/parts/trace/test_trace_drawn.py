from __future__ import annotations

import io
from functools import partial
from typing import Any

import orjson
import pytest
from rich.console import Console

from gateway.parts.measures.feedback import Feedback
from gateway.parts.trace.commands.trace import draw
from gateway.parts.trace.request_list import draw_list
from gateway.telemetry.ledger import Ledger, ledger_blob
from gateway.telemetry.trace import Trace
from tests.gateway.telemetry.requests_made import escalated, failed


def record_of_request(request: tuple[Trace, Ledger]) -> dict[str, Any]:
    record: dict[str, Any] = orjson.loads(ledger_blob(*request))
    return record


def _timed(record: dict[str, Any], *spans: tuple[int, int]) -> dict[str, Any]:
    for hop, (start_us, duration_us) in zip(record["hops"], spans, strict=False):
        hop["start_us"], hop["duration_us"] = start_us, duration_us
    return record


def piped(records: list[dict[str, Any]], how: Any, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    how(records if how is draw_list else records[0], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_waterfall_fits_80_columns_and_a_pipe() -> None:
    """Drawn into a pipe it is plain ASCII, no line is longer than 80, and no escape is in it."""
    lines = piped([record_of_request(escalated())], draw)
    assert max(map(len, lines)) <= 80
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_bars_stand_where_their_hops_were_in_time() -> None:
    """A hop's bar begins and ends in proportion to the request, and even the shortest shows."""
    record = _timed(record_of_request(failed()), (0, 1000), (500, 500))
    record["hops"].append({**record["hops"][1], "name": "route", "start_us": 1000, "duration_us": 0})
    bars = [word for line in piped([record], draw) for word in line.split() if "#" in word]
    whole, half, instant = (bar.strip(".") for bar in bars)
    assert set(whole) == {"#"}
    assert len(half) * 2 == len(whole)
    assert len(instant) == 1


def test_every_decision_gives_its_reason() -> None:
    """Neighbour against minimum, score and rule, confidence against threshold, budget and outcome are all in words."""
    text = " ".join(" ".join(piped([record_of_request(escalated())], draw, width=140)).split())
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
    record = record_of_request(escalated(hedged=True, holdout=True, **figures))
    said = Feedback("req-1", "acme", "chat", 0.5, "wrong year\x1b[2J", 1.0)
    text = " ".join(piped([record], partial(draw, feedback=said.line), width=140))
    for phrase in (
        "20.0 ms/token  queue 12.5 ms",
        "wasted $0.0001 and 124 tokens  the strongest tier alone $0.0004  hedged  held out",
        "feedback 0.5: wrong year [2J",
    ):
        assert phrase in text


def test_a_record_of_an_older_version_is_drawn() -> None:
    """What its ledger did not have yet is left out."""
    record = record_of_request(escalated())
    kept = [*list(record["ledger"])[: list(record["ledger"]).index("error") + 1]]
    record["ledger"] = {name: record["ledger"][name] for name in kept}
    lines = piped([record], draw)
    assert "cost $0.0003  wasted $0.0001" in lines[2]
    assert not any("strongest tier" in line for line in lines)


def test_an_error_is_said_where_it_happened() -> None:
    """A failed attempt names its error, and so does the header."""
    lines = piped([record_of_request(failed())], draw)
    assert lines[0].endswith("error upstream_unreachable")
    assert any("local/smollm2; retryable; error upstream_unreachable" in line for line in lines)


def test_what_a_client_wrote_cannot_drive_the_terminal() -> None:
    """Control characters and line breaks in a model's name become spaces, and rich's markup in it is only text."""
    lines = piped([record_of_request(escalated(requested_model="\x1b[2Jx[red]y\r\nz"))], draw)
    assert "asked for  [2Jx[red]y  z" in "\n".join(lines)


def test_a_table_has_one_row_per_request_in_a_pipe() -> None:
    """Into a pipe each request is one line with its id in full, however narrow the terminal would be."""
    lines = piped([record_of_request(escalated("a" * 64)), record_of_request(failed())], draw_list, width=40)
    assert len(lines) == 3
    assert lines[1].endswith("a" * 64)
    assert lines[2].split()[1:] == ["chat", "-", "-", "502", "-", "5.0", "ms", "$0", "req-2"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_fits_a_terminal(width: int) -> None:
    """On a terminal too narrow for the id, it goes on a line of its own."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    draw_list([record_of_request(escalated("b" * 36))], console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == (2 if width == 200 else 3)
    assert "b" * 36 in lines[-1]


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
