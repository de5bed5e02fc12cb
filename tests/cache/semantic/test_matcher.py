"""The choice among neighbours: of the own scope only, without a model, and then by the cross-encoder's scores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
import pytest_asyncio

from cache.index import Neighbour, SemanticIndex
from cache.planning.plan import CachePlan, Fingerprint
from cache.semantic.decision import Verdict
from cache.semantic.matcher import BestNeighbour, SemanticMatcher, missed
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.store.redis_store import RedisStore
from cache.text.reading import SCRIPTS
from gateway.parts.encoders.pair_queue import CrossEncoderQueue
from gateway.parts.encoders.turns import turn_by_turn
from gateway.parts.hit_audits.audit import Audits
from policies.caching import SemanticCache
from tests.cache.samples import Facts, policy

_SCOPE = "tierline:{scope}"
_ASKED = "How do I reset my password?"
_VERIFIER = Verifier.load(shipped_verifier("static"))
_VECTOR = np.zeros(4, np.float32)


class Index:
    """What the index of a partition finds."""

    def __init__(self, *near: tuple[str, float], scope: str = _SCOPE) -> None:
        self.current = self
        self.near = [Neighbour(f"{scope}:{i}", text, cosine) for i, (text, cosine) in enumerate(near)]

    async def nearest(self, partition: str, vector: Any, k: int, at_least: float = -1.0) -> list[Neighbour]:
        assert partition == f"{_SCOPE}:p"
        return self.near[:k]


class Scorer:
    """A cross-encoder that gives each pair the score of its stored question."""

    strict = 0.8
    scripts = SCRIPTS
    languages = ("en",)

    def __init__(self, **scores: float) -> None:
        self.by_word = scores

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [next(score for word, score in self.by_word.items() if word in stored) for stored, _ in pairs]


def matcher(index: Index, scorer: Scorer | None = None, audits: Audits | None = None) -> SemanticMatcher:
    """A matcher with the verifier that ships where there is a cross-encoder, and else with the guards alone."""
    if scorer is None:
        return SemanticMatcher(cast(SemanticIndex, index), None, None, audits, turn_by_turn=turn_by_turn)
    return SemanticMatcher(
        cast(SemanticIndex, index), _VERIFIER, CrossEncoderQueue(scorer), audits, turn_by_turn=turn_by_turn
    )


def keys(question: str | None = _ASKED) -> Fingerprint:
    return Fingerprint(_SCOPE, f"{_SCOPE}:k", f"{_SCOPE}:p", question)


def plan() -> CachePlan:
    return CachePlan(policy().cache, "chat", "chat@1234567", {}, Facts(), "")


def rules(**semantic: Any) -> SemanticCache:
    section = policy(semantic={"ttl": "6h", "min_similarity": 0.5, **semantic}).cache.semantic
    assert section is not None
    return section


async def search(found: SemanticMatcher, question: str | None = _ASKED, **semantic: Any) -> Any:
    section = {"ttl": "6h", "min_similarity": 0.5, **semantic}
    return await found.search(keys(question), _VECTOR, policy(semantic=section).cache)


async def test_without_a_question_or_a_neighbour_nothing_is_found() -> None:
    """The reason says so, and no neighbour is named."""
    for found in (await search(matcher(Index()), None), await search(matcher(Index()))):
        assert (found.best.near, found.best.verdict.refused, found.doubtful) == (None, "no_neighbour", False)


async def test_a_neighbour_of_another_scope_is_never_a_candidate() -> None:
    """Whatever the index says: the nearest is named, and refused."""
    found = await search(matcher(Index((_ASKED, 1.0), scope="tierline:{other}")))
    assert found.best.verdict.refused == "guard: scope"
    assert missed("guard: scope", found.best).score is None


async def test_of_the_neighbours_the_best_without_a_veto_is_chosen_and_vetoes_are_told() -> None:
    """The nearest has another number, so the next one is chosen."""
    index = Index(("How do I reset 2 passwords?", 0.99), ("how can I reset my password", 0.95))
    found = await search(matcher(index))
    assert found.best.near == index.near[1] and found.best.verdict.refused == ""
    assert found.best.vetoed == ("numbers 0.990",)


async def test_the_cross_encoder_is_asked_only_for_what_the_search_leaves_open() -> None:
    """Its best score wins; where it is late, the pair is refused, and the nearest candidate is named."""
    index = Index(("How can I change my password?", 0.95), ("How do I get a new password?", 0.9))
    asking = matcher(index, Scorer(change=0.6, new=0.9))
    found = await search(asking)
    assert found.doubtful
    best = await asking.check(found, _ASKED, rules(), 5.0)
    assert best.near == index.near[1] and best.verdict.read == 0.9 and best.checked.batch == 2
    other = "How do I unlock my password?"
    late = await asking.check(await search(asking, other), other, rules(), 0.0)
    assert late.verdict.refused.startswith("cross_encoder_")
    alone = matcher(index)
    assert (await alone.check(await search(alone), _ASKED, rules(), 5.0)) == (await search(alone)).best


async def test_a_neighbour_that_is_gone_leaves_the_next_one() -> None:
    """And none once the last was passed over."""
    index = Index(("How can I change my password?", 0.95), ("How do I get a new password?", 0.9))
    asking = matcher(index, Scorer(change=0.9, new=0.9))
    found = await search(asking)
    after = asking.without(found, index.near[0], _ASKED, rules())
    assert after is not None and after.best.near == index.near[1]
    assert asking.without(after, index.near[1], _ASKED, rules()) is None


@pytest_asyncio.fixture
async def audits(store: RedisStore) -> AsyncIterator[Audits]:
    """The audits of one worker."""
    yield Audits(store, "static")


@pytest.mark.parametrize(("score", "refused"), [(0.79, "similarity"), (0.81, "")])
async def test_the_threshold_decides_on_the_score(score: float, refused: str) -> None:
    """Without audits it is the cross-encoder's own."""
    index = Index(("How can I change my password?", 0.95))
    asking = matcher(index, Scorer(change=score))
    best = await asking.check(await search(asking), _ASKED, rules(), 5.0)
    assert asking.refused(plan(), rules(), best, certain=False, again=False) == refused


async def test_a_request_is_counted_once_and_sampled_unless_it_is_certain(audits: Audits) -> None:
    """With `audit: 100%` every candidate that would be served is answered afresh."""
    index, request = Index(("How can I change my password?", 0.95)), plan()
    asking, section = matcher(index, Scorer(change=0.95), audits), rules(audit=1.0)
    best = await asking.check(await search(asking), _ASKED, section, 5.0)
    surface = audits.surface("chat", section, 0.8)
    assert asking.refused(request, section, best, certain=True, again=False) == "" and surface.requests == 1
    reasons = {asking.refused(request, section, best, certain=False, again=True) for _ in range(400)}
    assert "audit" in reasons and request.drawn and surface.requests == 1


def test_a_miss_names_the_neighbour_and_no_score_of_a_vetoed_one() -> None:
    """A veto holds at any score, so a score beside it would mislead."""
    near = Neighbour("tierline:{scope}:0123456789ab", "q", 0.9)
    vetoed = missed("guard: numbers", BestNeighbour(near, Verdict(0.7, "guard: numbers", "guards")))
    assert (vetoed.outcome, vetoed.similarity, vetoed.score) == ("miss", 0.9, None)
