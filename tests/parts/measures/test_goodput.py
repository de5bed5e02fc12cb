"""Goodput is one thing: what metrics count, the ledger says, a canary's guard compares and a replay foretells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.parts.lab.replay.figures import Results, good
from gateway.parts.measures.endings import answered, ending_of, no_answer, was_good
from gateway.parts.rollout.policy import Rollout
from gateway.parts.rollout.trial import Trial
from gateway.telemetry.ledger import PLAYGROUND
from policies.model import Slo

WORDS = ("direct", "degraded")


def ledger(path: str = "direct", **slo: bool) -> dict[str, Any]:
    return {
        "arm": "candidate", "unit": "u", "tenant": "t", "request_id": "r", "surface": "chat", "status": 200,
        "error": None, "path": path, "ttft_ms": None, "total_ms": 1.0, "cost_usd": 0.0, "slo": slo, "calls": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "slo", "expected"),
    [
        ("direct", {"deadline": True, "total_p99": True}, True),
        ("direct", {"deadline": True, "total_p95": False}, True),  # which must hold for many, not for each
        ("direct", {"deadline": False}, False),
        ("degraded", {"deadline": True}, False),
        ("direct", {}, None),
    ],
)
def test_ledger_guard_and_metrics_agree(path: str, slo: dict[str, bool], expected: bool | None) -> None:
    row = ledger(path, **slo)
    assert was_good(row) is expected
    if expected is not None:
        ending = answered([name for name, met in slo.items() if not met], path, "")
        assert ((ending == "good"), ending) == (expected, ending_of(row))
    trial = Trial(Rollout.model_validate({"steps": ["25%"], "guard": {"goodput": "-5%"}}), 0.25, 0.0, settle_s=0.0)
    trial.add(row, 1.0)
    [guard] = trial.verdict(2.0).guards
    assert (guard.n_candidate, guard.candidate) == ((0, None) if expected is None else (1, float(expected)))


@pytest.mark.parametrize(
    ("status", "error", "refused", "ending"),
    [
        (502, "upstream_http_error", False, "failed"),
        (504, "deadline_exceeded", False, "failed"),
        (503, "server_is_overloaded", False, "failed"),
        (429, "rate_limit_exceeded", False, "failed"),  # every provider asks for a pause
        (200, "upstream_truncated", False, "failed"),
        (429, "rate_limit_exceeded", True, "refused"),
        (429, "insufficient_quota", True, "refused"),
        (504, "not_cached", True, "refused"),
        (400, "invalid_json", False, "refused"),
        (403, "model_not_allowed", False, "refused"),
        (499, "client_gone", False, "left"),
        (200, "client_cancel", False, "left"),
        (200, None, False, ""),
    ],
)
def test_what_failed_what_was_refused_and_what_was_late_are_three_words(
    status: int, error: str | None, refused: bool, ending: str
) -> None:
    """A refusal and a client that left are in no goodput, whatever was noted of objectives; a failure is not late."""
    assert no_answer(status, error, refused=refused) == ending
    row = {**ledger(deadline=not ending), "status": status, "error": error, "refused": refused}
    assert ending_of(row) == (ending or "good")
    assert was_good(row) is {"refused": None, "left": None, "failed": False, "": True}[ending]
    assert ending_of({**row, "arm": PLAYGROUND}) == ""
    assert ending_of({**row, "surface": "chat/embeddings"}) == "", "no limits apply to what is no chat"


def test_records_of_before_are_refused_where_nothing_was_called() -> None:
    """They say of a 429 neither who refused it nor that it missed nothing."""
    row = {**ledger(deadline=False), "status": 429, "error": "rate_limit_exceeded"}
    assert ending_of({**row, "attempts": 0}) == "refused" and ending_of({**row, "attempts": 2}) == "failed"


def test_an_answer_whose_structure_is_wrong_is_not_good() -> None:
    calls = [{"fault": "schema", "wasted": True}, {"fault": None, "wasted": False}]
    assert was_good({**ledger(deadline=True), "calls": calls}) is True
    assert was_good({**ledger(deadline=True), "calls": [calls[0], {"fault": "schema", "wasted": False}]}) is False


def test_a_replay_holds_streams_to_their_pace_and_gaps() -> None:
    """By the p99 objectives; where a pace or a gap is not known, it is not missed."""
    n = 4
    numbers, no, zeros = np.zeros(n, int), np.zeros(n, bool), np.zeros(n)
    pace, gap = np.array([10.0, 90.0, 10.0, np.nan]), np.array([200.0, 200.0, 900.0, np.nan])
    results = Results(numbers, numbers, zeros, zeros, zeros, zeros, np.full(n, 200), no, ~no, pace, gap)
    slo = Slo.model_validate({"tpot": {"p99": "50ms"}, "gap": {"p99": "500ms"}, "deadline": "1s"})
    assert good(results, WORDS, slo)[1].tolist() == [True, False, False, True]


def test_a_replay_counts_no_degraded_answer_either() -> None:
    n = 2
    numbers, no, zeros = np.arange(n), np.zeros(n, bool), np.zeros(n)
    results = Results(numbers, numbers, zeros, zeros, zeros, zeros + 5, np.full(n, 200), no, no, zeros, zeros)
    counted, met = good(results, WORDS, Slo.model_validate({"deadline": "1s"}))
    assert counted.tolist() == [True, True] and met.tolist() == [True, False]
