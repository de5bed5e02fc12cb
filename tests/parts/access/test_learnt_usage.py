"""What requests use at a tier is learnt from those that have ended, and reserved with its spread."""

from __future__ import annotations

import random

import pytest

from gateway.parts.access.expected_costs import AskedOfTier, LearntUsage, UsedByRequest


def after(*answers: int, cached: int = 0) -> LearntUsage:
    """What is learnt after answers of so many tokens, to prompts of 1,000."""
    learnt = LearntUsage(1.0)
    for tokens in answers:
        learnt.learn(UsedByRequest(1, 1000, tokens, cached, 0), 1000, sees_prompt=True)
    return learnt


def reserved_out(learnt: LearntUsage, most: int = 64_000) -> int:
    """The completion tokens that are reserved for a request that allows so many."""
    return learnt.reserved(AskedOfTier(1000, True, most, 1, "")).tokens_out


@pytest.mark.parametrize("known", [0, 1, 19])
def test_before_20_answers_are_known_what_the_request_allows_is_reserved_up_to_2000_tokens(known: int) -> None:
    """Those that have ended are the shortest of those that run: they say nothing of the others."""
    learnt = after(*[100] * known)
    assert [reserved_out(learnt, most) for most in (100, 1999, 64_000)] == [100, 1999, 2000]


def test_a_few_answers_bound_what_a_call_owes_that_is_cut_short_by_the_longest_of_them() -> None:
    """One of 100 tokens leaves room for one of 500; more of them leave less."""
    owed = [after(*[100] * known).owed_out(64_000) for known in (1, 2, 4, 19)]
    assert owed == pytest.approx([500, 300, 200, 121], abs=1)
    assert after().owed_out(64_000) == after(90, 900).owed_out(64_000) == 2000


@pytest.mark.parametrize("known", [0, 1, 20])
def test_nobody_owes_more_than_the_request_allows(known: int) -> None:
    assert after(*[100] * known).owed_out(50) == 50


def test_from_20_answers_on_nine_of_ten_are_within_what_is_reserved() -> None:
    chance = random.Random(1)
    answers = [chance.randint(60, 2000) for _ in range(400)]
    reserved = reserved_out(after(*answers))
    assert 0.8 < sum(one <= reserved for one in answers) / 400 < 0.99


def test_many_short_answers_and_few_long_ones_are_reserved_above_their_mean() -> None:
    """The 90th percentile alone would be 60 tokens, and a hundred of them would come to four times as much."""
    learnt = after(*([60] * 19 + [2000]) * 10)
    assert reserved_out(learnt) > learnt.tokens_out > 100


def test_what_is_reserved_follows_answers_that_grow() -> None:
    learnt = after(*[100] * 100, *[1500] * 60)
    assert reserved_out(learnt) > 1500


def test_a_prompt_that_is_to_be_kept_is_reserved_as_written_until_it_is_known() -> None:
    """For an hour or for five minutes, as its request asks; the worst case writes all of it, whatever was seen."""
    for kept_for, for_an_hour in (("1h", 1000), ("5m", None)):
        asked = AskedOfTier(1000, True, 100, 1, "", kept_for)
        used = after().reserved(asked)
        assert (used.tokens_cache_write, used.tokens_hour_write) == (1000, for_an_hour)
        learnt = after(*[100] * 30, cached=900)
        assert learnt.reserved(asked).tokens_cache_write == 0
        most = learnt.worst(asked)
        assert (most.tokens_cached, most.tokens_cache_write, most.tokens_hour_write) == (0, 1000, for_an_hour)
    assert after().reserved(AskedOfTier(1000, True, 100, 1, "")).tokens_cache_write == 0


def test_a_prompt_cache_that_is_hit_now_and_then_is_not_relied_on() -> None:
    """The expected cost has the mean of what was read from it, the reserved one less than that."""
    learnt = LearntUsage(1.0)
    for turn in range(40):
        learnt.learn(UsedByRequest(1, 1000, 10, 900 if turn % 2 else 0, 0), 1000, sees_prompt=True)
    asked = AskedOfTier(1000, True, 100, 1, "")
    assert 300 < learnt.expected(asked).tokens_cached < 600
    assert learnt.reserved(asked).tokens_cached == 0
