"""Choosing among a tier's backends: power of two choices, by weight, sticky by conversation."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from routing.load.selection import Candidate, PowerOfTwo, Selection, Sticky, Weighted


def candidate(
    index: int, *, load: float = 0.0, ttft_s: float | None = 0.2, weight: float = 1.0, slope_s: float | None = 0.0001
) -> Candidate:
    return Candidate(index, Random(index).getrandbits(63), weight, load, ttft_s, slope_s)


def share(selection: Selection, candidates: list[Candidate], affinity: int = 0, draws: int = 3000) -> list[float]:
    chosen = Counter(selection.choose(candidates, affinity, 100) for _ in range(draws))
    return [chosen[position] / draws for position in range(len(candidates))]


ALL = pytest.mark.parametrize("kind", [PowerOfTwo, Weighted, Sticky])


@ALL
def test_the_only_candidate_is_chosen(kind: type[PowerOfTwo] | type[Weighted] | type[Sticky]) -> None:
    """Loaded, unknown or slow, there is no other."""
    assert kind(Random(1)).choose([candidate(7, load=9, ttft_s=None)], 5, 100) == 0


@ALL
@pytest.mark.parametrize("seed", range(10))
def test_the_choice_is_always_one_of_the_candidates(
    kind: type[PowerOfTwo] | type[Weighted] | type[Sticky], seed: int
) -> None:
    """Whatever is known of them, and as they come and go."""
    chance = Random(seed)
    selection = kind(chance)
    for _ in range(500):
        candidates = [
            candidate(
                index,
                load=chance.choice((0, chance.uniform(0, 5))),
                ttft_s=chance.choice((None, chance.expovariate(3))),
                weight=chance.uniform(0.1, 5),
                slope_s=chance.choice((None, 0.0, 0.001)),
            )
            for index in chance.sample(range(8), chance.randrange(1, 8))
        ]
        choice = selection.choose(candidates, chance.choice((0, chance.getrandbits(63))), chance.randrange(5000))
        assert 0 <= choice < len(candidates)


def test_of_two_the_one_with_the_sooner_first_token_is_chosen() -> None:
    """Latency times load: an idle slow backend may lose against a busy fast one, and the other way round."""
    fast_busy, slow_idle = candidate(0, ttft_s=0.1, load=1.0), candidate(1, ttft_s=0.3)
    assert share(PowerOfTwo(Random(1)), [fast_busy, slow_idle]) == [1, 0]
    assert share(PowerOfTwo(Random(1)), [candidate(0, ttft_s=0.1, load=3.0), slow_idle]) == [0, 1]


def test_while_a_latency_is_unknown_load_decides() -> None:
    """A backend that has just started gets calls, and with them a latency."""
    assert share(PowerOfTwo(Random(1)), [candidate(0, load=0.5), candidate(1, ttft_s=None, load=0.2)]) == [0, 1]


def test_equals_share_evenly() -> None:
    """No backend is preferred for its place in the config."""
    assert share(PowerOfTwo(Random(2)), [candidate(i) for i in range(4)]) == pytest.approx([0.25] * 4, abs=0.04)


def test_the_worst_of_many_is_never_taken_and_the_best_not_always() -> None:
    """That is what keeps several gateways from all going to the same one."""
    shares = share(PowerOfTwo(Random(3)), [candidate(i, ttft_s=0.1 * (i + 1)) for i in range(5)])
    assert shares[4] == 0 and shares == sorted(shares, reverse=True) and shares[0] < 0.5


@pytest.mark.parametrize("weights", [(1, 1), (5, 1, 1), (3, 2, 1), (0.5, 0.25)])
def test_each_gets_its_weights_share(weights: tuple[float, ...]) -> None:
    """Exactly so over a few cycles."""
    shares = share(Weighted(Random(1)), [candidate(i, weight=w) for i, w in enumerate(weights)])
    assert shares == pytest.approx([w / sum(weights) for w in weights], abs=0.002)


def test_weighted_turns_are_interleaved() -> None:
    """A backend with five sevenths of the weight has no five calls in a row, and the others no two."""
    selection, candidates = Weighted(Random(4)), [candidate(0, weight=5), candidate(1), candidate(2)]
    turns = "".join(str(selection.choose(candidates, 0, 1)) for _ in range(700))
    assert "00000" not in turns and "11" not in turns and "22" not in turns


def test_a_backend_that_is_much_more_loaded_waits_whatever_its_weight() -> None:
    """Weights say who gets how much when all keep up, not who is buried."""
    shares = share(Weighted(Random(1)), [candidate(0, weight=9, load=1.2), candidate(1, load=0.4)])
    assert shares == [0, 1]
    shares = share(Weighted(Random(1)), [candidate(0, load=2.2), candidate(1, load=2.0)])
    assert shares == pytest.approx([0.5, 0.5], abs=0.01)


def test_a_conversation_comes_back_to_its_backend() -> None:
    """In whatever order the candidates are given, in every worker."""
    chance = Random(9)
    for affinity in (chance.getrandbits(63) for _ in range(300)):
        candidates = [candidate(i) for i in range(6)]
        home = candidates[Sticky(Random(1)).choose(candidates, affinity, 500)].index
        chance.shuffle(candidates)
        assert candidates[Sticky(Random(2)).choose(candidates, affinity, 900)].index == home


def test_conversations_spread_by_weight() -> None:
    """A backend with twice the weight is home to twice as many, whatever numbers the conversations have."""
    selection, candidates = Sticky(Random(1)), [candidate(0, weight=2), candidate(1), candidate(2)]
    chance = Random(3)
    for affinities in (range(1, 6001), [chance.getrandbits(63) for _ in range(6000)]):
        homes = Counter(selection.choose(candidates, affinity, 100) for affinity in affinities)
        assert [homes[i] / 6000 for i in range(3)] == pytest.approx([0.5, 0.25, 0.25], abs=0.03)


def test_when_a_backend_goes_only_its_own_conversations_move() -> None:
    """The others' prompt caches stay warm."""
    selection, before = Sticky(Random(1)), [candidate(i) for i in range(5)]
    after = [each for each in before if each.index != 2]
    for affinity in range(1, 2000):
        home = before[selection.choose(before, affinity, 100)].index
        now = after[selection.choose(after, affinity, 100)].index
        assert now == home or home == 2


