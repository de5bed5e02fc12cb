"""Read whole requests of a test: their difficulty by the shipped classifier, and whether two share a stored answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from cache import shipped_cross_encoder
from cache.planning.plan import Planner
from cache.semantic.decision import UNREAD, decide_by, default_threshold
from gateway.parts.agents.policy import AgentSections
from gateway.parts.agents.shortening import shorter_input
from gateway.parts.agents.turns import rated_in_conversation
from gateway.parts.lab.policy_tests.cache_lookup import EMBEDDING, embedder, verifier
from gateway.parts.lab.policy_tests.case import Request
from gateway.seams import compares_turns, load_pair_scorer
from routing.difficulty.model import DifficultyModel, shipped_artefact
from routing.features import features_of, room_needed

if TYPE_CHECKING:
    from cache.planning.plan import CachePlan
    from cache.semantic.cross_encoder import TextPairScorer
    from policies.caching import SemanticCache
    from policies.model import Policy

_TENANT: Final = "tests"


@cache
def classifier() -> DifficultyModel:
    """Return the difficulty classifier that ships."""
    return DifficultyModel.load(shipped_artefact(EMBEDDING), embedder())


@cache
def _cross_encoder() -> TextPairScorer:
    scorer = load_pair_scorer(shipped_cross_encoder())
    from gateway.parts.encoders.turns import TurnScorer  # with a scorer, the part is there

    return TurnScorer(scorer)


def whole_request(body: Mapping[str, Any], policy: Policy) -> Request:
    """Return a whole request with its features, and its difficulty as the classifier rates it."""
    if (rules := policy.of(AgentSections).input) is not None:
        texts = shorter_input(body["messages"], rules).texts
        messages = [{**turn, "content": texts[i]} if i in texts else turn for i, turn in enumerate(body["messages"])]
        body = {**body, "messages": messages}
    difficulty, features = rated_in_conversation(policy, classifier(), embedder(), features_of(body))
    return Request(features, body, {"room": room_needed(body)}, difficulty)


def why_not_together(policy: Policy, request: Request, other: Request) -> str:
    """Return why the stored answer of `request` would not be served for `other`, or '' if it would."""
    cached = embedder()
    planner = Planner(b"", cached.name, cached.whole_chars, {}, lambda _, __: 0, by_turns=True)
    plans = [planner.plan(of.body, policy, _TENANT, of.features, model=policy.surface) for of in (request, other)]
    ours, theirs = plans
    if ours.keys is None or theirs.keys is None:
        return ours.reason or theirs.reason
    if policy.cache.exact is not None and ours.keys.key == theirs.keys.key:
        return ""
    if why := ours.why_not_semantic() or theirs.why_not_semantic():
        return why
    if ours.keys.partition != theirs.keys.partition:
        return "another context"
    assert policy.cache.semantic is not None  # noqa: S101  (why_not_semantic is not empty without it)
    return _why_not_same(policy.cache.semantic, ours, theirs)


def _why_not_same(semantic: SemanticCache, ours: CachePlan, theirs: CachePlan) -> str:
    """Return why two questions of one partition do not share an answer: by guards, verifier and cross-encoder."""
    assert ours.keys is not None and theirs.keys is not None  # noqa: S101  (plans with keys are passed)
    stored, asked = ours.keys.question or "", theirs.keys.question or ""
    vectors = embedder().embed([ours.keys.user_turns or stored, theirs.keys.user_turns or asked])
    screening = semantic.verify == "default"
    scorer = None if semantic.verify == "none" else verifier()
    decide = decide_by(semantic, scorer, screening=screening)
    if (turn_by_turn := compares_turns()) is not None:
        decide = turn_by_turn(decide, semantic)
    verdict = decide(stored, asked, float(vectors[0] @ vectors[1]))
    if verdict.refused or verdict.stage == "rule":
        return verdict.refused
    score, strict = verdict.score, None
    if screening:
        score, strict = _cross_encoder().scores([(stored, asked)])[0], _cross_encoder().strict
        if score == UNREAD:
            return "guard: unknown_token"
    least = default_threshold(semantic, scorer, screening=screening, strict=strict)
    return "" if score >= least else f"score {score:.3f} < {least:.3f}"
