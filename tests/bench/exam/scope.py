"""Ask a scope of English questions first, then look up rewordings and traps as a gateway looks them up.

The scope is one tenant's, in a real store of its own: a lookup is the search, the shortlist, the guards, the pair model
and the threshold without labels (`ResponseCache`). A hit is wrong if the entry whose answer is served answers another
question than the one asked, whichever entry it is. The pair model has as long as it takes: what a busy machine refuses
is not what is measured here.

What is asked first: the questions of `english`, one in ten of their traps, and of each group of `scope.toml` a third of
its questions, in one or two of their wordings. What is looked up: the rewordings of `english`, the wordings that the
scope has not seen of the questions it has, and as traps those of `english` that were not asked first, and every
wording of the other two thirds. So each trap of a group stands beside entries on the same subject, and beside entries
that ask the same of another subject.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
from rich.table import Table

from cache.entry import StoredAnswer
from cache.planning.plan import CachePlan
from cache.response_cache import ResponseCache
from cache.scopes.scope import Caps
from cache.semantic.cross_encoder import TextPair
from cache.store.redis_store import RedisStore
from cache.write import CacheWrite
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.fit.embedding import Remembered
from gateway.report import OnProgress, table
from gateway.seams import build_pair_queue, compares_turns, index_of
from policies.model import Policy
from routing.features import features_of
from tests.bench.exam.questions import FOLDER, filled, pairs_of, read_data
from tests.bench.measure_cache import CacheUnderTest
from tests.support.store import LocalStore
from tools.cache_stages import Figure, share_shown

_FIRST_EACH: Final = 3
"""One in so many questions of a group is asked first."""
_TRAPS_FIRST: Final = 10
"""One in so many of the traps of `english` is asked first."""
_PATIENCE_S: Final = 60.0
_TENANT: Final = "exam"


class ScopeQuestion(NamedTuple):
    """A text, the number of what it wants (equal for equal answers), its kind, and whether it is asked `first`."""

    text: str
    wants: str
    kind: str
    first: bool


def scope_questions(limit: int = 0, seed: int = 0) -> list[ScopeQuestion]:
    """Return what is asked first and what is looked up, each text once; of the latter `limit` of each kind, 0 for all.

    Equal seeds take equal samples.
    """
    texts: dict[str, ScopeQuestion] = {}
    for question in (*_of_english(), *_of_groups()):
        texts.setdefault(question.text.casefold(), question)
    questions = list(texts.values())
    if not limit:
        return questions
    known = {question.wants for question in questions if question.first}
    groups: dict[tuple[str, bool], list[ScopeQuestion]] = {}
    for question in questions:
        if not question.first:
            groups.setdefault((question.kind, question.wants in known), []).append(question)
    chooser = Random(seed)
    taken = [one for group in groups.values() for one in chooser.sample(group, min(limit, len(group)))]
    return [question for question in questions if question.first] + taken


def _of_english() -> Iterator[ScopeQuestion]:
    traps = 0
    for pair in pairs_of("english"):
        yield ScopeQuestion(pair.a, pair.a, pair.kind, True)
        if pair.same:
            yield ScopeQuestion(pair.b, pair.a, pair.kind, False)
        else:
            yield ScopeQuestion(pair.b, pair.b, pair.kind, traps % _TRAPS_FIRST == 0)
            traps += 1


def _of_groups() -> Iterator[ScopeQuestion]:
    """Yield the questions of each group: each of `ask` (wordings of one question) with each of the values `of`."""
    for group in read_data(FOLDER / "scope.toml")["group"]:
        for row, wordings in enumerate(group["ask"]):
            for column, value in enumerate(group["of"]):
                wants = f"{wordings[0]} {value}"
                first = (row + column) % _FIRST_EACH == 0
                both = first and (row + column) % (2 * _FIRST_EACH) == 0
                for place, wording in enumerate(wordings):
                    text = filled(wording, {"x": value})
                    yield ScopeQuestion(text, wants, group["kind"], first and place <= both)


@dataclass(frozen=True, slots=True)
class ScopeLookup:
    """One lookup: whether the scope has an answer to it (`known`), whether it `hit`, and `rightly`; the question whose
    answer it got (`stored`), and the pairs that were `judged` for it."""

    asked: ScopeQuestion
    known: bool
    hit: bool
    rightly: bool
    stored: str
    judged: int


class _Counted:
    """A pair model that counts the pairs it is given; everything else is the model's own."""

    def __init__(self, scorer: CrossEncoder) -> None:
        self._scorer = scorer
        self.judged = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scorer, name)

    def scores(self, pairs: Sequence[TextPair]) -> Sequence[float]:
        self.judged += len(pairs)
        return self._scorer.scores(pairs)