def test_the_home_is_left_only_for_more_than_re_reading_the_prompt_costs() -> None:
    """With 0.1 ms a token, 2,000 tokens are worth 200 ms of waiting."""
    selection = Sticky(Random(1))
    candidates = [candidate(0), candidate(1)]
    home = selection.choose(candidates, 77, 2000)
    candidates[home].load = 0.9
    assert selection.choose(candidates, 77, 2000) == home
    candidates[home].load = 1.1
    assert selection.choose(candidates, 77, 2000) == 1 - home
    assert selection.choose(candidates, 77, 4000) == home


def test_where_the_price_of_switching_is_unknown_it_is_taken_to_double_the_wait() -> None:
    """A home that is a little busier is kept; one that is swamped is not."""
    selection = Sticky(Random(1))
    candidates = [candidate(0, slope_s=None), candidate(1, slope_s=None)]
    home = selection.choose(candidates, 77, 2000)
    candidates[home].load = 0.8
    assert selection.choose(candidates, 77, 2000) == home
    candidates[home].load = 1.5
    assert selection.choose(candidates, 77, 2000) == 1 - home


def test_a_full_home_of_unknown_latency_is_left_for_a_free_place() -> None:
    """Nothing says how long the wait would be, and there is no need to wait."""
    selection = Sticky(Random(1))
    candidates = [candidate(0, ttft_s=None), candidate(1, ttft_s=None)]
    home = selection.choose(candidates, 77, 2000)
    candidates[home].load = 1.0
    candidates[1 - home].load = 0.5
    assert selection.choose(candidates, 77, 2000) == 1 - home
    candidates[1 - home].load = 1.0
    assert selection.choose(candidates, 77, 2000) == home


def test_a_request_without_a_conversation_goes_by_load() -> None:
    """There is no cache to come back to."""
    assert share(Sticky(Random(1)), [candidate(0, load=0.9), candidate(1, load=0.1)]) == [0, 1]
