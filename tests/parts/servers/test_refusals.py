"""What real servers refuse, in their words, and what is remembered of words that nobody knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.backends.base import BadStatus
from gateway.parts.servers.refusals import CALLERS_S, KEPT_S, HeardRefusals, RefusedRequests
from tests.support.refusals import HELD_OUT, LATER, OPEN, judged_all, rows, shares

ASKED: dict[str, object] = {"messages": []}


@pytest.mark.parametrize("path", [OPEN, HELD_OUT, LATER], ids=["open", "held-out", "later"])
async def test_refusals_of_real_servers_end_right(path: Path) -> None:
    """Of those with a healthy tier behind, 92 of 100 and more are answered, or blamed on whose fault they are."""
    verdicts = await judged_all(path)
    right, blamed = shares(verdicts)
    assert right >= 0.92, [one for one in verdicts if not one.right]
    assert blamed >= 0.8


def test_there_are_many_and_a_third_is_held_out() -> None:
    """Each row names its server and where its words are from."""
    known, held_out = rows(OPEN), rows(HELD_OUT)
    assert len(known) + len(held_out) >= 300
    assert len(held_out) >= (len(known) + len(held_out)) / 4
    assert all(row["server"] and row["source"] for row in known + held_out)


def refusal(message: str, status: int = 400) -> BadStatus:
    """An error of a backend with these words."""
    return BadStatus(status, json.dumps({"error": {"message": message}}).encode())


def test_what_every_tier_refuses_is_the_callers_for_a_while() -> None:
    """For this tenant, these fields and this status alone, and until it is asked again."""
    now = [0.0]
    refusals = HeardRefusals(lambda: now[0])
    first = refusals.heard(refusal("no flux 1"), "a", ASKED)
    assert not first.callers
    first.decide("callers")
    assert refusals.heard(refusal("no flux 27"), "a", ASKED).callers
    assert not refusals.heard(refusal("no flux 27"), "b", ASKED).callers
    assert not refusals.heard(refusal("no flux 27"), "a", {**ASKED, "tools": []}).callers
    assert not refusals.heard(refusal("no flux 27", 422), "a", ASKED).callers
    now[0] = CALLERS_S
    assert not refusals.heard(refusal("no flux 27"), "a", ASKED).callers


def test_that_another_tier_answered_is_never_undone() -> None:
    """Whoever makes every tier refuse in general words keeps no other request of theirs from the next tier."""
    refusals = HeardRefusals(lambda: 0.0)
    refusals.heard(refusal("Invalid argument."), "a", ASKED).decide("cannot")
    again = refusals.heard(refusal("Invalid argument."), "a", ASKED)
    again.decide("callers")
    assert not refusals.heard(refusal("Invalid argument."), "a", ASKED).callers


@pytest.mark.parametrize("need", ["tools", "json", "vision"])
def test_a_kind_that_was_refused_is_remembered_for_a_while(need: str) -> None:
    """Of this tenant, with these fields, needs and forms, and as many tools; what needs nothing is of no kind."""
    now = [0.0]
    refused, asked = RefusedRequests(lambda: now[0]), {**ASKED, "response_format": {"type": "json_object"}}
    refused.note("a", ASKED, set(), 0)
    assert not refused.kinds
    refused.note("a", asked, {need}, 2)
    assert refused.kinds and refused.has("a", asked, {need}, 2) and refused.has("a", asked, {need}, 3)
    assert not refused.has("a", asked, {need}, 1) and not refused.has("b", asked, {need}, 2)
    assert not refused.has("a", asked, {need, "n"}, 2) and not refused.has("a", {**asked, "seed": 1}, {need}, 2)
    assert not refused.has("a", {**asked, "response_format": {"type": "json_schema"}}, {need}, 2)
    now[0] = CALLERS_S
    assert not refused.has("a", asked, {need}, 2) and not refused.kinds
    for number in range(200):
        refused.note("a", {f"field{number}": 1}, {need}, 0)
    kept = [refused.has("a", {f"field{number}": 1}, {need}, 0) for number in range(200)]
    assert sum(kept) == 64 and kept[-1]


def test_what_is_told_is_bounded_and_quotes_nothing() -> None:
    """Texts in quotes, numbers and what follows a brace are left out, and old refusals go."""
    now = [0.0]
    refusals = HeardRefusals(lambda: now[0])
    assert HeardRefusals.words(refusal('Bad \'my secret\' at 17: {"content": "my prompt"}'), {}) == "Bad * at *: *"
    assert len(HeardRefusals.words(refusal("x " * 500), {})) <= 160
    for number in range(200):
        refusals.heard(refusal(f"word{'abcdefghij'[number % 10] * (number // 10 + 1)}"), "a", {})
    assert len(refusals.shown()) <= 64
    now[0] = KEPT_S + 1
    assert refusals.shown() == []


def test_words_of_the_request_are_not_told() -> None:
    """What the client wrote is left out of the words though it is in no quotes; what says what is refused is kept."""
    asked = {
        "messages": [{"role": "user", "content": "Is Mr. Schrödinger's model PLANTED-seven a good one?"}],
        "seed": 1,
    }
    message = "The model refused seed: Schrödinger, planted-seven and the fluxed input are not allowed"
    assert HeardRefusals.words(refusal(message), asked) == (
        "The model refused seed: *, * and the fluxed input are not allowed"
    )
