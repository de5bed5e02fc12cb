"""Tell what the cache does for one request, by its own rules: may it be answered, would this stored answer serve?

No store and no index are there: the test names the stored answer. Whether its question means the same is up to the
guards and the verifier, where the test gives both texts; the score of the cross-encoder is the test's to give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from cache import shipped_cross_encoder
from cache.planning.eligibility import (
    counts_as_volatile,
    longest_kept,
    never_values,
    why_not_any,
    why_not_semantic,
)
from cache.planning.volatile import volatility_of
from cache.semantic.decision import decide_by, default_threshold
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.write import why_not_kept
from gateway.parts.lab.walk import Draft, Step
from policies.value_type import value_type
from routing.embedder import StaticEmbedder

if TYPE_CHECKING:
    from gateway.parts.lab.policy_tests.format import StoredAnswerRules
    from policies.caching import CachePolicy, SemanticCache
    from policies.expression import Expression
    from routing.embedder import Embedder, EmbedderKind
    from routing.features import Features

EMBEDDING: Final[EmbedderKind] = "static"
"""The encoder of tests: the one that ships, whose vectors are there without a model server."""
OPEN: Final = "the cross-encoder would decide: give `stored.score`"


@value_type
class CacheResult:
    """What the cache does. `may` says which caches may answer, `why` why no more may, `hit` which one does."""

    may: Literal["exact", "semantic", "both", "none"] = "none"
    why: str = ""
    hit: Literal["", "exact", "semantic"] = ""
    missed: str = ""
    """Why the stored answer is not served, where there is one."""
    steps: Sequence[Step] = ()


@cache
def embedder() -> Embedder:
    """Return the encoder of tests; loading it takes a tenth of a second."""
    return StaticEmbedder.load()


@cache
def verifier() -> Verifier:
    """Return the verifier that ships for this encoder."""
    return Verifier.load(shipped_verifier(EMBEDDING))


@cache
def _strict(of: Literal["verifier", "cross_encoder"]) -> float:
    """Return the threshold of a model that ships, from its data sheet: the model itself is not loaded."""
    sheet = shipped_verifier(EMBEDDING) / "verifier.json"
    if of == "cross_encoder":
        sheet = shipped_cross_encoder() / "sheet.json"
    return float(orjson.loads(sheet.read_bytes())["strict"])


NeverRules = Sequence[tuple["Expression", Sequence["Expression"]]]
"""Each rule of `cache.never` with its comparisons, where it has more than one."""


def consulted(
    policy: CachePolicy,
    body: Mapping[str, Any],
    features: Features,
    stored: StoredAnswerRules | None,
    never: NeverRules,
    allowed: Sequence[str] | None = None,
) -> CacheResult:
    """Return what the cache does for a request. `allowed` are the tiers whose answers may serve it; None for any."""
    if policy.exact is None and policy.semantic is None:
        return CacheResult(why="policy")
    steps: list[Step] = []
    why = why_not_any(policy, body, features)
    if never:
        _never_steps(policy, never, why, body, features, steps)
    if why:
        return CacheResult("none", why, missed=why, steps=steps)
    why_semantic = why_not_semantic(policy, body, features, features.text)
    if policy.semantic is not None and why_semantic in ("", "temperature"):
        steps.append(Step(("cache", "semantic", "max_temperature"), why_semantic == "temperature", why_semantic))
    exact, semantic = policy.exact is not None, not why_semantic
    may: Literal["exact", "semantic", "both"] = "both" if exact and semantic else "exact" if exact else "semantic"
    result = CacheResult(may if exact or semantic else "none", why_semantic, steps=steps)
    if stored is None:
        return result
    return _looked_up(policy, features, stored, result, longest_kept(policy, body, features), allowed)


def _looked_up(
    policy: CachePolicy,
    features: Features,
    stored: StoredAnswerRules,
    result: CacheResult,
    longest_s: float,
    allowed: Sequence[str] | None,
) -> CacheResult:
    """Return the result with the stored answer served, or why it is not. It is kept for `longest_s` seconds at most."""
    other = stored.question is not None or stored.similarity is not None or stored.score is not None
    rules = policy.semantic if other or policy.exact is None else policy.exact
    kind: Literal["exact", "semantic"] = "semantic" if rules is policy.semantic else "exact"
    missed = ""
    steps = list(result.steps)
    if rules is None or (kind == "semantic" and result.why):
        missed = result.why or "policy"
    if not missed and kind == "semantic" and policy.semantic is not None and other:
        missed = _why_not_same(policy.semantic, features.text, stored, steps)
    if not missed and rules is not None:
        expired = stored.age >= rules.ttl
        steps.append(Step(("cache", kind, "ttl"), expired, f"stored {stored.age:g} s ago, kept for {rules.ttl:g} s"))
        missed = "expired" if expired else ""
        if longest_s < rules.ttl:
            old = stored.age >= longest_s
            steps.append(Step(("cache", "doubt_ttl"), old, f"stored {stored.age:g} s ago, kept for {longest_s:g} s"))
            missed = missed or ("in_doubt" if old else "")
    if not missed and allowed is not None and stored.tier not in allowed:
        missed = "tier"
    return CacheResult(result.may, result.why, "" if missed else kind, missed, steps)


def _why_not_same(semantic: SemanticCache, asked: str, stored: StoredAnswerRules, steps: list[Step]) -> str:
    """Return why the stored question's answer is not served, or ''; `OPEN` where only the cross-encoder knows."""
    cosine, score, refused, settled = stored.similarity, stored.verifier_score, "", False
    screening = semantic.verify == "default"
    if cosine is None:
        cosine = question_cosine(stored.question or asked, asked)
    steps.append(
        Step(("cache", "semantic", "min_similarity"), cosine < semantic.min_similarity, f"similarity {cosine:.3g}")
    )
    if cosine < semantic.min_similarity:
        return "similarity"
    if stored.question is not None:
        verdict = decide_by(semantic, None if semantic.verify == "none" else verifier(), screening=screening)(
            stored.question, asked, cosine
        )
        score, refused, settled = verdict.score, verdict.refused, verdict.stage == "rule"
        at = ("cache", "semantic", "guards")
        steps += [Step((*at, guard), refused == f"guard: {guard}", refused) for guard in semantic.guards]
    elif screening and score < semantic.cross_encoder.ask_from:
        refused = "similarity"
    if screening and not settled and (not refused or refused == "similarity"):
        below = f"the verifier's score {score:.3g}"
        steps.append(Step(("cache", "semantic", "cross_encoder", "ask_from"), bool(refused), below))
    if refused or settled or semantic.verify == "none":
        return refused
    if semantic.verify == "fast":
        return "" if (stored.score if stored.score is not None else score) >= _strict("verifier") else "similarity"
    if stored.score is None:
        return OPEN
    least = default_threshold(semantic, screening=True, strict=_strict("cross_encoder"))
    low = stored.score < least
    key = ("cache", "semantic", "cross_encoder", "min_score")
    steps.append(Step(key, low, f"score {stored.score:g} {'<' if low else '>='} {least:g}"))
    return "similarity" if low else ""