def look_up(
    questions: Sequence[ScopeQuestion],
    cache: CacheUnderTest,
    embedder: Remembered,
    on_progress: OnProgress,
    seed: int,
) -> list[ScopeLookup]:
    """Ask the first questions, then look the others up in random order. Raises StoreUnavailable, OSError."""
    embedder.embed([question.text for question in questions])
    server = LocalStore()
    server.start()
    try:
        return asyncio.run(_looked_up(questions, cache, embedder, server.url, on_progress, seed))
    finally:
        server.stop()


async def _looked_up(
    questions: Sequence[ScopeQuestion],
    under_test: CacheUnderTest,
    embedder: Remembered,
    url: str,
    on_progress: OnProgress,
    seed: int,
) -> list[ScopeLookup]:
    store = RedisStore.from_url(url)
    model = under_test.cross_encoder
    counted = None if model is None else _Counted(model)
    scorer: Any = counted
    cache = ResponseCache(
        store,
        embedder_name=embedder.name,
        dimension=embedder.dimension,
        index=index_of("replica"),
        longest_question=embedder.whole_chars,
        verifier=under_test.verifier,
        cross_encoder=None if scorer is None else build_pair_queue(scorer),
        turn_by_turn=compares_turns(),
        cosine_weight=0.0 if model is None else model.cosine_weights.get(embedder.name, 0.0),
        caps=Caps(entries=1 << 20, bytes=1 << 32),
    )
    policy = _unhurried(under_test.policy)
    await cache.start()
    try:
        first = [question for question in questions if question.first]
        wants = await _asked_first(cache, policy, first, embedder, on_progress)
        looked: list[ScopeLookup] = []
        known = {question.wants for question in first}
        others = [question for question in questions if not question.first]
        order = np.random.default_rng(seed).permutation(len(others)).tolist()
        for count, at in enumerate(order):
            looked.append(await _look_up(cache, policy, others[at], embedder, wants, known, counted))
            if count % 50 == 0:
                on_progress("looking up", count, len(others))
        return looked
    finally:
        await cache.aclose()
        await store.aclose()


async def _asked_first(
    cache: ResponseCache,
    policy: Policy,
    first: Sequence[ScopeQuestion],
    embedder: Remembered,
    on_progress: OnProgress,
) -> dict[str, str]:
    """Store an answer to each question; return what each stored question wants. Wait until all are found."""
    wants: dict[str, str] = {}
    kept = 0
    for count, question in enumerate(first):
        plan, vector = _plan(cache, policy, question.text), embedder.embed([question.text])[0]
        keys = plan.keys
        if keys is None or keys.question is None or plan.why_not_semantic():
            continue  # what is barred is stored nowhere, as in a gateway
        (outcome,) = await cache.write_all([CacheWrite(plan, _answer(question.wants), vector)])
        if outcome.stored:
            kept += keys.question not in wants
            wants[keys.question] = question.wants
        on_progress("asking first", count, len(first))
    began = time.monotonic()
    while (cache.index.state().entries or 0) < kept and time.monotonic() - began < _PATIENCE_S:
        await asyncio.sleep(0.01)
    return wants


