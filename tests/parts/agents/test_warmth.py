"""What a conversation's next turn costs at each tier, as far as their providers hold its prompt."""

from __future__ import annotations

import math

import pytest

from gateway.parts.agents.conversations import (
    Held,
    KnownConversation,
    ReadingSpeed,
    TierCost,
    TierTerms,
    costs_of,
    kept_of,
)

LADDER = ("small", "middle", "large")


def tier(
    rate: float | None, lifetime_s: float | None = 300.0, cached_rate: float | None = None, speed: float = 0.0
) -> TierTerms:
    """A tier at so many US dollars per token; a cached one costs a tenth."""

    def usd(tokens_in: int, cached: int, tokens_out: int) -> float | None:
        if rate is None:
            return None
        read = rate / 10 if cached_rate is None else cached_rate
        return (tokens_in - cached) * rate + cached * read + tokens_out * 5 * rate

    return TierTerms(lifetime_s, usd, lambda cold: cold * speed)


def talk(**held: Held) -> KnownConversation:
    """Ten thousand tokens after two turns in a minute, one of which asked for the large tier."""
    return KnownConversation(
        "large", 2, 1000.0, tokens_in=10_000, estimate=8000, tokens_out=100.0, asked={"large": 1, "small": 1},
        held=held,
    )  # fmt: skip


def costs(
    conversation: KnownConversation, *terms: TierTerms, estimate: int = 8500, now_s: float = 1060.0
) -> dict[str, TierCost]:
    return costs_of(conversation, dict(zip(LADDER, terms, strict=True)), LADDER, estimate, now_s)


WARM = Held(10_000, 1050.0, 300.0)


def test_a_tier_that_never_read_it_reads_all_of_it() -> None:
    """This turn's prompt cold at the small one, the new part at the warm one; the turns after it cached at both."""
    small, middle, large = tier(1e-6), tier(2e-6), tier(4e-6)
    found = costs(talk(large=WARM), small, middle, large)
    assert [found[name].cold for name in LADDER] == [10_500, 10_500, 500]
    like = small.usd(10_500, 10_000, 100) or 0.0
    # Of three turns one asked for the large tier: three turns pass until one does again.
    assert found["small"].usd == pytest.approx((small.usd(10_500, 0, 100) or 0.0) + 2 * like)
    assert found["large"].usd == pytest.approx(3 * (large.usd(10_500, 10_000, 100) or 0.0))


def test_coming_back_costs_what_has_lapsed_by_then() -> None:
    """Only if the next hard turn is expected after the large tier's cache has lapsed, and by the chance of one."""
    terms = tier(1e-6), tier(2e-6), tier(4e-6)
    soon, late = costs(talk(large=WARM), *terms), costs(talk(large=Held(10_000, 1050.0, 90.0)), *terms)
    more = (late["small"].usd or 0.0) - (soon["small"].usd or 0.0)
    assert more == pytest.approx(1 / 3 * 10_500 * (4e-6 - 4e-7))
    assert late["large"].usd == soon["large"].usd


def test_what_is_not_known_has_no_cost() -> None:
    """A price, a lifetime, or what a call left behind: nothing is made up. What is free is free."""
    known = tier(1e-6)
    assert costs(talk(large=WARM), tier(None), known, known)["small"] == TierCost(10_500, None)
    assert costs(talk(large=WARM), tier(1e-6, None), known, known)["small"] == TierCost(10_500, None)
    assert costs(talk(large=WARM, small=Held(None, 1050.0, 300.0)), *[known] * 3)["small"] == TierCost(None, None)
    assert costs(talk(large=WARM, small=Held(5000, 1050.0, None)), *[known] * 3)["small"] == TierCost(None, None)
    assert costs(talk(large=WARM), tier(0.0, None), known, known)["small"].usd == 0.0
    plain = tier(1e-6, None, cached_rate=1e-6)
    assert costs(talk(large=WARM, small=Held(None, 1050.0, None)), plain, known, known)["small"].usd is not None


def test_a_conversation_that_is_warm_nowhere_above_costs_nothing_to_move() -> None:
    """Nothing held, lapsed, unknown, or held by the weakest alone; and nothing is weighed above the warmest."""
    terms = [tier(1e-6)] * 3
    for held in ({}, {"small": WARM}, {"large": Held(10_000, 700.0, 300.0)}, {"large": Held(None, 1050.0, 300.0)}):
        assert costs(talk(**held), *terms) == {}
    assert costs(KnownConversation(held={"large": WARM}), *terms) == {}
    assert list(costs(talk(middle=WARM), *terms)) == ["small", "middle"]


def test_where_turns_are_rarer_than_the_lifetime_nothing_stays_warm() -> None:
    """Then each turn is read cold wherever it goes, so staying saves this one turn's reading alone."""
    terms = tier(1e-6), tier(2e-6), tier(4e-6)
    found = costs(talk(large=Held(10_000, 1990.0, 300.0)), *terms, now_s=2000.0)
    assert found["small"].usd == pytest.approx(3 * (terms[0].usd(10_500, 0, 100) or 0.0) + 1 / 3 * 10_500 * 3.6e-6)


def test_reading_cold_takes_time_below_the_warmest() -> None:
    """Seconds that the weaker tiers take longer; the warm tier's own part is in its forecast."""
    found = costs(talk(large=WARM), tier(1e-6, speed=1e-4), tier(1e-6), tier(1e-6, speed=1e-4))
    assert [found[name].cold_s for name in LADDER] == [pytest.approx(1.05), 0.0, 0.0]


@pytest.mark.parametrize(
    ("tokens", "cached", "written", "kept"),
    [(5000, 0, None, 4992), (1023, 0, None, 0), (5000, 4000, 900, 4900), (5000, 0, 0, 0), (5000, 5000, None, 5000)],
)
def test_what_a_call_leaves_behind(tokens: int, cached: int, written: int | None, kept: int) -> None:
    """What the provider says it read and wrote; of one that keeps every prompt of 1024 tokens, its whole blocks."""
    assert kept_of(tokens, cached, written) == kept


def test_held_tokens_end_with_their_lifetime() -> None:
    """Counted from the last use; not known without a lifetime, and nothing stays nothing."""
    assert (Held(9, 100.0, 5.0).at(104.9), Held(9, 100.0, 5.0).at(105.0)) == (9, 0)
    assert (Held(9, 100.0, None).at(101.0), Held(0, 100.0, None).at(101.0), Held(None, 1.0, 5.0).at(2.0)) == (
        None,
        0,
        None,
    )


def test_a_reading_speed_is_that_of_the_calls() -> None:
    """Seconds per cold token beyond the usual call's; nothing of a few calls, or of calls of one length."""
    speed, same = ReadingSpeed(), ReadingSpeed()
    for number in range(40):
        assert number > 11 or speed.more_s(10_000) == 0.0
        cold = 1000 * (number % 5)
        speed.observe(cold, 0.3 + 2e-4 * cold)
        same.observe(1000, 0.3)
    assert speed.more_s(10_000) == pytest.approx(2e-4 * 8000, rel=0.02)
    assert speed.more_s(0) == 0.0 == same.more_s(10_000) and math.isfinite(same.more_s(1))