def question_cosine(stored: str, asked: str) -> float:
    """Return the cosine of two questions' vectors."""
    ours, theirs = embedder().embed([stored, asked])
    return float(ours @ theirs)


def _never_steps(
    policy: CachePolicy,
    never: NeverRules,
    why: str,
    body: Mapping[str, Any],
    features: Features,
    steps: list[Step],
) -> None:
    """Note whether each rule of `cache.never`, and each condition in it, held: up to the first rule that does."""
    values: dict[str, Any] | None = None
    for i, (rule, conditions) in enumerate(never):
        held = why == f"never: {rule.source}"
        steps.append(Step(("cache", "never", i), held, rule.source))
        if conditions:
            if values is None:
                values = never_values(body, features) | {
                    "volatile": counts_as_volatile(policy, volatility_of(features.text))
                }
            steps += [
                Step(("cache", "never", i, j), condition.holds(values), condition.source)
                for j, condition in enumerate(conditions)
            ]
        if held:
            break


def why_not_stored(policy: CachePolicy, draft: Draft, choices: int, *, wants_json: bool) -> str:
    """Return why an answer is not kept in the cache, or ''."""
    message: dict[str, Any] = {"role": "assistant", "content": draft.text_of(draft.tokens, wants_json=wants_json)}
    finish = draft.finish
    if draft.calls_tools:
        arguments = "{" if draft.invalid == "tool_args" else "{}"
        call = {"id": "call_1", "type": "function", "function": {"name": "tool", "arguments": arguments}}
        message |= {"content": None, "tool_calls": [call]}
        finish = "tool_calls" if finish == "stop" else finish
    if draft.refusal:
        message["refusal"] = message["content"]
    choice = [{"index": i, "message": message, "finish_reason": finish} for i in range(choices)]
    return why_not_kept({"choices": choice}, choices, tool_calls=policy.store_tool_calls)