async def _look_up(
    cache: ResponseCache,
    policy: Policy,
    question: ScopeQuestion,
    embedder: Remembered,
    wants: Mapping[str, str],
    known: Set[str],
    counted: _Counted | None,
) -> ScopeLookup:
    before = 0 if counted is None else counted.judged
    vector = embedder.embed([question.text])[0]
    await asyncio.sleep(0)  # lets the worker read its scope's generation
    plan = _plan(cache, policy, question.text)
    exact = await cache.exact(plan)
    found = exact if exact.hit is not None else await cache.semantic(plan, vector)
    hit = found.outcome == "hit"
    stored = found.question or (plan.keys.question if plan.keys is not None else None) or ""
    judged = 0 if counted is None else counted.judged - before
    rightly = hit and wants.get(stored) == question.wants
    return ScopeLookup(question, question.wants in known, hit, rightly, stored, judged)


def _plan(cache: ResponseCache, policy: Policy, text: str) -> CachePlan:
    body = {"model": policy.surface, "messages": [{"role": "user", "content": text}]}
    return cache.plan(body, policy, _TENANT, features_of(body), model=policy.surface)


def _answer(text: str) -> StoredAnswer:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    completion = {
        "id": "chatcmpl-1", "object": "chat.completion", "choices": [choice],
        "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18},
    }  # fmt: skip
    return StoredAnswer(completion, "local", "local-1", "model-1", 0.9, 0.0001)


def _unhurried(policy: Policy) -> Policy:
    """Return the policy with a minute for each verdict of the pair model."""
    semantic = policy.cache.semantic
    assert semantic is not None
    model = semantic.cross_encoder.model_copy(update={"within": _PATIENCE_S})
    semantic = semantic.model_copy(update={"cross_encoder": model})
    return policy.model_copy(update={"cache": policy.cache.model_copy(update={"semantic": semantic})})


class ScopeFigures(NamedTuple):
    """Shares of what was looked up, and the pairs judged."""

    served: Figure
    """Rewordings answered with the answer to their question."""
    mistaken: Figure
    """Rewordings answered with the answer to another question."""
    wrong: Figure
    """Traps answered: the scope has no answer to any of them."""
    stored: int
    judged_mean: float
    """Pairs judged for a hit, over hits that asked the pair model."""
    judged_p95: float
    judged_each: float
    """Pairs judged for a lookup, over all."""


def figures_of(lookups: Sequence[ScopeLookup], stored: int) -> ScopeFigures:
    """Return the figures of these lookups in a scope of so many entries."""
    rewordings = [one for one in lookups if one.known]
    traps = [one for one in lookups if not one.known]
    pairs = np.array([one.judged for one in lookups if one.hit and one.judged] or [0])
    return ScopeFigures(
        share_shown(sum(one.rightly for one in rewordings), len(rewordings)),
        share_shown(sum(one.hit and not one.rightly for one in rewordings), len(rewordings)),
        share_shown(sum(one.hit for one in traps), len(traps)),
        stored,
        float(pairs.mean()),
        float(np.percentile(pairs, 95)),
        sum(one.judged for one in lookups) / max(1, len(lookups)),
    )


def shown_scope(
    lookups: Sequence[ScopeLookup], stored: int, *, wrong: bool
) -> tuple[dict[str, Any], list[str | Table]]:
    """Return the figures as JSON values, and by kind as a table."""
    figures = figures_of(lookups, stored)
    shown = table(f"scope of {stored:,}", "rewordings", "served right", "served another's", "traps", "served")
    kinds = Counter(one.asked.kind for one in lookups)
    rows = {kind: [one for one in lookups if one.asked.kind == kind] for kind, _ in kinds.most_common()}
    for kind, own in {**rows, "all": list(lookups)}.items():
        of = figures_of(own, stored)
        right, traps = (f"{of.served.n:,}", f"{of.wrong.n:,}")
        shown.add_row(kind, right, str(of.served), str(of.mistaken), traps, str(of.wrong))
    lines: list[str | Table] = [shown, ""]
    lines.append(
        f"pairs judged for a hit by the pair model: mean {figures.judged_mean:.2f}, p95 {figures.judged_p95:.0f};"
        f" for a lookup: {figures.judged_each:.2f}"
    )
    lines.append("")
    if wrong:
        lines += [f"{one.asked.kind}: {one.stored} <> {one.asked.text}" for one in lookups if one.hit > one.rightly]
    values = {
        name: value.as_json() if isinstance(value, Figure) else value for name, value in figures._asdict().items()
    }
    return values, lines
